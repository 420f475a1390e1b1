"""What runs are called and what is written on them: names, tags, data sets, params and metrics as MLflow's entities.

A flow is `train-all · 20 coins · 15m 1h · default · 2025-06-06`, a fleet `har · 20 coins · 1h · default · 2025-06-06`.
Members are called `ARCH/SYMBOL/IV`. A run's candles are listed as one data set per timeframe, not per coin.

Every text stored in MLflow passes `text` or `_public` here, which remove user names, passwords and tokens from URLs.
"""

import hashlib
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.handover import JobMember, SeriesRecord
from schemas.identity import SIM, ModelId, coins_label
from schemas.run import RunSpec
from tasks.storage.digests import value_digest
from tasks.storage.urls import without_credentials
from tasks.tracking.tags import CANDLES_UNTIL, COINS, REAL, SEED, SIMULATED, SOURCE_KIND, TIMEFRAMES

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Metric, Param, RunTag

REPORT = "report.html"
"""Artifact name of a flow run's report."""

DEPENDENCE = "coins.json"
"""Artifact name of the dependence between a flow's coins, by timeframe; read by `cpbmodels.paths`."""

_CONTRACT = (
    "test_crps", "test_crps_ratio", "test_mae_ratio", "test_directional_accuracy", "test_coverage_80", "windows_per_s",
    "epochs_run", "gpu_mem_allocated_peak_mb", "gpu_mem_reserved_peak_mb", "gpu_util_mean", "rss_peak_mb",
)  # fmt: skip
_READ = (
    "test_crps_ratio_low", "test_crps_ratio_high", "test_p", "test_p_holm", "test_n", "test_coverage_90",
    "validation_crps_ratio",
)  # fmt: skip
"""Metrics of members other than champions that leaderboard, the page's lists, model card and gate read."""
LOGGED = frozenset((*_CONTRACT, *_READ, *(name.replace("crps", "rps") for name in (*_CONTRACT, *_READ))))
"""Metrics of a member's run in MLflow: those of the contract, and those read by lists and gates.

A metric of a run costs SQLite 380 bytes of rows and indexes (six of them), and a night over the whole exchange has
thousands of members. All other metrics are beside the model, in `metrics.json` and `config.json`.
"""
_CLASSIFIER = "test_accuracy"
"""A metric that only classifiers have; there are few classifiers, so all their metrics are logged."""
_TEXT_LIMIT = 6000  # MLflow's limit for a param; a tag may have 8000
_DIGEST_LIMIT = 36
SEPARATOR = " · "


@dataclass(frozen=True)
class OpenRun:
    """A parent or fleet run ready for writing; `finished`: it was already complete."""

    run_id: str
    finished: bool


@dataclass(frozen=True)
class Dataset:
    """Candles that a run was trained or judged on, with their digest; `path`: the parquet file, or the folder.

    `context`: `training` or `test`, as shown in MLflow's interface.
    """

    name: str
    digest: str
    path: str
    rows: int
    columns: tuple[str, ...] = ()
    context: str = "training"


@dataclass(frozen=True)
class MemberRecord:
    """A trained and judged member, or a failed member with its `reason`.

    `history` is one dict per epoch (`train_loss val_loss lr`); `metrics` are logged once; `config` is the
    whole resolved configuration; `folder` holds the artifacts; `tags` adds to the contract's tags.
    """

    key: str
    model: ModelId
    device: str
    preset: str
    data_digest: str
    as_of: str
    config: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def name(self) -> str:
        """The run's name, `ARCH/SYMBOL/IV`."""
        return str(self.model)


