"""Batches of many series give what one series after another gives, to the last bit."""

from datetime import UTC, datetime

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels.data.columns import feature_frame
from schemas.errors import CpbError
from schemas.features import features_contract
from schemas.identity import SeriesId
from tasks.forecasting import chain
from tasks.forecasting.lines import chain_path, parse_line
from tasks.market.simulator import candles
from tests.tools.live_record import made_forecasts

FIRST = datetime(2024, 1, 31, 20, tzinfo=UTC)
SERIES = [SeriesId("spot", f"C{i}USDT", "1h") for i in range(12)]


CLOSE = 100 * np.exp(np.cumsum(np.random.default_rng(1).normal(0, 0.005, (len(SERIES), 9)), axis=1))


def _batch(first=0, hours=8):
    """Hours over the end of a month, each series with prices of its own: eight have rows in two files."""
    origins = np.arange(first, first + hours)
    return {series: made_forecasts(series, FIRST, CLOSE[i], origins) for i, series in enumerate(SERIES)}


def test_rows_that_break_the_contract_cost_no_other_series(tmp_path):
    batch = _batch()
    batch[SERIES[3]] = batch[SERIES[3]].with_columns(q50=pl.lit(-1.0))
    batch[SERIES[5]] = batch[SERIES[5]].with_columns(symbol=pl.lit("OTHERUSDT"))
    batch[SERIES[7]] = batch[SERIES[7]].clear()
    done = chain.append(tmp_path, "spot", "forecasts", batch)
    wrong = {series for series, result in done.items() if isinstance(result, CpbError)}
    assert wrong == {SERIES[3], SERIES[5], SERIES[7]}
    assert {done[series].code for series in wrong} == {"rows"}
    assert {result for series, result in done.items() if series not in wrong} == {80}
    assert list(done) == list(batch)


def test_damaged_months_of_one_batch_stop_no_other_series(tmp_path):
    chain.append(tmp_path, "spot", "forecasts", _batch())
    for series in SERIES[:6]:
        (series.folder(tmp_path, "forecasts") / "2024-02.parquet").write_bytes(b"no parquet")
    done = chain.append(tmp_path, "spot", "forecasts", _batch(8, 1))
    assert {series for series, new in done.items() if new != 10} == set(SERIES[:6])
    assert {done[series].code for series in SERIES[:6]} == {"damaged"}
    raw = chain_path(tmp_path, "spot").read_bytes().splitlines(keepends=True)
    assert [parse_line(line).number for line in raw] == list(range(1, len(raw) + 1))
    assert [parse_line(line).kind for line in raw] == ["forecasts", "forecasts"]


FEATURES = feature_frame(
    candles("BTCUSDT", 3_600_000_000, 1_704_067_200_000_000, 1_706_745_600_000_000), "1h"
)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(FEATURES.columns),
    st.integers(0, len(FEATURES) - 1),
    st.sampled_from([None, float("nan"), float("inf"), -1.0, 0.0, 1.0, 5.5, 51.0, 168.0, -21.0]),
)
def test_the_quick_check_of_features_holds_what_panderas_holds(column, row, value):
    kind = FEATURES.schema[column]
    plain = kind == pl.Float64
    changed = pl.lit(value, pl.Float64) if plain else pl.lit(None, kind)
    here = pl.int_range(pl.len()) == row
    frame = FEATURES.with_columns(pl.when(here).then(changed).otherwise(pl.col(column)).alias(column))
    assert features_contract().holds(frame) == _is_valid(frame)


def _is_valid(frame):
    import pandera.errors

    try:
        features_contract().schema().validate(frame)
    except pandera.errors.SchemaError:
        return False
    return True
