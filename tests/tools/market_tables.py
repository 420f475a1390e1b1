"""Tables of one's own as sources of candles."""

from datetime import UTC, datetime
from functools import cache, partial

import polars as pl

from cpbmodels.data.columns import PRICES
from schemas.scope import IngestSpec
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.layout import period_bounds
from tasks.market.simulator import candles
from tests.tools.market_tools import key

START = datetime(2024, 1, 30, tzinfo=UTC)
HOUR = 3_600_000_000
OWN = partial(key, market="own")
PLAIN = ("open_time", *PRICES, "volume")
"""Columns that are read of a table; the store's others are 0."""


@cache
def hours(count=100, symbol="BTCUSDT"):
    """Candles from 30 January on: tables that reach over the end of a month."""
    months = [candles(symbol, HOUR, *period_bounds(month)) for month in ("2024-01", "2024-02")]
    return pl.concat(months).filter(pl.col("open_time") >= START)[:count].select(PLAIN)


def spoiled(table, row, **values):
    at = pl.int_range(pl.len()) == row
    return table.with_columns(
        pl.when(at).then(pl.lit(v)).otherwise(pl.col(n)).alias(n) for n, v in values.items()
    )


def stored(home, path, symbol="BTCUSDT", interval="1h", **options):
    made = IngestSpec(timeframes=interval, source=str(path), **options).scope.model_copy(
        update={"home": home}
    )
    return update_store(made), read_klines(home, OWN(symbol, interval)).select(PLAIN)
