"""One check of a stored file, and what the checks of all kinds share."""

import shlex
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from cpbmodels.files import open_regular
from schemas.base import Record
from schemas.errors import DamagedError
from schemas.handover import Damage
from schemas.identity import SeriesId, stored_series
from tasks.forecasting.chain import ANY_ERROR
from tasks.storage.records import parse_record

R = TypeVar("R", bound=Record)

Check = tuple[Path, Callable[[], object], str]
"""A file, the function that reads it, and the command that makes or fetches it again.

The function returns the fault as a text, empty for none, or anything else for none; a `DamagedError` or an `OSError` is
the fault too; FileNotFoundError: the file was removed since it was listed. Each file is checked before the next is
requested, under any locks held meanwhile.
"""


def unexpected(error: BaseException) -> str:
    """Return the kind, text and place of an unexpected error: for a report of it, without a traceback."""
    text = (str(error).splitlines() or [""])[0][:200]  # polars' and pydantic's go on for pages
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} ({Path(place.filename).name}, line {place.lineno})"


def damage_at(home: Path, path: Path, read: Callable[[], object], command: str) -> Damage | None:
    """Return the damage of a file, None if it is intact; an unexpected error of its reader is damage, too."""
    try:
        reason = read()
    except FileNotFoundError:  # a run at work, or pruning, has removed it since it was listed
        return None
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
    except DamagedError as error:
        reason = str(error)
    except ANY_ERROR as error:
        reason = f"reading it failed: {unexpected(error)}"
    if not isinstance(reason, str) or not reason:
        return None
    place = path.relative_to(home) if path.is_relative_to(home) else path
    return Damage(path=place.as_posix(), reason=reason, command=command)


def series_in(home: Path, tree: str, market: str) -> list[SeriesId]:
    """Return the series of a market with a folder in a tree of the home."""
    return [series for series in stored_series(home, tree) if series.market == market]


def is_database(path: Path) -> bool:
    """Whether a file is one of SQLite's, so that a person's own file of the same name is left alone."""
    with suppress(OSError), open_regular(path) as file:
        return (
            file.read(6) == b"SQLite"
        )  # the first bytes of every database, also of one that is damaged behind them
    return False


def remove_command(*paths: Path) -> str:
    """Return the command that deletes files which the next run makes again."""
    return f"rm -f {shlex.join(map(str, paths))}"


def record_check(path: Path, kind: type[Record], command: str) -> Check:
    """Return the check of a record."""
    return path, partial(parse_record, path, kind), command


def intact_record(path: Path, kind: type[R]) -> R | None:
    """Return the record in `path`; None if it is missing, or damaged, which its own check reports."""
    with suppress(OSError, DamagedError):
        return parse_record(path, kind)
    return None
