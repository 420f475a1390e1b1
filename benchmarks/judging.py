"""How fast judging and features are: `python -m benchmarks.judging [--only judge|features|pictures] [--json]`.

`judge` scores 40 members × 4 architectures × 2,000 origins × 10 steps (3.2 million forecast rows of 19
quantiles) with intervals, tests, Holm's correction, pooling and every pair of models, on two threads at most.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from cpbmodels.data.columns import feature_frame
from cpbmodels.data.prices import candle_columns
from cpbmodels.data.series import Series
from tasks.backtesting.judge import all_pairs
from tasks.judging import baselines
from tasks.judging.member import judge_member
from tasks.judging.pictures import forecast_png, loss_png
from tasks.judging.pool import apply_holm, judge_pools

HOUR = 3_600_000_000


def market(seed: int, rows: int = 8000) -> Series:
    random = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(random.standard_t(4, rows) * 0.005))
    opened = np.r_[100, close[:-1]]
    prices = np.column_stack([opened, np.maximum(opened, close), np.minimum(opened, close), close])
    segments = np.zeros(rows, dtype=np.int64)
    names, features, volatility = candle_columns(prices, segments)
    spans = {"train": (0, 5000), "validation": (5200, 5800), "test": (rows - 2010, rows)}
    times = np.arange(rows) * HOUR
    return Series(prices, features, names, volatility, segments, spans, f"C{seed}USDT", "1h", times)


def judge(members: int = 40, architectures: int = 4) -> dict[str, float]:
    series = [market(i) for i in range(members)]
    started, forecast_rows, scores = time.perf_counter(), 0, []
    for a in range(architectures):
        for one in series:
            train, test = one.origins("train", 1, 10), one.origins("test", 1, 10)
            known = baselines.reference(one, train, test, 10)
            forecast = SimpleNamespace(origins=test, quantiles=known * (0.9 + 0.05 * a))
            scores.append(judge_member(one, forecast, known, architecture=f"a{a}"))
            forecast_rows += known.shape[0] * known.shape[1]
    scores = apply_holm(scores)
    pools, pairs = judge_pools(scores), all_pairs(scores)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    counts = {"forecast_rows": forecast_rows, "pools": len(pools), "pairs": len(pairs)}
    return {"seconds": seconds, **counts, "rss_peak_mb": peak}


def features(rows: int = 500_000) -> dict[str, float]:
    one = market(1, rows)
    start = datetime(2000, 1, 1, tzinfo=UTC)
    times = pl.datetime_range(start, start + timedelta(hours=rows - 1), "1h", time_unit="us", eager=True)
    frame = pl.DataFrame(
        {"open_time": times, **{n: one.prices[:, i] for i, n in enumerate(("open", "high", "low", "close"))}}
    ).with_columns(volume=pl.lit(1.0))
    feature_frame(frame.head(1000), "1h")
    started = time.perf_counter()
    feature_frame(frame, "1h")
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "rows_per_s": rows / seconds}


def pictures(count: int = 50) -> dict[str, float]:
    """Return the median CPU time of a picture in a warm process, each of other data."""
    one = market(1)
    train, test = one.origins("train", 1, 10), one.origins("test", 1, 10)
    forecast = SimpleNamespace(origins=test, quantiles=baselines.reference(one, train, test, 10))
    history = [{"train_loss": 2 / (e + 1), "val_loss": 2.1 / (e + 1)} for e in range(50)]
    with TemporaryDirectory() as folder:
        forecast_png(Path(folder) / "warm.png", one, forecast)
        loss_png(Path(folder) / "warm.png", history)
        fans = [_cpu_ms(forecast_png, Path(folder) / "f.png", one, forecast, -1 - i) for i in range(count)]
        losses = [_cpu_ms(loss_png, Path(folder) / "l.png", history[i:]) for i in range(count)]
    return {"forecast_png_cpu_ms": median(fans), "loss_png_cpu_ms": median(losses)}


def _cpu_ms(call: Callable[..., None], *arguments: Any) -> float:
    started = time.process_time()
    call(*arguments)
    return (time.process_time() - started) * 1e3


PARTS = {"judge": judge, "features": features, "pictures": pictures}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = {name: part() for name, part in PARTS.items() if asked.only in (None, name)}
    if asked.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(f"{name:>10}  " + "  ".join(f"{k} {v:,.1f}" for k, v in figures.items()))


if __name__ == "__main__":
    main()
