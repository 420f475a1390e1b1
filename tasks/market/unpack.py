"""From a downloaded zip to its CSV: nothing is inflated before its directory has been checked."""

import hashlib
import io
import re
import zipfile

from tasks.market.faults import BadFile, NotFound
from tasks.market.layout import SourceFile
from tasks.market.sources import Source

MAX_CSV = 64 << 20
MAX_RATIO = 50  # candles deflate about 3 times; a zip bomb a thousand times
_MAX_ROW = 400  # bytes of a candle's line: a cap for the intervals whose months exceed MAX_CSV
_SHA = re.compile(r"(?<!\w)[0-9a-fA-F]{64}(?!\w)")
_SMALL = 1 << 20  # bytes that are accepted whatever was announced
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MD5 = re.compile(r"[0-9a-f]{32}")


def fetch(source: Source, file: SourceFile, tries: int = 3) -> tuple[bytes, str, bool, bytes]:
    """Return a file's CSV, its sha256, whether a published CHECKSUM confirmed it, and the zip itself.

    A file that fails is fetched again together with its CHECKSUM: one of them may just have been replaced.

    Raises:
        BadFile: it failed every time; SourceFault: it could not be fetched at all.
    """
    for attempt in range(tries):
        try:
            expected = _published_sha(source, file)
            payload = source.get(file.key, max(_SMALL, 2 * file.size if file.size >= 0 else _cap(file)))
            return *open_zip(payload, file, expected), payload
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
        raise BadFile(f"wrong length ({len(payload)} bytes, the listing says {file.size})", payload)
    if expected is None and _MD5.fullmatch(file.etag):
        md5 = hashlib.md5(payload, usedforsecurity=False).hexdigest()
        if md5 != file.etag:
            raise BadFile("no CHECKSUM published and the ETag is of other bytes", payload)
    try:
        return _inflate(payload, file), sha, expected is not None
    except (BadFile, MemoryError):
        raise
    except Exception as error:  # zipfile raises a dozen kinds for damage, struct.error and OSError among them
        raise BadFile(f"damaged zip ({str(error)[:120] or type(error).__name__})", payload) from error


def _inflate(payload: bytes, file: SourceFile) -> bytes:
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        if names != [file.member]:
            shown = ", ".join(repr(n) for n in names[:3]) or "nothing"
            raise BadFile(f"must hold {file.member!r} alone, holds {shown}", payload)
        if members[0].compress_type not in _PLAIN or members[0].flag_bits & 1:
            raise BadFile("is encrypted or not deflated, as Binance's zips are", payload)
        cap = _cap(file)
        size, packed = members[0].file_size, max(1, members[0].compress_size)
        if size > cap:
            raise BadFile(f"would inflate to {size >> 20} MB, more than {cap >> 20} MB", payload)
        if size > _SMALL and size / packed > MAX_RATIO:
            raise BadFile(f"would inflate {size // packed} times, more than {MAX_RATIO} times", payload)
        return archive.read(members[0])  # reads no more than the size declared above, then checks the CRC


def _cap(file: SourceFile) -> int:
    """Return how many bytes the CSV of a file may have."""
    return max(MAX_CSV, file.rows * _MAX_ROW)


def _published_sha(source: Source, file: SourceFile) -> str | None:
    """Return the sha256 of the CHECKSUM file, None if none is published.

    Of several lines the one that names the file counts; a hash alone is taken as the file's.
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
