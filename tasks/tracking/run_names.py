"""Names of runs that tell them apart, and the tags by which MLflow's filters find them.

A flow is `train-all · 20 coins · 15m 1h · default · 2025-06-06`, a fleet `har · 20 coins · 1h · default · 2025-06-06`.
Members are called `ARCH/SYMBOL/IV`.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from schemas.handover import SeriesRecord
from schemas.identity import SIM
from schemas.run import RunSpec
from schemas.universe import coins_label
from tasks.tracking.tags import CANDLES_UNTIL, COINS, REAL, SEED, SIMULATED, SOURCE_KIND, TIMEFRAMES

_SEPARATOR = " · "


def run_name(what: str, spec: RunSpec, records: Sequence[SeriesRecord]) -> str:
    """Return the name of a flow's run (`what`: its command) or a fleet's (its architecture) on these series."""
    return _SEPARATOR.join((what, data_label(records), spec.preset, data_end(spec, records)))


def data_label(records: Iterable[SeriesRecord]) -> str:
    """Return coins and timeframes of some series: `20 coins · 15m 1h`."""
    series = [record.series for record in records]
    return _SEPARATOR.join((coins_label(s.symbol for s in series), _timeframes(records)))


def data_end(spec: RunSpec, records: Iterable[SeriesRecord]) -> str:
    """Return the day (UTC) before which the data ends: `--as-of`, with its time where it has one, else of the newest
    candle.
    """
    as_of = spec.scope.as_of
    if as_of is None:
        return f"{datetime.fromtimestamp(max(r.last_us for r in records) / 1e6, UTC):%Y-%m-%d}"
    return f"{as_of:%Y-%m-%d}" if as_of.time() == as_of.time().min else f"{as_of:%Y-%m-%dT%H:%M}"


def source_kind(market: str) -> str:
    """Return whether a market's candles are `real` or `simulated`."""
    return SIMULATED if market == SIM else REAL


def scope_tags(spec: RunSpec, records: Sequence[SeriesRecord]) -> dict[str, str]:
    """Return the tags of a flow's or a fleet's run on these series."""
    return {
        COINS: coins_label(record.series.symbol for record in records),
        TIMEFRAMES: _timeframes(records),
        CANDLES_UNTIL: data_end(spec, records),
        **source_tags(spec),
    }


def source_tags(spec: RunSpec) -> dict[str, str]:
    """Return the tags that members have as well, beside those of their series."""
    return {SOURCE_KIND: source_kind(spec.market), SEED: str(spec.seed)}


def _timeframes(records: Iterable[SeriesRecord]) -> str:
    found = {record.series.timeframe: record.series.seconds for record in records}
    return " ".join(sorted(found, key=found.__getitem__))
