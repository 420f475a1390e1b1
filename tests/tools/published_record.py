"""A home with forecasts and scores to publish, ways to damage them, and the published verifier."""

import gzip
import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import polars as pl

from schemas.forecast_rows import REFERENCE_COLUMNS
from schemas.identity import SeriesId, tree_of
from tasks.forecasting.chain import append
from tasks.hub.tree import build_tree
from tests.tools.hub_models import REPO, champion
from tests.tools.live_record import made_forecasts, write_walk

BTC, ETH = (SeriesId("spot", f"{coin}USDT", "1h") for coin in ("BTC", "ETH"))
FIRST = datetime(2025, 1, 1, tzinfo=UTC)
ROWS = "forecasts/interval=1h/symbol={}USDT/2025-0{}.jsonl.gz"
BTC_ROWS, SCORES = ROWS.format("BTC", 1), "ledger/interval=1h/symbol=BTCUSDT/2025-01.jsonl.gz"


def store(home, hours, *coins):
    """Forecasts of these hours, a batch for each, the first without the reference."""
    for hour in hours:
        batch = {}
        for seed, coin in enumerate(coins):
            close = write_walk(home, coin, FIRST, 24 * 40, seed)
            rows = made_forecasts(coin, FIRST, close, np.atleast_1d(hour), reference=1.5)
            missing = [pl.lit(None, pl.Float64).alias(name) for name in REFERENCE_COLUMNS]
            batch[coin] = rows.with_columns(missing) if np.ndim(hour) == 0 and hour == 30 else rows
        done = append(home, coins[0].market, "forecasts", batch)
        assert all(isinstance(stored, int) and stored for stored in done.values()), done


def build(home, market="spot"):
    """Write the folder to publish; returns it and what was reported."""
    reported = []
    model = champion(home.with_name("model"), market=market)
    tree = build_tree([model], tree_of(home, "hub", market), REPO, home, reported.append)
    return tree, [failure.reason for failure in reported]


def verify(folder, *options):
    """Run the verifier with Python alone, elsewhere; returns its exit code, what it printed and its error."""
    command = [sys.executable, "-I", "-S", str(folder / "verify.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=60)
    return done.returncode, done.stdout, done.stderr


def rewrite(path, change):
    """Change the lines of a row file."""
    lines = change(gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True))
    path.write_bytes(gzip.compress("".join(lines).encode()))


def damage(home, file):
    path = home / file.replace(".jsonl.gz", ".parquet")
    path.write_bytes(path.read_bytes()[:-3])
