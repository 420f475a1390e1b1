"""The checks of what is fetched or computed again: candles, features, trained fleets."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from cpbmodels.data.series import instant
from schemas.handover import SeriesRecord, ShardJob, ShardResult
from schemas.identity import SeriesId, market_home, options_of, stored_series
from tasks.market import klines
from tasks.market.layout import period_bounds
from tasks.market.manifest import MANIFEST
from tasks.market.manifest_file import intact_manifest
from tasks.market.store_files import writer_lock
from tasks.signals.feature_files import FEATURE_FILE
from tasks.storage.records import digest_fault
from tasks.storage.sealed import SEAL, Seal, sealed_fault
from tasks.training.progress import progress_fault
from tasks.training.shard import JOB, LOG, PROGRESS, RESULT, is_training, shard_folders
from tasks.verify.checks import Check, intact_record, is_database, record_check, remove_command, series_in


def candles(home: Path, market: str) -> Iterator[Check]:
    """Yield the manifest of a market, its months, and its off-grid and provisional candles.

    Raises:
        BusyError: another process is writing in the market's home.
    """
    root = market_home(home, market)
    path, stored = root / MANIFEST, series_in(home, "klines", market)
    beside = [series for series in stored_series(home, "klines") if market_home(home, series.market) == root]
    no_access = not os.access(root, os.W_OK)  # then there are no writers
    # Opened to write, SQLite makes files beside the manifest, which a full disk refuses. Only after a kill it has to:
    # what its log holds is not in the file yet.
    read_only = no_access or not path.with_name(f"{path.name}-wal").exists()
    if not beside and not is_database(path):
        return  # without any candles and in another format it may be a person's
    # Under the writer's lock: between a month and its row in the manifest the two differ, which is no damage.
    with (
        nullcontext() if no_access else writer_lock(root),
        intact_manifest(path, read_only=read_only) as manifest,
    ):
        named = stored or [series for series in beside if series.market == beside[0].market]
        yield (
            path,
            lambda: manifest.fault,
            f"cpb ingest {options_of(named)}" if named else remove_command(path),
        )
        for series in sorted({*stored, *(s for s in manifest.series() if s.market == market)}):
            parts = manifest.parts(series)
            for month in sorted({*parts, *(file.stem for file in klines.part_paths(home, series))}):
                file = klines.part_path(home, series, month)
                yield file, partial(klines.damage_of, file, parts.get(month)), _fetch(series, month)
            for file in series.folder(home, "offgrid").glob("????-??.parquet"):
                yield file, partial(klines.damage_of, file), _fetch(series, file.stem)
            if (tail := series.folder(home, "provisional") / "tail.parquet").exists():
                yield tail, partial(klines.damage_of, tail), f"{klines.ingest_command(series)} --tail"


def _fetch(series: SeriesId, month: str) -> str:
    """Return the command that fetches a month again, and no candle after it."""
    end = instant(period_bounds(month)[1])
    return f"{klines.ingest_command(series)} --since {month} --as-of {end:%Y-%m-%d}"


def features(home: Path, market: str) -> Iterator[Check]:
    """Yield stored features and their records, which the next training computes again.

    A feature file without a record is not damage: a run was stopped between the two, and the next run writes both.
    """
    for series in series_in(home, "features", market):
        for path in sorted(series.folder(home, "features").glob("*.json")):
            data = path.with_suffix(".parquet")
            if not FEATURE_FILE.fullmatch(data.name):
                continue
            command = remove_command(data, path)
            yield record_check(path, SeriesRecord, command)
            if record := intact_record(path, SeriesRecord):
                yield data, partial(digest_fault, data, record.file_digest), command


def fleets(home: Path, market: str) -> Iterator[Check]:
    """Yield a market's fleets: records, models, and files added by judging; a fleet in training is left out."""
    for folder in shard_folders(market_home(home, market)):
        job = intact_record(folder / JOB, ShardJob)
        result = intact_record(folder / RESULT, ShardResult)
        # A damaged job does not tell its market: the folder is then reported with the market that is checked.
        of = job.members[0].model.series.market if job else market
        is_ours = job or result or (folder / LOG).exists()
        if not is_ours or of != market or is_training(folder):
            continue
        command = remove_command(folder / RESULT)  # the next training makes it anew
        whole = remove_command(folder / JOB, folder / RESULT)  # no other training writes that job again
        if result and not (folder / JOB).exists():
            yield folder / JOB, lambda: "it is missing", whole
        yield record_check(folder / JOB, ShardJob, whole)
        yield record_check(folder / RESULT, ShardResult, command)
        if (progress := folder / PROGRESS).exists():
            yield progress, partial(progress_fault, progress), remove_command(progress)
        for member in result.members if result else ():
            place = folder / "members" / member.name
            # Without it the files are not known, and the next run trains the shard again.
            if not (place / SEAL).exists():
                yield place / SEAL, lambda: "it is missing", command
            yield record_check(place / SEAL, Seal, command)
            if seal := intact_record(place / SEAL, Seal):
                for name, digest in seal.files.items():
                    yield place / name, partial(sealed_fault, place, name, digest), command
