"""Fetches files: downloads run ahead of parsing, within a fixed memory budget.

Memory does not grow with the number of files. Series are checked one after another in the calling thread; during a
check, the previous series' months are written. A zip is inflated only after its directory has been checked.
"""

import hashlib
import io
import re
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

from schemas.identity import SeriesId
from tasks.market.client import HttpSource
from tasks.market.faults import BadFile, NotFound, SourceFault
from tasks.market.layout import SourceFile
from tasks.market.run import Run
from tasks.market.sources import FolderSource, Source
from tasks.market.tables import TableSource
from tasks.market.writer import WRITERS, Fetched, Writing, start_batch
from tasks.running.parallel import thread_pool
from tasks.running.progress import tell
from tasks.storage.files import DiskFull

_MAX_BATCH = 16 << 20  # bytes per batch, zips and CSVs together
_MAX_AHEAD = 16 << 20  # bytes of all files being downloaded or waiting to be parsed
_GROWTH = 4  # a kline zip and its CSV together, as a multiple of the zip
_USUAL_SIZE = 100_000  # bytes of a zip, if not in the listing


MAX_CSV = 64 << 20
MAX_RATIO = 50  # candles deflate about 3 times; a zip bomb a thousand times
_MAX_ROW = 400  # bytes of a candle's line: a cap for intervals whose months exceed MAX_CSV
_SHA = re.compile(r"(?<!\w)[0-9a-fA-F]{64}(?!\w)")
_SMALL = 1 << 20  # bytes that are accepted regardless of the announced size
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MD5 = re.compile(r"[0-9a-f]{32}")

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
    """Fetch batches ahead of storing them, within the memory budget; return the faulty files."""
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
            del futures  # free the bytes as soon as they are stored
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
    """Record a batch; return its faulty files."""
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
    """Return the megabytes needed for planned files not yet stored: a part is as large as its zip."""
    sizes = [
        file.size if file.size >= 0 else _USUAL_SIZE for plan in run.plans.values() for file in plan.fetch
    ]
    return max(1, sum(sizes[run.fetched_files :]) >> 20)


def fetch_one(source: Source, file: SourceFile) -> Fetched:
    """Fetch a file; an error is returned in `fault`."""
    try:
        return fetch(source, file)
    except NotFound:
        return Fetched(file, fault=SourceFault("listed, but not found (404)"))
    except (BadFile, SourceFault) as fault:
        return Fetched(file, fault=fault)


def fetch(source: Source, file: SourceFile, tries: int = 3) -> Fetched:
    """Return a file as downloaded, with its CSV.

    A month of a user's table has neither zip nor CHECKSUM. A file that fails is fetched again together with its
    CHECKSUM: either may just have been replaced.

    Raises:
        BadFile: the file failed every time; SourceFault: it could not be fetched.
    """
    if isinstance(source, TableSource):
        csv = source.csv(file)
        return Fetched(file, csv, hashlib.sha256(csv).hexdigest())
    for attempt in range(tries):
        try:
            expected = _published_sha(source, file)
            payload = source.get(file.key, max(_SMALL, 2 * file.size if file.size >= 0 else _cap(file)))
            return Fetched(file, *open_zip(payload, file, expected), payload)
        except BadFile:
            if attempt == tries - 1:
                raise
    raise AssertionError("unreachable: tries is at least 1")


def open_zip(payload: bytes, file: SourceFile, expected: str | None) -> tuple[bytes, str, bool]:
    """Return `(csv, sha256, verified)` of a zip; `expected` is the published sha256, None without one."""
    if not payload.startswith(b"PK"):
        kind = "HTML error page" if payload.lstrip()[:1] == b"<" else "other bytes" if payload else "empty"
        raise BadFile(f"not a zip ({kind})", payload)
    sha = hashlib.sha256(payload).hexdigest()
    if expected is not None and sha != expected:
        raise BadFile(f"checksum mismatch (expected {expected[:4]}…, got {sha[:4]}…)", payload)
    if file.size >= 0 and len(payload) != file.size:
        raise BadFile(f"wrong length ({len(payload)} bytes, the listing states {file.size})", payload)
    if expected is None and _MD5.fullmatch(file.etag):
        md5 = hashlib.md5(payload, usedforsecurity=False).hexdigest()
        if md5 != file.etag:
            raise BadFile("no CHECKSUM published and the ETag is of other bytes", payload)
    try:
        return _inflate(payload, file), sha, expected is not None
    except (BadFile, MemoryError):
        raise
    except Exception as error:  # zipfile raises many types for damage, including struct.error and OSError
        raise BadFile(f"damaged zip ({str(error)[:120] or type(error).__name__})", payload) from error


def _inflate(payload: bytes, file: SourceFile) -> bytes:
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        if names != [file.member]:
            shown = ", ".join(repr(n) for n in names[:3]) or "nothing"
            raise BadFile(f"must hold only {file.member!r}, holds {shown}", payload)
        if members[0].compress_type not in _PLAIN or members[0].flag_bits & 1:
            raise BadFile("is encrypted or not deflated, as Binance's zips are", payload)
        cap = _cap(file)
        size, packed = members[0].file_size, max(1, members[0].compress_size)
        if size > cap:
            raise BadFile(f"would inflate to {size >> 20} MB, more than {cap >> 20} MB", payload)
        if size > _SMALL and size / packed > MAX_RATIO:
            raise BadFile(f"would inflate {size // packed} times, more than {MAX_RATIO} times", payload)
        return archive.read(members[0])  # reads at most the declared size, then checks the CRC


def _cap(file: SourceFile) -> int:
    """Return the maximum size of a file's CSV in bytes."""
    return max(MAX_CSV, file.rows * _MAX_ROW)


def _published_sha(source: HttpSource | FolderSource, file: SourceFile) -> str | None:
    """Return the sha256 of the CHECKSUM file, None if none is published.

    Of several lines the line with the file's name is used; a lone hash is taken as the file's.
    """
    try:
        body = source.get(f"{file.key}.CHECKSUM", _SMALL)
    except NotFound:
        return None
    lines = body.decode("ascii", "replace").splitlines()
    name = file.key.rsplit("/", 1)[-1]
    hashes = [h for line in [t for t in lines if name in t] or lines for h in _SHA.findall(line)]
    if len(set(hashes)) != 1:
        raise BadFile("the CHECKSUM file holds no sha256", body)
    return hashes[0].lower()
