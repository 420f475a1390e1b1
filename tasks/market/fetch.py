"""Fetches a file and unzips it: only after its checksum and its directory have been checked."""

import hashlib
import io
import re
import zipfile
from dataclasses import dataclass, field

from tasks.market.client import (
    BadFile,
    HttpSource,
    NotFound,
    SourceFault,
)
from tasks.market.folder import FolderSource
from tasks.market.layout import (
    CHECKSUM,
    SourceFile,
)
from tasks.market.sources import Source
from tasks.market.tables import TableSource

MAX_CSV = 64 << 20
MAX_RATIO = 50  # candles deflate about 3 times; a zip bomb a thousand times
_MAX_ROW = 400  # bytes of a candle's line: a cap for intervals whose months exceed MAX_CSV
_SHA = re.compile(r"(?<!\w)[0-9a-fA-F]{64}(?!\w)")
_SMALL = 1 << 20  # bytes that are accepted regardless of the announced size
_TRIES = 3  # of a bad file
_MD5 = re.compile(r"[0-9a-f]{32}")


@dataclass
class Fetched:
    """A downloaded file: its CSV with notes on irregularities of its format, or its fault."""

    file: SourceFile
    csv: bytes = b""
    sha256: str = ""
    verified: bool = True
    payload: bytes = b""
    fault: BadFile | SourceFault | None = None
    notes: list[str] = field(default_factory=list)
    lines: int = 0  # candle lines, counted by `tasks.market.parser.trim`


def fetch(source: Source, file: SourceFile) -> Fetched:
    """Return a file as downloaded, with its CSV, or with its fault.

    A month of a user's table has neither zip nor CHECKSUM. A bad file is fetched again together with its CHECKSUM:
    either may just have been replaced.
    """
    if isinstance(source, TableSource):
        csv = source.csv(file)
        return Fetched(file, csv, hashlib.sha256(csv).hexdigest())
    for _ in range(_TRIES):
        try:
            if isinstance(source, FolderSource) and source.is_unzipped(file.key):
                csv = source.get(file.key, _cap(file))
                return Fetched(file, csv, hashlib.sha256(csv).hexdigest(), verified=False, payload=csv)
            expected = _published_sha(source, file)
            announced = max(_SMALL, 2 * file.size) if file.size >= 0 else _cap(file)
            payload = source.get(file.key, min(announced, _cap(file)))
            return Fetched(file, *open_zip(payload, file, expected), payload)
        except BadFile as error:
            bad = Fetched(file, fault=error)
        except NotFound:
            return Fetched(file, fault=SourceFault("listed, but not found (404)"))
        except SourceFault as error:
            return Fetched(file, fault=error)
    return bad


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
    md5 = hashlib.md5(payload, usedforsecurity=False).hexdigest() if expected is None else ""
    if md5 and _MD5.fullmatch(file.etag) and md5 != file.etag:
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
            shown = ", ".join(map(repr, names[:3])) or "nothing"
            raise BadFile(f"must hold only {file.member!r}, holds {shown}", payload)
        size, packed, cap = members[0].file_size, max(1, members[0].compress_size), _cap(file)
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
        body = source.get(f"{file.key}{CHECKSUM}", _SMALL)
    except NotFound:
        return None
    lines = body.decode("ascii", "replace").splitlines()
    name = file.key.rsplit("/", 1)[-1]
    hashes = {h.lower() for line in [t for t in lines if name in t] or lines for h in _SHA.findall(line)}
    if len(hashes) != 1:
        raise BadFile("the CHECKSUM file holds no sha256", body)
    return str(hashes.pop())
