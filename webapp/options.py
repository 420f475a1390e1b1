"""What requests may say: the options of the routes with their limits, and the problems that they may meet."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, Query

from schemas.errors import UsageError
from schemas.identity import Market
from webapp.answers import Problem
from webapp.replies import Format

OPTIONS: dict[int | str, dict[str, Any]] = {422: {"model": Problem, "description": "impossible option"}}
SERIES: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "unknown series"},
    **OPTIONS,
}
CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}

MarketOption = Annotated[
    Market | None,
    Query(description="default: spot, or the market that something is stored of; sim where that is all"),
]
Form = Annotated[Format, Query(alias="format", description="csv: the list in the answer as a table")]
Limit = Annotated[int, Query(ge=1, le=5000)]
TimeframeOption = Annotated[str | None, Query(description="only this candle length", max_length=3)]
RunOption = Annotated[
    str | None,
    Query(description="rows of this run alone: its id, or how that begins", pattern="^[0-9a-f]{4,32}$"),
]


def moment(name: str, text: str) -> Callable[..., datetime | None]:
    """Return a dependency for an instant in the query, in UTC; it raises `UsageError` for years without candles."""

    def instant(
        given: Annotated[datetime | None, Query(alias=name, description=text)] = None,
    ) -> datetime | None:
        if given is None:
            return None
        try:
            found = given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)
        except OverflowError:
            found = None
        if found is None or not 1970 <= found.year < 2262:  # what nanoseconds since 1970 can say
            raise UsageError(
                f"{name} {given.isoformat()} is out of range: use a date from 1970 to 2261",
                code="date",
                field=name,
            )
        return found

    return instant


Until = Annotated[datetime | None, Depends(moment("until", "newest close; UTC where no zone is given"))]
IssuedUntil = Annotated[datetime | None, Depends(moment("until", "newest issue; UTC where no zone is given"))]
IssuedAt = Annotated[
    datetime | None, Depends(moment("issued_at", "the forecast of this instant; default: the newest"))
]
