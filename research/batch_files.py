"""Forecasts as a file per series and month, or as a file per batch: `python -m research.batch_files`.

Writes a month of hourly forecasts of made-up quantiles both ways (series x 720 hours x 10 steps x 9 quantiles) and
times how long it takes to read one series, as the page and the API do; prints medians, p99 and the space on the disk.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

HOURS, STEPS, QUANTILES = 720, 10, 9
FIRST = datetime(2025, 5, 1, tzinfo=UTC)


def batch(hour: int, series: int, rng: np.random.Generator) -> pl.DataFrame:
    """Return the rows of one hour: series x steps, sorted by series."""
    rows = series * STEPS
    return pl.DataFrame(
        {
            "series": np.repeat([f"C{i:03d}USDT/1h" for i in range(series)], STEPS),
            "issued_at": [FIRST + timedelta(hours=hour)] * rows,
            "step": np.tile(np.arange(1, STEPS + 1), series),
            **{f"q{i}": rng.random(rows) for i in range(QUANTILES)},
        }
    )


def timed(read: Callable[[], pl.DataFrame], repeats: int) -> str:
    """Return median and p99 of a reading, in ms."""
    took = []
    for _ in range(repeats):
        start = time.perf_counter()
        read()
        took.append((time.perf_counter() - start) * 1e3)
    return f"{np.median(took):.1f} ms, p99 {np.percentile(took, 99):.1f} ms"


def main(argv: list[str] | None = None) -> None:
    """Print both ways side by side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=50)
    asked = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    batches = [batch(hour, asked.series, rng) for hour in range(HOURS)]
    wanted = pl.col("series") == batches[0]["series"][0]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{hour:04d}.parquet") for hour in range(HOURS)]
        for file, rows in zip(files, batches, strict=True):
            rows.write_parquet(
                file, row_group_size=STEPS
            )  # a row group per series: a reader skips the others
        month = Path(folder, "month.parquet")
        pl.concat(batches).filter(wanted).write_parquet(month)
        space = sum(file.stat().st_size for file in files) / 1e6
        print(f"a file per series and month: {timed(lambda: pl.read_parquet(month), asked.repeats)}; "
              f"{month.stat().st_size * asked.series / 1e6:.0f} MB for {asked.series} series")  # fmt: skip
        found = timed(lambda: pl.scan_parquet(files).filter(wanted).collect(), asked.repeats)
        print(f"a file per batch:            {found}; {space:.0f} MB")


if __name__ == "__main__":
    main()
