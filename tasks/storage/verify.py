"""What every check of stored files shares: a manifest of files, each with the check that proves it, and one loop.

A package that stores files has a function which yields them (`Manifest`); `tasks.verify` lists all of these. A manifest
names only files that are provably cpb's own, so nothing else is ever moved or deleted.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from schemas.errors import DamagedError
from schemas.handover import Damage, Record
from schemas.identity import SPOT, SeriesId, stored_series
from tasks.storage.digests import file_digest
from tasks.storage.records import parse_record, set_aside

VERIFY = "cpb verify --repair"
"""The command that sets damaged files aside, and makes or fetches again what can be."""

REPAIRED = "repaired"
"""What was done about a file that is whole again; one that was only removed or set aside has an outcome of its own."""

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Asked:
    """What `cpb verify` was asked for.

    `source`: where damaged candles are fetched from; None: Binance Vision (the simulator's from itself). `rows_before`:
    filled in by market: how many forecast and score rows the chain only found there.
    """

    home: Path
    market: str = SPOT
    repair: bool = False
    source: str | None = None
    rows_before: dict[str, int] = field(default_factory=dict)

    def series(self, tree: str) -> list[SeriesId]:
        """Return the market's series that have a folder in a tree of the home."""
        return [series for series in stored_series(self.home, tree) if series.market == self.market]


Mend = Callable[[str], str]
"""Makes a damaged file good again, or sets it aside; gets the reason and returns what it did, "" for nothing."""


@dataclass(frozen=True)
class Stored:
    """One stored file: what proves it, and what makes it good again.

    `check` returns what is wrong, "" for nothing, or raises a `DamagedError` or an `OSError` that says so;
    FileNotFoundError: a run has removed the file since it was listed. Without a `mend` the file stays as it is, and
    `command` makes it again.
    """

    path: Path
    check: Callable[[], str]
    command: str = VERIFY
    mend: Mend | None = None


Manifest = Callable[[Asked], Iterable[Stored]]
"""Yields stored files. Each is checked, and mended, before the next is asked for, under the locks held meanwhile."""

Seen = Callable[[Path], None]
"""Called with each file once it is checked."""


def verify(asked: Asked, manifest: Manifest, seen: Seen = lambda _path: None) -> Iterator[Damage]:
    """Check every file of a manifest, and yield each damaged one; with `asked.repair` mend it."""
    for stored in manifest(asked):
        command, mend = stored.command, stored.mend
        try:
            reason = stored.check()
        except FileNotFoundError:
            continue
        except PermissionError as error:  # nothing is wrong with its content: it must not be set aside
            reason = f"it cannot be read ({error.strerror})"
            command, mend = allow_reading(stored.path), None
        except OSError as error:
            reason = f"it cannot be read ({error.strerror})"
        except DamagedError as error:
            reason = str(error)
        seen(stored.path)
        if reason:
            outcome = mend(reason) if mend and asked.repair else ""
            yield Damage(
                path=_place(asked.home, stored.path), reason=reason, command=command,
                repaired=bool(outcome), outcome=outcome,
            )  # fmt: skip


def allow_reading(path: Path) -> str:
    """Return the command that lets this user read a file."""
    return f"chmod u+r {shlex.quote(str(path))}"


def checked(path: Path, reason: str, command: str = VERIFY, outcome: str = "") -> Stored:
    """Return a file that its manifest had to check and mend together with others."""
    return Stored(path, lambda: reason, command, lambda _reason: outcome)


def record_file(path: Path, kind: type[Record], of: str, outcome: str) -> Stored:
    """Return a file with a record about `of`; damaged, it is set aside, which means `outcome`."""
    return Stored(path, partial(record_fault, path, kind, of), mend=aside(path, outcome))


def record_fault(path: Path, kind: type[Record], of: str) -> str:
    """Return "" for a record that is what was written; errors as in `parse_record`."""
    parse_record(path, kind, of=of)
    return ""


def aside(path: Path, outcome: str) -> Mend:
    """Return what sets a damaged file aside; `outcome` says so, and what that means."""

    def mend(reason: str) -> str:
        set_aside(path, reason)
        return outcome

    return mend


def removed(outcome: str, *paths: Path) -> Mend:
    """Return what deletes files that are made again; `outcome` says so."""

    def mend(_reason: str) -> str:
        for path in paths:
            path.unlink(missing_ok=True)
        return outcome

    return mend


def sound_record(path: Path, kind: type[R], of: str) -> R | None:
    """Return the record in `path`, None where there is none, or a damaged one."""
    try:
        return parse_record(path, kind, of=of)
    except (DamagedError, OSError):
        return None


def digest_fault(path: Path, digest: str | None) -> str:
    """Return what is wrong with a file of which the sha256 is recorded, "" for nothing; errors as in `open`."""
    if not path.is_file():
        return "it is missing"
    is_other = digest is not None and file_digest(path) != digest
    return "it is not the file that was written (its sha256 differs)" if is_other else ""


def _place(home: Path, path: Path) -> str:
    """Return a path relative to the home; one outside stays as it is. MLflow's paths have no links in them."""
    bases = (base for base in (home, home.resolve()) if path.is_relative_to(base))
    return next((path.relative_to(base) for base in bases), path).as_posix()
