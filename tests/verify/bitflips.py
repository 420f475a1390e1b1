"""Bit rot: what does one flipped bit in a stored file change, and who names the file?

One random bit at a time is flipped in each kind of file of the home of `stored_home`. After each flip `cpb verify`'s
check of that kind runs, then the reading that a command does: candles as for features, features as a trainer reads
them, a champion as `cpb forecast` uses it, a fleet as the repeated `cpb train-all` takes it up, forecasts as the page
shows them.

    silent    the reading gave something else than before, and no error and no line in the log named the file: must be 0
    reading   the reading named the file (it refused it, or made it again)
    verify    `cpb verify` named the file
    harmless  the reading gave the same as before: padding, statistics, blanks in JSON
"""

import logging
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from live_record import read
from stored_home import MARKET, SERIES, SPAN
from verifying import verify_champions, verify_features, verify_fleets, verify_forecasts, verify_market

import cpbmodels
from schemas.errors import CpbError
from schemas.handover import Damage, SeriesRecord, ShardResult
from tasks.market.klines import read_klines
from tasks.signals.feature_files import newest_series, read_features, write_features
from tasks.storage.model_folder import CONFIG, WEIGHTS
from tasks.storage.records import find_record, read_npz, warn_once
from tasks.tracking.registry import champions
from tasks.training.shard import JOB, RESULT, prepare, read_job


@dataclass(frozen=True)
class Kind:
    """A kind of file: which ones there are, how a command reads them, and how `cpb verify` checks them.

    `read` returns something that is equal before and after where nothing changed. `folders` are put back after it.
    """

    files: Callable[[], list[Path]]
    read: Callable[[], Any]
    verify: Callable[..., Iterator[Damage]]
    folders: tuple[Path, ...]


@dataclass
class Tally:
    """What became of the flips of one kind."""

    flips: int = 0
    silent: int = 0
    reading: int = 0
    verify: int = 0
    harmless: int = 0


def kinds(home: Path) -> dict[str, Kind]:
    """Return the kinds of files in the home."""
    root = home / MARKET
    record = write_features(home, SERIES, **SPAN)
    (champion,) = (c for c in champions(market=MARKET) if c.series == SERIES)
    fleet = next(p for p in (root / "fleets").iterdir() if read_job(p).architecture == champion.architecture)
    member = fleet / "members" / SERIES.name
    job = read_job(fleet)

    def of(tree: str, pattern: str = "*.parquet") -> Callable[[], list[Path]]:
        return lambda: sorted(SERIES.folder(home, tree).glob(pattern))

    def candles() -> pl.DataFrame:
        return read_klines(home, SERIES)

    def features() -> Any:
        # As a trainer reads them, with the record that the step before handed on.
        series = read_features(home, record)
        return series.prices, series.features, series.volatility, series.times

    def feature_step() -> Any:
        again = write_features(home, SERIES, **SPAN)
        return again, features()

    def forecast() -> Any:
        (served,) = (c for c in champions(market=MARKET) if c.series == SERIES)
        served.check()
        made = cpbmodels.load(served.folder).forecast(newest_series(home, SERIES, as_of=SPAN["as_of"]))
        return (
            served.model_version,
            served.architecture,
            [made.close[q] for q in cpbmodels.QUANTILES],
            made.candle,
        )

    def taken_up() -> Any:
        prepare(root, job)
        result = find_record(fleet / RESULT, ShardResult, of=fleet.name)
        if result is None:
            return None
        model = cpbmodels.load(member / "model")
        series = newest_series(home, SERIES, as_of=SPAN["as_of"])
        made = model.forecast(series)
        return result, read_job(fleet), [made.close[q] for q in cpbmodels.QUANTILES]

    def records() -> Any:
        beside = (home / record.path).with_suffix(".json")
        return taken_up(), find_record(beside, SeriesRecord, of=record.path), read(home, SERIES)

    def verify_all_records(home: Path, market: str) -> Iterator[Damage]:
        for verify in (verify_fleets, verify_features, verify_forecasts):
            yield from verify(home, market)

    def record_files() -> list[Path]:
        return [fleet / JOB, fleet / RESULT, *of("features", "*.json")()]

    (score,) = member.glob("score-*.npz")
    klines, computed, forecasts = (SERIES.folder(home, tree) for tree in ("klines", "features", "forecasts"))
    model, registered = member / "model", champion.folder
    return {
        "klines": Kind(of("klines"), candles, verify_market, (klines,)),
        "features of a trainer": Kind(of("features"), features, verify_features, (computed,)),
        "features of the step": Kind(of("features"), feature_step, verify_features, (computed,)),
        "weights of champions": Kind(
            lambda: [registered / WEIGHTS], forecast, verify_champions, (registered,)
        ),
        "config of champions": Kind(lambda: [registered / CONFIG], forecast, verify_champions, (registered,)),
        "weights of fleets": Kind(lambda: [model / WEIGHTS], taken_up, verify_fleets, (fleet,)),
        "config of fleets": Kind(lambda: [model / CONFIG], taken_up, verify_fleets, (fleet,)),
        "scores of fleets": Kind(lambda: [score], lambda: read_npz(score), verify_fleets, (member,)),
        "forecasts": Kind(of("forecasts"), lambda: read(home, SERIES), verify_forecasts, (forecasts,)),
        "records": Kind(record_files, records, verify_all_records, (fleet, computed, forecasts)),
    }


