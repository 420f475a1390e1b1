"""The common part of all checks of stored files: a manifest of files, each with its check, and the check loop.

A package that stores files has a function that yields them (`Manifest`); `tasks.verify` lists all manifests. A manifest
contains only files that are provably cpb's own, so no other file is ever moved or deleted.
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
"""The command that sets damaged files aside, and recreates or fetches them where possible."""

REPAIRED = "repaired"
"""Outcome of a file that is intact again; a file that was only removed or set aside has another outcome."""

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Asked:
    """The request of a `cpb verify` run.

    `source`: where damaged candles are fetched from; None: Binance Vision (or the simulator). `rows_before`: filled in
    by market: forecast and score rows stored before their chain began.
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
"""Repairs a damaged file or sets it aside; receives the reason and returns the outcome, "" for none."""


@dataclass(frozen=True)
class Stored:
    """One stored file of a manifest: what proves it (`sha256`, or else `check`), and what repairs it.

    `sha256`: recorded when the file was written. `check` returns the fault, "" for none, or raises a `DamagedError` or
    an `OSError` as the fault; FileNotFoundError: the file was removed since it was listed. Without a `mend` the file is
    left as is, and `command` creates it again.
    """

    path: Path
    sha256: str | None = None
    command: str = VERIFY
    mend: Mend | None = None
    check: Callable[[], str] | None = None


Manifest = Callable[[Asked], Iterable[Stored]]
"""Yields stored files. Each is checked, and repaired, before the next is requested, under any locks held meanwhile."""


def damages(
    asked: Asked, manifest: Manifest, seen: Callable[[Path], None] = lambda _path: None
) -> Iterator[Damage]:
    """Check every file of a manifest, and yield each damage; with `asked.repair` repair it.

    `seen` is called with each file once it is checked.
    """
    for stored in manifest(asked):
        command, mend = stored.command, stored.mend
        try:
            reason = stored.check() if stored.check else digest_fault(stored.path, stored.sha256)
        except FileNotFoundError:
            continue
        except PermissionError as error:  # its content may be intact: it must not be set aside
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
    """Return a file that its manifest has already checked and repaired, together with others."""
    return Stored(path, None, command, lambda _reason: outcome, lambda: reason)


def record_file(path: Path, kind: type[Record], of: str, outcome: str) -> Stored:
    """Return the file of a record with subject `of`; if damaged, it is set aside with this `outcome`."""
    return Stored(path, mend=aside(path, outcome), check=partial(record_fault, path, kind, of))


def record_fault(path: Path, kind: type[Record], of: str) -> str:
    """Return "" for an intact record; errors as in `parse_record`."""
    parse_record(path, kind, of=of)
    return ""


def aside(path: Path, outcome: str) -> Mend:
    """Return a function that sets a damaged file aside; `outcome` describes it and its consequence."""

    def mend(reason: str) -> str:
        set_aside(path, reason)
        return outcome

    return mend


def removed(outcome: str, *paths: Path) -> Mend:
    """Return a function that deletes files that can be recreated; `outcome` describes it."""

    def mend(_reason: str) -> str:
        for path in paths:
            path.unlink(missing_ok=True)
        return outcome

    return mend


def sound_record(path: Path, kind: type[R], of: str) -> R | None:
    """Return the record in `path`, None if missing or damaged."""
    try:
        return parse_record(path, kind, of=of)
    except (DamagedError, OSError):
        return None


def digest_fault(path: Path, digest: str | None) -> str:
    """Return the fault of a file with a recorded sha256, "" for none; errors as in `open`."""
    if not path.is_file():
        return "it is missing"
    is_other = digest is not None and file_digest(path) != digest
    return "it is not the file that was written (its sha256 differs)" if is_other else ""


def _place(home: Path, path: Path) -> str:
    """Return a path relative to the home; a path outside is unchanged. MLflow's paths have links resolved."""
    bases = (base for base in (home, home.resolve()) if path.is_relative_to(base))
    return next((path.relative_to(base) for base in bases), path).as_posix()
