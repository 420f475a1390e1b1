"""Stores of earlier versions: simulated candles lay at the top of CPB_HOME, or in `sim` under the name of spot.

The simulator is a market of its own now: its candles and all that is made of them lie in `HOME/sim`. What an earlier
version left at the top is moved there once, file by file, and only what is provably cpb's (`own.py`): `reports/`,
`hub/` and every file that cpb did not name stay where they are.

A file marks how far that is, so that a move goes on after a kill:
    HOME/SIMULATED          the candles at the top are simulated: move them
    HOME/SIMULATED.moving   the move has begun
    HOME/sim/SIMULATED      the files are in place; the manifest there still calls their market spot
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import CpbError
from schemas.identity import SIM, SPOT, market_home
from tasks.market.manifest import MANIFEST, Manifest
from tasks.market.own import TREES, own_files, refused_files
from tasks.market.store import writer_lock

_MARK, _MOVING = "SIMULATED", "SIMULATED.moving"

log = logging.getLogger("cpb")


def adopt_simulated(home: Path) -> None:
    """Move simulated candles of an earlier version from the top of a home into `HOME/sim`, and say so.

    Costs three looks at the disk where there is nothing to move. Takes the writer locks of both homes: call it before
    taking one. May be repeated after a kill.

    Raises:
        CpbError: `HOME/sim` has a store already; nothing was moved.
        BusyError: another process writes in the home.
    """
    sim = market_home(home, SIM)
    if not any(_is_mark(mark) for mark in (home / _MARK, home / _MOVING, sim / _MARK)):
        return
    try:
        with writer_lock(home), writer_lock(sim):
            _adopt(home, sim)
    except CpbError as error:
        if error.code != "read-only":
            raise
        log.warning("%s holds simulated candles of an earlier version that cannot be moved: %s", home, error)


def _is_mark(path: Path) -> bool:
    """Whether a file is a mark of cpb's: they are empty."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size == 0


def _adopt(home: Path, sim: Path) -> None:
    if _is_mark(home / _MARK):
        if next(_own(sim), None):
            raise CpbError(
                f"simulated candles lie both in {home} (from an earlier version) and in {sim}, and nothing was moved; "
                f"move {sim} away to use the older ones, or move all of cpb's folders out of {home} and delete "
                f"{home / _MARK}",
                code="simulated-twice",
            )  # fmt: skip
        (home / _MARK).rename(home / _MOVING)
    if _is_mark(home / _MOVING):
        moved = _move(home, sim)
        (home / _MOVING).rename(sim / _MARK)
        if moved:
            log.warning("%s held simulated candles of an earlier version: they now lie in %s", home, sim)
    if _is_mark(sim / _MARK):
        if (sim / MANIFEST).exists():
            with Manifest(sim / MANIFEST) as manifest:
                manifest.rename_market(SPOT, SIM)
        (sim / _MARK).unlink()


def _move(home: Path, sim: Path) -> int:
    """Rename cpb's own files and fleets into `sim`; return how many that were."""
    moved = 0
    for path in list(_own(home)):
        target = sim / path.relative_to(home)
        if target.exists() or path.is_symlink():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        moved += 1
        _remove_empty_folders(path.parent, home)
    return moved


def _own(root: Path) -> Iterator[Path]:
    """Yield what is provably cpb's in a market home: the manifest last, as without it all would be fetched again."""
    for tree in TREES:
        yield from own_files(root, tree)
    yield from refused_files(root)
    yield from sorted(job.parent for job in (root / "fleets").glob("*/job.json"))
    for ending in ("-shm", "-wal", ""):  # SQLite's log before the database that it belongs to
        yield from root.glob(f"{MANIFEST}{ending}")


def _remove_empty_folders(folder: Path, home: Path) -> None:
    while folder != home:
        try:
            folder.rmdir()
        except OSError:  # not empty: something of the user's, or what is still to be moved
            return
        folder = folder.parent
