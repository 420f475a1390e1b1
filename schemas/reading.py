"""How a table of candles is read where it does not tell, remembered in the home with the table's path.

So later runs without the options read it alike.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

from cpbmodels.errors import ModelError
from schemas.errors import UsageError
from schemas.identity import OWN, market_home

REMEMBERED = "sources.json"
"""In the home of market `own`: the readings of the sources, by their absolute paths."""


class Reading(NamedTuple):
    """How a table is read where it does not tell: the texts of `--columns` and `--decimal`, None where not given."""

    columns: str | None = None
    decimal: str | None = None

    @property
    def roles(self) -> dict[str, str]:
        """The columns by their role; raises `UsageError` for a text that names none."""
        from cpbmodels.data.column_names import check_roles

        parts = re.split(r",(?=\s*(?:\w+\s*=|$))", self.columns or "")  # a column's name may hold commas
        pairs = [part.partition("=") for part in parts if part.strip()]
        roles = {role.strip().lower(): column.strip() for role, _, column in pairs}
        # a role without a column, or one role twice
        if not all(roles.values()) or len(roles) < len(pairs):
            raise UsageError(
                f"columns {self.columns!r} is not NAME=COLUMN,…, each name once, as in time=Date,close=Last",
                code="columns",
            )
        try:
            check_roles(roles)
        except ModelError as error:
            raise UsageError(str(error), code="columns") from None
        return roles


def remembered(home: Path) -> dict[str, Reading]:
    """Return how the sources of a home are read, by their absolute paths.

    Raises:
        UsageError: the file is damaged.
    """
    path = market_home(home, OWN) / REMEMBERED
    try:
        return {source: Reading(**options) for source, options in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is damaged: remove it, and give --columns and --decimal again where a table needs them",
            code="damaged",
            field=str(path),
        ) from error
