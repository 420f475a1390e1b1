"""Files that another person may have written, or put in the place of one: regular ones alone, up to a bound.

A named pipe would never end, a device has effects when it is opened, and a file of any size fills the memory. Each
refusal is an OSError whose `strerror` is the reason, as those of the system are.
"""

import errno
import io
import os
import stat
import zlib
from pathlib import Path

MAX_RATIO, SMALL = 200, 64 << 20
"""Tables of candles deflate 3 to 30 times; a file that inflates more than 200 times, and to over 64 MiB, is a bomb."""
MAX_FILE = 4 << 30  # bytes: more than any file of a model, a table or a home
_CHUNK = 1 << 20


def open_regular(
    path: str | Path, max_bytes: int = MAX_FILE, *, folder: int | None = None
) -> io.BufferedReader:
    """Open a regular file of at most `max_bytes` for reading; symbolic links are followed.

    Args:
        folder: descriptor of the open folder to which a relative path refers.

    Raises:
        OSError: as `open`; IsADirectoryError; or it is a pipe, a socket or a device, or larger.
    """
    _check(
        path, os.stat(path, dir_fd=folder), max_bytes
    )  # before it is opened: some devices act when they are
    flags = (getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY"))
    handle = os.open(path, os.O_RDONLY | sum(flags), dir_fd=folder)
    try:
        _check(path, os.fstat(handle), max_bytes)  # another may have taken its place meanwhile
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str | Path, max_bytes: int = MAX_FILE, *, folder: int | None = None) -> bytes:
    """The bytes of a regular file of at most `max_bytes`, also if it grows meanwhile; as `open_regular`."""
    with open_regular(path, max_bytes, folder=folder) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _too_large(path, max_bytes)
    return content


def gunzip(content: bytes, max_bytes: int) -> bytes:
    """The content of gzip's members, one after another.

    Raises:
        OSError: it inflates to more than `max_bytes`, or more than `MAX_RATIO` times.
        EOFError, zlib.error: it is cut off, or no gzip.
    """
    most = min(max_bytes, max(SMALL, MAX_RATIO * len(content)))
    parts: list[bytes] = []
    size, rest = 0, content
    while rest:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            part = member.decompress(rest, _CHUNK)
            rest = member.unconsumed_tail
            size += len(part)
            parts.append(part)
            if size > most:
                raise OSError(errno.EFBIG, f"it inflates to more than {most >> 20:,} MiB")
            if not part and not rest and not member.eof:
                raise EOFError("the compressed file ends before its end-of-stream marker")
        rest = member.unused_data.lstrip(b"\0")  # gzip pads with zeros
    return b"".join(parts)


def _check(path: str | Path, status: os.stat_result, max_bytes: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > max_bytes:
        raise _too_large(path, max_bytes)


def _too_large(path: str | Path, max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than the limit of {max_bytes:,} bytes", str(path))