def flip(path: Path, chance: random.Random) -> None:
    """Flip one random bit of a file."""
    content = bytearray(path.read_bytes())
    bit = chance.randrange(len(content) * 8)
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def try_kind(home: Path, kind: Kind, flips: int, chance: random.Random) -> Tally:
    """Flip bits of one kind of file, one at a time, and tell what became of each."""
    tally = Tally()
    before = kind.read()
    for _ in range(flips):
        path = chance.choice(kind.files())
        with _restored(*kind.folders):
            flip(path, chance)
            place = path.relative_to(home).as_posix() if path.is_relative_to(home) else path.as_posix()
            tally.verify += place in {damage.path for damage in kind.verify(home, MARKET)}
            _forget_checks()
            with _logged() as lines:
                try:
                    after = kind.read()
                except CpbError as error:
                    after, lines = None, [*lines, str(error)]
            named = any(path.stem in line or path.name in line for line in lines)
            same = after is not None and _equal(before, after)
            tally.flips += 1
            tally.reading += named
            tally.silent += not same and not named
            tally.harmless += same and not named
    return tally


def _forget_checks() -> None:
    """Read like a process of its own, which checks every file and says each thing once."""
    warn_once.cache_clear()


@contextmanager
def _restored(*folders: Path) -> Iterator[None]:
    """Put folders back as they were, times included, whatever happens to their files in the block."""
    with tempfile.TemporaryDirectory() as kept:
        for number, folder in enumerate(folders):
            shutil.copytree(folder, Path(kept) / str(number))
        try:
            yield
        finally:
            for number, folder in enumerate(folders):
                shutil.rmtree(folder)
                shutil.copytree(Path(kept) / str(number), folder)


@contextmanager
def _logged() -> Iterator[list[str]]:
    """Yield the sentences of cpb's log in the block; they are not shown."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda entry: lines.append(entry.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("cpb")
    told, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)
        log.propagate = told


def _equal(before: Any, after: Any) -> bool:
    if type(before) is not type(after):
        return False
    if isinstance(before, pl.DataFrame):
        return before.equals(after)
    if isinstance(before, np.ndarray):
        return np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
    if isinstance(before, tuple | list):
        return len(before) == len(after) and all(_equal(a, b) for a, b in zip(before, after, strict=True))
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(_equal(before[k], after[k]) for k in before)
    return bool(before == after)
