"""What the deployed flows have stored: newest candle and forecast per timeframe, and the disk space in use."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from flows.deploy.project import ROOT, prefect_home, state_folder
from schemas.identity import SeriesId, stored_series
from schemas.universe import INTERVAL_SECONDS

MIN_FREE_BYTES = 1_000_000_000


@dataclass(frozen=True)
class Newest:
    """The newest of all series of one market's timeframe. Both are ends of candles, UTC; None: there is none yet."""

    market: str
    timeframe: str
    candle: datetime | None
    forecast: datetime | None


@dataclass(frozen=True)
class Disk:
    """Bytes in use, by folder, and bytes free where the store lies."""

    used: dict[str, int]
    free: int


def newest(home: Path) -> tuple[list[Newest], list[str]]:
    """Return the newest data of each market and timeframe, and a sentence per file that cannot be read."""
    damaged: list[str] = []
    candles: dict[tuple[str, str], datetime] = {}
    forecasts: dict[tuple[str, str], datetime] = {}
    for tree, column, found in (("klines", "open_time", candles), ("provisional", "open_time", candles),
                                ("forecasts", "issued_at", forecasts)):  # fmt: skip
        for series in stored_series(home, tree):
            time = _newest_of(series.folder(home, tree), column, damaged)
            if time is None:
                continue
            if column == "open_time":
                time += timedelta(seconds=INTERVAL_SECONDS.get(series.timeframe, 0))
            key = _key(series)
            found[key] = max(time, found.get(key, time))
    keys = sorted(candles.keys() | forecasts.keys())
    return [Newest(*key, candles.get(key), forecasts.get(key)) for key in keys], damaged


def disk(home: Path) -> Disk:
    """Return the disk space that the deployment uses."""
    folders = {"store": home, "runs": ROOT / "mlruns", "prefect": prefect_home(), "logs": state_folder()}
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    return Disk(
        {name: sum(_sizes(folder)) for name, folder in folders.items()}, shutil.disk_usage(place).free
    )


def _key(series: SeriesId) -> tuple[str, str]:
    return series.market, series.timeframe


def _newest_of(folder: Path, column: str, damaged: list[str]) -> datetime | None:
    """Return the largest value of a time column in a series' last file."""
    import polars as pl

    files = sorted(folder.glob("*.parquet"))
    if not files:
        return None
    try:
        frame = pl.read_parquet(files[-1], columns=[column], glob=False, hive_partitioning=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        damaged.append(f"{files[-1]} cannot be read ({str(error).splitlines()[0][:100]}); run `cpb verify`")
        return None
    time = frame[column].max()
    return time if isinstance(time, datetime) else None


def _sizes(folder: Path) -> Iterator[int]:
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                yield (Path(path) / name).lstat().st_size
            except OSError:  # removed meanwhile, as temporary files are
                continue
