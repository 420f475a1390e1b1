"""The contracts of forecast, ledger and backtest rows."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from cpbmodels.data.prediction import MEDIAN_COLUMNS, QUANTILE_COLUMNS
from schemas.contract import check_columns
from schemas.errors import MemberError
from schemas.forecast_rows import (
    BACKTEST_SCHEMA,
    FORECAST_SCHEMA,
    LEDGER_SCHEMA,
    check_backtest_rows,
    check_forecasts,
    check_ledger,
)

ISSUED_AT = datetime(2025, 6, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
KEYS = {"symbol": "BTCUSDT", "timeframe": "1h", "model_version": "har", "issued_at": ISSUED_AT}


def backtest():
    prices = dict(zip(QUANTILE_COLUMNS, [90.0 + i for i in range(19)], strict=True))
    candle = {"q50_open": 99.0, "q50_high": 99.5, "q50_low": 98.0}
    rows = [
        KEYS
        | {
            "step": n,
            "target_time": ISSUED_AT + n * HOUR,
            "last_close": 99.0,
            "realised_close": 98.0,
            "fold": 1,
        }
        | prices
        | candle
        for n in (1, 2)
    ]
    return pl.DataFrame(rows, schema=BACKTEST_SCHEMA)


def ledger():
    row = KEYS | {"step": 1, "realised_close": 98.0, "scored_at": ISSUED_AT + HOUR}
    return pl.DataFrame([row], schema=LEDGER_SCHEMA)


def forecasts(reference=True):
    rows = backtest().cast({"step": pl.Int64}).drop("realised_close", "fold")
    ref = [
        (pl.col(name) if reference else pl.lit(None, pl.Float64)).alias(f"ref_{name}")
        for name in QUANTILE_COLUMNS
    ]
    made_at = pl.lit(ISSUED_AT, FORECAST_SCHEMA["made_at"])
    added = {"weights_sha256": pl.lit("a1" * 32), "standing": pl.lit(0, pl.Int64)}
    return rows.with_columns(ref, role=pl.lit("champion"), made_at=made_at, **added).select(*FORECAST_SCHEMA)


def test_good_rows_pass_with_or_without_a_candle():
    assert check_backtest_rows(backtest()).height == 2
    assert check_backtest_rows(backtest().drop(MEDIAN_COLUMNS)).height == 2
    assert check_ledger(ledger()).height == 1
    assert check_forecasts(forecasts()).height == 2
    assert check_forecasts(forecasts(reference=False)).height == 2
    of_before = [pl.lit(None, FORECAST_SCHEMA[name]).alias(name) for name in ("weights_sha256", "standing")]
    assert check_forecasts(forecasts().with_columns(of_before)).height == 2
    assert (
        check_forecasts(forecasts().with_columns(made_at=pl.lit(None, FORECAST_SCHEMA["made_at"]))).height
        == 2
    )


BAD = {
    "crossing quantiles": (check_backtest_rows, backtest().with_columns(q50=pl.lit(1.0))),
    "no truth": (check_backtest_rows, backtest().with_columns(realised_close=pl.lit(None, pl.Float64))),
    "an infinite truth": (check_backtest_rows, backtest().with_columns(realised_close=pl.lit(float("inf")))),
    "a NaN": (check_backtest_rows, backtest().with_columns(q05=pl.lit(float("nan")))),
    "half a candle": (check_backtest_rows, backtest().drop("q50_low")),
    "fold 0": (check_backtest_rows, backtest().with_columns(fold=pl.lit(0, pl.Int16))),
    "a fold twice": (check_backtest_rows, pl.concat([backtest(), backtest()])),
    "a wrong target time": (check_backtest_rows, backtest().with_columns(target_time=pl.col("issued_at"))),
    "a price of zero": (check_ledger, ledger().with_columns(realised_close=pl.lit(0.0))),
    "scored before the close": (check_ledger, ledger().with_columns(scored_at=pl.col("issued_at"))),
    "a score twice": (check_ledger, pl.concat([ledger(), ledger()])),
    "a step of zero": (check_ledger, ledger().with_columns(step=pl.lit(0, pl.Int64))),
    "an unknown interval": (check_forecasts, forecasts().with_columns(timeframe=pl.lit("7m"))),
    "no rows": (check_forecasts, forecasts().clear()),
    "an unknown role": (check_forecasts, forecasts().with_columns(role=pl.lit("winner"))),
    "a comma in a symbol": (check_forecasts, forecasts().with_columns(symbol=pl.lit("A,B"))),
    "a line break in a version": (check_forecasts, forecasts().with_columns(model_version=pl.lit("a/1\n"))),
    "a comma in a score's version": (check_ledger, ledger().with_columns(model_version=pl.lit("a,b"))),
    "no role": (check_forecasts, forecasts().with_columns(role=pl.lit(None, pl.String))),
    "half a reference": (check_forecasts, forecasts().with_columns(ref_q95=pl.lit(None, pl.Float64))),
    "a crossing reference": (check_forecasts, forecasts().with_columns(ref_q95=pl.lit(1.0))),
    "a NaN in the reference": (check_forecasts, forecasts().with_columns(ref_q95=pl.lit(float("nan")))),
    "no weights": (check_forecasts, forecasts().with_columns(weights_sha256=pl.lit(None, pl.String))),
    "half a digest": (check_forecasts, forecasts().with_columns(weights_sha256=pl.lit("a1"))),
    "no count of still candles": (check_forecasts, forecasts().with_columns(standing=pl.lit(None, pl.Int64))),
    "a negative count": (check_forecasts, forecasts().with_columns(standing=pl.lit(-1, pl.Int64))),
    "a missing close": (check_forecasts, forecasts().with_columns(last_close=pl.lit(None, pl.Float64))),
}


@pytest.mark.parametrize("name", BAD)
def test_rows_that_break_their_contract_are_refused(name):
    check, frame = BAD[name]

    with pytest.raises(MemberError) as caught:
        check(frame)

    assert caught.value.code == "rows"


def test_the_column_at_fault_is_named():
    for bad, field in (
        (forecasts().drop("made_at"), "made_at"),
        (forecasts().with_columns(symbol=pl.lit(1)), "symbol"),
        (forecasts().with_columns(more=pl.lit(1)), "symbol"),
    ):
        with pytest.raises(MemberError) as caught:
            check_columns(bad, FORECAST_SCHEMA)
        assert caught.value.field == field
    assert check_columns(forecasts(), FORECAST_SCHEMA).height == 2