def logged(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a member that are logged in MLflow."""
    if _CLASSIFIER in metrics:
        return dict(metrics)
    return {name: value for name, value in metrics.items() if name in LOGGED}


def text(value: Any) -> str:
    """Return a value as MLflow text, without credentials; a truncated text ends with its length and digest."""
    out = _public(value)
    if len(out) <= _TEXT_LIMIT:
        return out
    note = f"… [{len(out)} chars, sha256 {hashlib.sha256(out.encode()).hexdigest()[:12]}]"
    return out[: _TEXT_LIMIT - len(note)] + note


def _public(value: Any) -> str:
    """Return a text unchanged, anything else as JSON, without credentials in URLs."""
    return without_credentials(value if isinstance(value, str) else json.dumps(value, default=str))


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one level, `{"optimizer": {"lr": 1}}` -> `{"optimizer.lr": 1}`; lists are kept."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def param_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the flattened configuration as MLflow param texts."""
    return {name: text(value) for name, value in flatten(config).items()}


def param_entries(texts: Mapping[str, str]) -> list["Param"]:
    """Return texts as MLflow params."""
    from mlflow.entities import Param

    return [Param(name, value) for name, value in texts.items()]


def tag_texts(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return tags as MLflow texts; None values are left out."""
    return {name: text(value) for name, value in tags.items() if value is not None}


def tag_entries(tags: Mapping[str, Any]) -> list["RunTag"]:
    """Return tags as MLflow run tags."""
    from mlflow.entities import RunTag

    return [RunTag(name, value) for name, value in tag_texts(tags).items()]


def metric_entries(
    values: Mapping[str, Any], step: int = 0, timestamp: int | None = None, model: str = ""
) -> list["Metric"]:
    """Return the numbers as MLflow metrics; None, NaN, infinite and non-numeric values are left out.

    Args:
        model: id of a logged model that gets them too.
    """
    from mlflow.entities import Metric

    stamp = timestamp or int(time.time() * 1000)
    numbers = {name: float(value) for name, value in values.items() if _is_number(value)}
    return [Metric(name, value, stamp, step, model_id=model or None) for name, value in numbers.items()]


def _is_number(value: Any) -> bool:
    if value is None or isinstance(value, (str, bytes, list, dict, tuple)):
        return False
    return math.isfinite(float(value))


def dataset_input(dataset: "Dataset") -> "DatasetInput":
    """Return the dataset as MLflow's UI shows it: name, digest, file, rows and columns."""
    from mlflow.entities import Dataset as Entity
    from mlflow.entities import DatasetInput, InputTag

    columns = [{"name": name, "type": "double", "required": True} for name in dataset.columns]
    entity = Entity(
        name=text(dataset.name),
        digest=dataset.digest[:_DIGEST_LIMIT],
        source_type="local",
        source=_public({"uri": dataset.path}),
        schema=_public({"mlflow_colspec": columns}) if columns else None,
        profile=_public({"num_rows": dataset.rows}),
    )
    return DatasetInput(entity, [InputTag("mlflow.data.context", dataset.context)])


def run_name(what: str, spec: RunSpec, records: Sequence[SeriesRecord]) -> str:
    """Return the name of a flow's run (`what`: its command) or a fleet's (its architecture) on these series."""
    coins = coins_label(record.series.symbol for record in records)
    return SEPARATOR.join((what, coins, _timeframes(records), spec.preset, _data_end(spec, records)))


def _data_end(spec: RunSpec, records: Iterable[SeriesRecord]) -> str:
    """Return the day (UTC) before which the data ends: `--as-of`, with its time unless midnight, else the day of the
    newest candle.
    """
    as_of = spec.scope.as_of
    if as_of is None:
        return f"{datetime.fromtimestamp(max(r.last_us for r in records) / 1e6, UTC):%Y-%m-%d}"
    return instant_label(as_of)


def instant_label(instant: datetime) -> str:
    """Return the day of an instant, with its time unless that is midnight."""
    return f"{instant:%Y-%m-%d}" if instant.time() == instant.time().min else f"{instant:%Y-%m-%dT%H:%M}"


def source_kind(market: str) -> str:
    """Return whether a market's candles are `real` or `simulated`."""
    return SIMULATED if market == SIM else REAL


def scope_tags(spec: RunSpec, records: Sequence[SeriesRecord]) -> dict[str, str]:
    """Return the tags of a flow's or a fleet's run on these series."""
    return {
        COINS: coins_label(record.series.symbol for record in records),
        TIMEFRAMES: _timeframes(records),
        CANDLES_UNTIL: _data_end(spec, records),
        **source_tags(spec),
    }


def source_tags(spec: RunSpec) -> dict[str, str]:
    """Return the tags that members also have, in addition to their series' tags."""
    return {SOURCE_KIND: source_kind(spec.market), SEED: str(spec.seed)}


def _timeframes(records: Iterable[SeriesRecord]) -> str:
    found = {record.series.timeframe: record.series.seconds for record in records}
    return " ".join(sorted(found, key=found.__getitem__))


def learned_from(records: Iterable[SeriesRecord]) -> list[Dataset]:
    """Return data sets of some series' candles, named `20 coins 1h (real)`, or `BTCUSDT-1h` for a single coin."""
    return [
        Dataset(_name(group), _digest(group), _place(group), sum(r.rows for r in group))
        for group in _by_timeframe(records)
    ]


def judged_on(members: Iterable[JobMember]) -> list[Dataset]:
    """Return the test spans of a fleet's members: `20 coins 1h (real), 2025-02-06 to 2025-06-05`."""
    members = list(members)
    spans = {m.bounds.timeframe: m.bounds.test for m in members}
    found = []
    for group in _by_timeframe(m.features for m in members):
        series = group[0].series
        first, end = spans[series.timeframe]
        last = end - timedelta(seconds=series.seconds)
        rows = len(group) * int((end - first).total_seconds()) // series.seconds
        name = f"{_name(group)}, {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        digest = _digest(group, first.isoformat(), end.isoformat())
        found.append(Dataset(name, digest, _place(group), rows, context="test"))
    return found


def _by_timeframe(records: Iterable[SeriesRecord]) -> Iterator[list[SeriesRecord]]:
    groups: dict[int, list[SeriesRecord]] = defaultdict(list)
    for record in records:
        groups[record.series.seconds].append(record)
    for seconds in sorted(groups):
        yield groups[seconds]


def _name(group: Sequence[SeriesRecord]) -> str:
    series = group[0].series
    if len(group) == 1:
        return series.name
    coins = coins_label(record.series.symbol for record in group)
    return f"{coins} {series.timeframe} ({source_kind(series.market)})"


def _digest(group: Sequence[SeriesRecord], *span: str) -> str:
    """Return one digest for all; a single series keeps its own digest, as on its member's run."""
    if len(group) == 1 and not span:
        return group[0].digest
    return value_digest([sorted((r.series.name, r.digest) for r in group), span])[:16]


def _place(group: Sequence[SeriesRecord]) -> str:
    return os.path.commonpath([record.path for record in group])
