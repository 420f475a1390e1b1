"""What the chain costs: checking a year of it, and one hourly batch.

    python -m benchmarks.chain [--series 40] [--days 365] [--json]
    python -m benchmarks.chain --batch 40,1600 [--json]

The first makes a year of hourly forecasts (ten steps, with references) and scores of some series, one line of the chain
an hour for each, as `append` writes them (but each month's file once, not 720 times), and then times what `cpb verify`
does with it. The second times `append` of one hour's forecasts into half-full months.
"""

import argparse
import io
import json
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from cpbmodels.rows import QUANTILE_COLUMNS
from schemas.forecasts import FORECAST_SCHEMA, LEDGER_SCHEMA, REFERENCE_COLUMNS
from schemas.identity import SeriesId
from tasks.forecasting.chain import Kind, append
from tasks.forecasting.index import announce, sha256
from tasks.forecasting.lines import ORIGIN, Entry, Line, RowDigests, chain_path, line_hash
from tasks.forecasting.months import FORECASTS, LEDGER
from tasks.forecasting.verify import verify

FIRST = datetime(2024, 1, 1, tzinfo=UTC)
HOUR, STEPS = timedelta(hours=1), 10


def forecasts(series: SeriesId, first: datetime, hours: int, seed: int) -> pl.DataFrame:
    """Return hourly forecasts [hours x 10 steps] of a random walk, as rows of the contract."""
    random = np.random.default_rng(seed)
    last = np.repeat(100 * np.exp(np.cumsum(random.normal(0, 0.005, hours))), STEPS)
    step = np.tile(np.arange(1, STEPS + 1), hours)
    spread = 0.005 * np.sqrt(step) * random.uniform(0.8, 1.2, len(step))
    levels = np.linspace(-1.6, 1.6, len(QUANTILE_COLUMNS))
    prices = last[:, None] * np.exp(levels * spread[:, None])
    references = last[:, None] * np.exp(levels * 0.005 * np.sqrt(step)[:, None])
    issued = pl.Series([first + i * HOUR for i in range(hours)], dtype=FORECAST_SCHEMA["issued_at"])
    middle = prices[:, 9]
    frame = pl.DataFrame({"issued_at": issued.gather(np.repeat(np.arange(hours), STEPS)), "step": step})
    return frame.with_columns(
        *(pl.Series(name, prices[:, i]) for i, name in enumerate(QUANTILE_COLUMNS)),
        *(pl.Series(name, references[:, i]) for i, name in enumerate(REFERENCE_COLUMNS)),
        symbol=pl.lit(series.symbol), timeframe=pl.lit(series.timeframe), role=pl.lit("champion"),
        model_version=pl.lit(f"{series.registered}/1"), last_close=pl.Series(last), q50_open=pl.Series(last),
        q50_high=pl.Series(np.maximum(last, middle)), q50_low=pl.Series(np.minimum(last, middle)),
        made_at=pl.col("issued_at") + pl.duration(minutes=2),
        target_time=pl.col("issued_at") + pl.duration(hours=pl.col("step")),
    ).select(pl.col(name).cast(kind) for name, kind in FORECAST_SCHEMA.items())  # fmt: skip


def scores(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the scores of forecasts, those of one origin at once."""
    scored = pl.col("target_time").max().over("issued_at") + pl.duration(minutes=2)
    return rows.with_columns(realised_close="last_close", scored_at=scored).select(*LEDGER_SCHEMA)


def make_year(home: Path, series: list[SeriesId], days: int) -> int:
    """Write month files, their records of digests and one chain; return the number of rows of forecasts."""
    hourly: dict[tuple[datetime, Kind], list[Entry]] = {}
    total = 0
    for number, one in enumerate(series):
        rows = forecasts(one, FIRST, 24 * days, number)
        total += len(rows)
        for kind, tree, frame in (
            ("forecasts", FORECASTS, rows),
            ("scores", LEDGER, scores(rows)),
        ):
            months = frame.with_columns(month=pl.col("issued_at").dt.strftime("%Y-%m"))
            for (month,), part in months.partition_by("month", as_dict=True, maintain_order=True).items():
                path = one.folder(home, tree.name) / f"{month}.parquet"
                buffer = io.BytesIO()
                whole = part.drop("month")
                whole.write_parquet(buffer, compression="zstd")
                digest = sha256(buffer.getvalue())
                path.parent.mkdir(parents=True, exist_ok=True)
                announce(path, digest)
                path.write_bytes(buffer.getvalue())
                digests, file = RowDigests(whole), path.relative_to(home).as_posix()
                for start in range(0, len(whole), STEPS):
                    entry = Entry(file, STEPS, digests.of(start, start + STEPS), digest)
                    hourly.setdefault((whole["issued_at"][start], kind), []).append(entry)
    previous = ORIGIN
    with chain_path(home, "spot").open("wb") as file:
        for line, ((moment, tree), entries) in enumerate(
            sorted(hourly.items(), key=lambda item: item[0][0]), 1
        ):
            kind = "forecasts" if tree is FORECASTS else "scores"
            raw = Line(line, moment.isoformat(), kind, tuple(entries), previous).encode()
            file.write(raw)
            previous = line_hash(raw)
    return total


def named(count: int) -> list[SeriesId]:
    """Return some series."""
    return [SeriesId("spot", f"C{number:04d}USDT", "1h") for number in range(count)]


def time_verify(count: int, days: int) -> dict[str, float]:
    """Return how long a year is checked, and its size."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        rows = make_year(home, named(count), days)
        files = list(home.rglob("*.parquet"))
        size = sum(path.stat().st_size for path in files)
        began = time.perf_counter()
        damage = list(verify(home, "spot"))
        seconds = time.perf_counter() - began
        assert not damage, damage[0]
        chain = chain_path(home, "spot").stat().st_size
        return {
            "series": count, "rows": rows, "files": len(files), "files_mb": round(size / 1e6),
            "chain_mb": round(chain / 1e6), "verify_s": round(seconds, 1),
        }  # fmt: skip


def time_batch(count: int, repeats: int = 5) -> dict[str, float]:
    """Return how long one hour's forecasts of `count` series take, with 360 hours of the month there already."""
    with tempfile.TemporaryDirectory() as folder:
        home, series = Path(folder), named(count)
        for begin in range(0, count, 100):
            batch = {one: forecasts(one, FIRST, 360, i) for i, one in enumerate(series[begin : begin + 100])}
            append(home, "spot", "forecasts", batch)
        times = []
        for hour in range(repeats if count < 1000 else 1):
            batch = {one: forecasts(one, FIRST + (360 + hour) * HOUR, 1, i) for i, one in enumerate(series)}
            began = time.perf_counter()
            done = append(home, "spot", "forecasts", batch)
            times.append(time.perf_counter() - began)
            assert set(done.values()) == {STEPS}, done
        return {"series": count, "batch_s": round(float(np.median(times)), 2)}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="What the chain costs.")
    parser.add_argument("--series", type=int, default=40)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--batch", help="numbers of series, as in 40,1600")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = (
        [time_batch(int(n)) for n in asked.batch.split(",")]
        if asked.batch
        else [time_verify(asked.series, asked.days)]
    )
    for one in found:
        print(json.dumps(one) if asked.json else "  ".join(f"{name} {value}" for name, value in one.items()))


if __name__ == "__main__":
    main()
