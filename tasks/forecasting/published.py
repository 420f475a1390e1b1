"""The record published in `HOME/hub`, as the witness of what was stored: whether the stored chain goes on from it.

The packaged folder holds the chain, and the rows as JSON lines, as they were at the last `cpb publish` or night. A
stored chain that lacks the last line there was lost, cut off or begun anew: then nothing is stored behind it, and the
published record stays as it is, since it may be the last copy. `tasks.hub.restore` brings it back.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from schemas.errors import DamagedError
from schemas.identity import SPOT, market_home, tree_of
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
    """
    folder, stored = tree_of(home, "hub", market), chain_path(home, market)
    place = folder.relative_to(home).as_posix()
    if head := published_head(folder):
        if has_line(stored, head):
            return ""
        line = parse_line(head)
        return f"it lacks line {line.number} of {line.time}, with which the record published in {place} ends"
    if (not stored.exists() or not stored.stat().st_size) and any(published_files(folder)):
        return f"it is missing, though {place} has published rows"
    return ""


def restore_command(home: Path, market: str, *, set_aside: bool = False) -> str:
    """Return the command that brings a market's published record back.

    Args:
        set_aside: whatever else is stored moves away; it does anyway if the stored chain is another one.
    """
    option = "" if market == SPOT else f" --market {market}"
    if set_aside:
        return f"cpb restore{option} --set-aside"
    stored, published = (
        path.read_bytes() if path.is_file() else b""
        for path in (chain_path(home, market), tree_of(home, "hub", market) / CHAIN)
    )
    return f"cpb restore{option}{' --set-aside' if merged_chain(stored, published) is None else ''}"


def way_back(home: Path, market: str, month: str) -> str:
    """Return what to do about a damaged or missing month, given by its path below the market's home."""
    if (tree_of(home, "hub", market) / rows_name(month)).is_file():
        return f"`{restore_command(home, market)}` brings back what is published of it, or {RESTORE}"
    return RESTORE


def is_restorable(home: Path, market: str, path: Path, published: Chain) -> bool:
    """Whether a damaged chain or month is whole again after `restore_command`, by the intact published chain."""
    if path == (stored := chain_path(home, market)):
        lines = (tree_of(home, "hub", market) / CHAIN).read_bytes()
        return not (stored.is_file() and stored.read_bytes().startswith(lines))
    name = path.relative_to(market_home(home, market)).as_posix()
    ours, theirs = (chain.files.get(name) for chain in (Chain.read(stored) or published, published))
    is_there = (tree_of(home, "hub", market) / rows_name(name)).is_file()
    return is_there and theirs is not None and (ours is None or ours.rows == theirs.rows)


def merged_chain(stored: bytes, published: bytes) -> bytes | None:
    """Return the published chain with the stored lines that go on from it; None if the stored chain is another one.

    Damaged lines of the stored chain, and foreign ones, are left out.
    """
    known = published.splitlines(keepends=True)
    previous, seen, merged = line_hash(known[-1]) if known else ORIGIN, set(known), [published]
    for raw in stored.splitlines(keepends=True):
        try:
            line = parse_line(raw)
        except DamagedError:
            continue
        if raw in seen:
            continue
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
