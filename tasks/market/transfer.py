"""Getting files: downloads run ahead of parsing, but never by more than a fixed number of bytes.

Memory does not grow with the number of files. Series are checked one after another in the calling thread; while
one is checked, the months of the one before are written.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

from schemas.identity import SeriesId
from tasks.market.faults import BadFile, NotFound, SourceFault
from tasks.market.layout import SourceFile
from tasks.market.run import Run
from tasks.market.sources import Source
from tasks.market.unpack import fetch
from tasks.market.writer import WRITERS, Fetched, Writing, start_batch
from tasks.parallel import thread_pool
from tasks.progress import tell
from tasks.storage.files import DiskFull

_MAX_BATCH = 16 << 20  # bytes of one batch, zips and CSVs together
_MAX_AHEAD = 16 << 20  # bytes of all files that are on their way or waiting to be parsed
_GROWTH = 4  # a kline zip and its CSV together, as a multiple of the zip
_USUAL_SIZE = 100_000  # bytes of a zip, where the listing does not tell

Batch = tuple[SeriesId, list[SourceFile]]


def batches(series: SeriesId, files: list[SourceFile]) -> Iterator[Batch]:
    """Cut a series' files into batches of bounded size."""
    batch: list[SourceFile] = []
    for file in files:
        if batch and sum(map(_weight, batch)) + _weight(file) > _MAX_BATCH:
            yield series, batch
            batch = []
        batch.append(file)
    if batch:
        yield series, batch


def _weight(file: SourceFile) -> int:
    return (file.size if file.size >= 0 else _USUAL_SIZE) * _GROWTH


def store_all(run: Run, groups: Iterable[Iterable[Batch]], status: str = "ok") -> list[SourceFile]:
    """Fetch batches ahead of storing them, within the memory budget; return the files at fault."""
    flat = (batch for group in groups for batch in group)
    flying: deque[tuple[SeriesId, list[Future[Fetched]], int]] = deque()
    bad: list[SourceFile] = []
    weight, following = 0, next(flat, None)
    writing: Writing | None = None
    with thread_pool(WRITERS, "write", grace_s=1.5) as writers:
        while flying or following:
            while following and (not flying or weight < _MAX_AHEAD):
                series, files = following
                size = sum(map(_weight, files))
                flying.append((series, [run.pool.submit(fetch_one, run.source, f) for f in files], size))
                weight, following = weight + size, next(flat, None)
            series, futures, size = flying.popleft()
            batch = [future.result() for future in futures]
            del futures  # the bytes must go as soon as they are stored
            weight -= size
            if writing and writing.series == series:  # the checks compare with the candles just written
                bad += _finish(run, writing)
                writing = None
            started = start_batch(run.home, run.manifest, series, batch, writers, status)
            if writing:
                bad += _finish(run, writing)
            writing = started
        if writing:
            bad += _finish(run, writing)
    return bad


def _finish(run: Run, writing: Writing) -> list[SourceFile]:
    """Put a batch on record; return its files at fault."""
    try:
        outcome = writing.finish()
    except DiskFull as error:
        raise DiskFull(f"{error}; about {_left(run)} MB more are needed") from error
    run.fetched_files += len(writing.batch)
    run.notes += outcome.notes
    due = sum(len(p.fetch) for p in run.plans.values())
    tell("ingest", min(run.fetched_files, due - 0.5), due, "files", str(writing.series))
    return outcome.bad


def _left(run: Run) -> int:
    """Return the megabytes that the files planned and not yet stored will take: a part is as large as its zip."""
    sizes = [
        file.size if file.size >= 0 else _USUAL_SIZE for plan in run.plans.values() for file in plan.fetch
    ]
    return max(1, sum(sizes[run.fetched_files :]) >> 20)


def fetch_one(source: Source, file: SourceFile) -> Fetched:
    """Fetch a file; whatever goes wrong is part of the answer."""
    try:
        csv, sha, verified, payload = fetch(source, file)
        return Fetched(file, csv, sha, verified, payload)
    except NotFound:
        return Fetched(file, fault=SourceFault("listed, but not there (404)"))
    except (BadFile, SourceFault) as fault:
        return Fetched(file, fault=fault)
