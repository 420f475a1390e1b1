"""The record published in `HOME/hub`, as the witness of what was stored: whether the stored chain goes on from it.

The packaged folder holds the chain, and the rows as JSON lines, as they were at the last `cpb publish` or night. A
stored chain that lacks the last line there was lost, cut off or begun anew: then nothing is stored behind it, and the
published record stays as it is, since it may be the last copy. `tasks.hub.restore` brings it back.
"""

import gzip
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from cpbmodels.files import open_regular
from schemas.errors import DamagedError
from schemas.identity import market_home, stored_option, tree_of
from tasks.forecasting.lines import (
    MONTH_FILE,
    ORIGIN,
    Chain,
    chain_path,
    has_line,
    last_line,
    line_hash,
    parse_line,
)

RESTORE = "restore it from a backup"
"""What to do about a damaged file that no command makes again."""

CHAIN, ROWS = "chain.jsonl", ".jsonl.gz"
_MONTH = ".parquet"


def rows_name(month: str) -> str:
    """Return the path in a published folder of the rows of a month file, given by its path below the market's home."""
    return month.removesuffix(_MONTH) + ROWS


def month_name(place: str) -> str | None:
    """Return the month file whose rows are at a path of a published folder; None for any other path."""
    month = place.removesuffix(ROWS) + _MONTH
    return month if place.endswith(ROWS) and MONTH_FILE.fullmatch(month) else None


def published_files(folder: Path) -> Iterator[str]:
    """Yield the paths, below a published folder, of the chain and of the rows in it."""
    if (folder / CHAIN).is_file():
        yield CHAIN
    for path in sorted(folder.glob(f"*/interval=*/symbol=*/*{ROWS}")):
        if month_name(place := path.relative_to(folder).as_posix()) and path.is_file():
            yield place


def published_head(folder: Path) -> bytes:
    """Return the last intact line of a published chain, b"" if there is none."""
    path = folder / CHAIN
    cut = 0
    with suppress(FileNotFoundError):
        while raw := last_line(path, cut=cut):
            with suppress(DamagedError):
                parse_line(raw)
                return raw
            cut += len(raw)
    return b""


def record_loss(home: Path, market: str) -> str:
    """Return what the stored chain of a market lacks of the published record, as a reason; "" if it goes on from it.

    A published chain without a single intact line says nothing, and neither does its absence, unless the stored chain
    is to begin beside published rows.

    Raises:
        DamagedError: one of the two chains cannot be read.
    """
    folder, stored = tree_of(home, "hub", market), chain_path(home, market)
    place = folder.relative_to(home).as_posix()
    try:
        if head := published_head(folder):
            if has_line(stored, head):
                return ""
            line = parse_line(head)
            return (
                f"it lacks line {line.number} of {line.time}, with which the record published in {place} ends"
            )
    except OSError as error:
        raise DamagedError(
            f"{error.filename} cannot be read ({error.strerror}), so nothing is stored: {RESTORE}, or move it away",
            field=str(error.filename),
        ) from error
    if (not stored.exists() or not stored.stat().st_size) and any(published_files(folder)):
        return f"it is missing, though {place} has published rows"
    return ""


def published_rows(folder: Path, month: str) -> int:
    """Return the number of a month's rows in a published folder; 0 without them, or if they cannot be read."""
    with suppress(OSError, EOFError, zlib.error), open_regular(folder / rows_name(month)) as file:
        # A row a line; counted without being parsed.
        return sum(1 for _ in gzip.GzipFile(fileobj=file))
    return 0


def restore_command(home: Path, market: str, *, set_aside: bool = False) -> str:
    """Return the command that brings a market's published record back.

    Args:
        set_aside: whatever else is stored moves away; it does anyway if the stored chain is another one.
    """
    option = stored_option(market)
    paths = chain_path(home, market), tree_of(home, "hub", market) / CHAIN
    is_other = set_aside or _is_other(*((path, _state(path)) for path in paths))
    return f"cpb restore{option}{' --set-aside' if is_other else ''}"


def way_back(home: Path, market: str, month: str) -> str:
    """Return what to do about a damaged or missing month, given by its path below the market's home."""
    if is_restorable(home, market, market_home(home, market) / month):
        return f"`{restore_command(home, market)}` brings it back, or {RESTORE}"
    folder = tree_of(home, "hub", market)
    published = _rows_by_month(folder / CHAIN, _state(folder / CHAIN))
    # The published copy is damaged, too, or of before this month grew: a backup is the only way.
    if not published or published_rows(folder, month) < published.get(month, 0):
        return RESTORE
    back = restore_command(home, market, set_aside=True)
    return f"{RESTORE}, or go back to the record as it was published with `{back}`"


def is_restorable(home: Path, market: str, path: Path) -> bool:
    """Whether a damaged chain or month is whole again after `restore_command`."""
    stored, folder = chain_path(home, market), tree_of(home, "hub", market)
    published = _rows_by_month(folder / CHAIN, _state(folder / CHAIN))
    if not published:
        return False
    if path == stored:
        return not (stored.is_file() and stored.read_bytes().startswith((folder / CHAIN).read_bytes()))
    month = path.relative_to(market_home(home, market)).as_posix()
    # By both chains: rows stored since the last publish are nowhere but in the damaged file.
    recorded = [rows.get(month, 0) for rows in (published, _rows_by_month(stored, _state(stored)) or {})]
    return published_rows(folder, month) >= max(1, *recorded)


_State = tuple[int, ...]


def _state(path: Path) -> _State:
    """Return what differs after a file was replaced or written to; () without a regular one."""
    with suppress(OSError):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns
    return ()


# A chain of years takes seconds to read, and there may be a thousand damaged months.
@lru_cache(maxsize=4)
def _rows_by_month(path: Path, _state: _State) -> dict[str, int] | None:
    """Return the number of rows of each month by an intact chain; None without one."""
    chain = Chain.read(path)
    if chain is None or chain.fault:
        return None
    return {name: record.rows for name, record in chain.files.items()}


@lru_cache(maxsize=4)
def _is_other(*chains: tuple[Path, _State]) -> bool:
    """Whether the first chain, the stored one, does not go on from the second."""
    stored, published = (path.read_bytes() if state else b"" for path, state in chains)
    return merged_chain(stored, published) is None


def merged_chain(stored: bytes, published: bytes) -> bytes | None:
    """Return the published chain with the stored lines that go on from it; None if the stored chain is another one.

    Damaged lines of the stored chain, and foreign ones, are left out.
    """
    # Lines are compared with their bytes: the hash covers each of them.
    known = published.splitlines(keepends=True)
    previous, seen, merged = line_hash(known[-1]) if known else ORIGIN, set(known), [published]
    for raw in stored.splitlines(keepends=True):
        try:
            line = parse_line(raw)
        except DamagedError:
            continue
        if raw in seen:
            continue
        # A valid line that does not go on from the published ones: another history of the same market.
        if line.previous != previous:
            return None
        previous = line_hash(raw)
        seen.add(raw)
        merged.append(raw)
    return b"".join(merged)


def loss_sentence(home: Path, market: str) -> str:
    """Return the sentence of `record_loss` with what to do; "" if nothing is lost."""
    if not (reason := record_loss(home, market)):
        return ""
    stored = chain_path(home, market).relative_to(home).as_posix()
    return (
        f"{stored} does not go on from the published record: {reason}; `{restore_command(home, market)}` brings that "
        "back; until then nothing is stored, and the published record stays as it is"
    )
