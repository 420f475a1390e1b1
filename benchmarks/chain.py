"""What the chain costs: checking a year of it, one hourly batch, and the site that is published of it.

    python -m benchmarks.chain [--series 40] [--days 365] [--site] [--json]
    python -m benchmarks.chain --batch 40,1600 [--json]

The first makes a year of hourly forecasts (ten steps, with references) and scores of some series, one line of the chain
an hour for each, as `append` writes them (but each month's file once, not 720 times), and then times what `cpb verify`
does with it; with `--site`, what `cpb publish --site` and its verifier do. The second times `append` of one hour's
forecasts into half-full months.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks._live_record import STEPS, hourly_forecasts, walk
from schemas.forecasts import LEDGER_SCHEMA
from schemas.identity import SeriesId
from tasks.forecasting.chain import Kind, append
from tasks.forecasting.check_months import forecasts
from tasks.forecasting.lines import ORIGIN, Entry, Line, RowDigests, chain_path, line_hash
from tasks.forecasting.months import FORECASTS, LEDGER, month_bytes
from tasks.hub.site import write_site
from tasks.storage.checked_files import Asked, damages

FIRST = datetime(2023, 12, 31, 23, tzinfo=UTC)
"""The first candle opens; its forecast is the first of the year."""


def scores(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the scores of forecasts, those of one origin at once."""
    scored = pl.col("target_time").max().over("issued_at") + pl.duration(minutes=2)
    return rows.with_columns(realised_close="last_close", scored_at=scored).select(*LEDGER_SCHEMA)


def make_year(home: Path, series: list[SeriesId], days: int) -> int:
    """Write month files and one chain; return the number of rows of forecasts."""
    hourly: dict[tuple[datetime, Kind], list[Entry]] = {}
    total = 0
    for number, one in enumerate(series):
        rows = hourly_forecasts(one, FIRST, walk(24 * days, number), np.arange(24 * days))
        total += len(rows)
        for kind, tree, frame in (
            ("forecasts", FORECASTS, rows),
            ("scores", LEDGER, scores(rows)),
        ):
            months = frame.with_columns(month=pl.col("issued_at").dt.strftime("%Y-%m"))
            for (month,), part in months.partition_by("month", as_dict=True, maintain_order=True).items():
                path = one.folder(home, tree.name) / f"{month}.parquet"
                whole = part.drop("month")
                content = month_bytes(path, whole)
                digest = hashlib.sha256(content).hexdigest()
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
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
        damage = list(damages(Asked(home), forecasts))
        seconds = time.perf_counter() - began
        assert not damage, damage[0]
        return {
            "series": count, "rows": rows, "files": len(files), "files_mb": round(size / 1e6),
            "chain_mb": round(chain_path(home, "spot").stat().st_size / 1e6), "verify_s": round(seconds, 1),
        }  # fmt: skip


def time_site(count: int, days: int) -> dict[str, float]:
    """Return how long a site is written, written again unchanged, and checked by its verifier, and its size."""
    with tempfile.TemporaryDirectory() as folder:
        home, site = Path(folder, "home"), Path(folder, "site")
        rows = make_year(home, named(count), days)
        times = [time.perf_counter()]
        for step in (partial(write_site, home, "spot", site),) * 2 + (partial(check, site),):
            step()
            times.append(time.perf_counter())
        write_s, again_s, check_s = (round(float(s), 1) for s in np.diff(times))
        size = sum(path.stat().st_size for path in site.glob("*/*/*/*"))
        return {
            "series": count, "rows": rows, "site_mb": round(size / 1e6, 1), "row_bytes": round(size / rows),
            "write_s": write_s, "again_s": again_s, "check_s": check_s,
        }  # fmt: skip


def check(site: Path) -> None:
    """Run the site's verifier with the standard library alone."""
    subprocess.run(
        [sys.executable, "-I", "-S", str(site / "verify.py")], check=True, stdout=subprocess.DEVNULL
    )


def time_batch(count: int, repeats: int = 5) -> dict[str, float]:
    """Return how long one hour's forecasts of `count` series take, with 360 hours of the month there already."""
    with tempfile.TemporaryDirectory() as folder:
        home, series, close = Path(folder), named(count), walk(360 + repeats, seed=1)
        for begin in range(0, count, 100):
            some = series[begin : begin + 100]
            batch = {one: hourly_forecasts(one, FIRST, close, np.arange(360)) for one in some}
            append(home, "spot", "forecasts", batch)
        times = []
        for hour in range(repeats if count < 1000 else 1):
            batch = {one: hourly_forecasts(one, FIRST, close, np.array([360 + hour])) for one in series}
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
    parser.add_argument("--site", action="store_true", help="the published site, in place of cpb verify")
    parser.add_argument("--batch", help="numbers of series, as in 40,1600")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = (
        [time_batch(int(n)) for n in asked.batch.split(",")]
        if asked.batch
        else [(time_site if asked.site else time_verify)(asked.series, asked.days)]
    )
    for one in found:
        print(json.dumps(one) if asked.json else "  ".join(f"{name} {value}" for name, value in one.items()))


if __name__ == "__main__":
    main()
