"""The routes under `/api`: their parameters and responses, and the files that each response depends on."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from pydantic import AfterValidator, BeforeValidator

from schemas.errors import MemberError, UsageError
from schemas.identity import INTERVAL_SECONDS, MARKETS, OWN, Market, SeriesId, symbol_of
from webapp import overview as overviews
from webapp import reading, registry, trainings
from webapp.answers import (
    Candles,
    Changes,
    Decisions,
    Forecast,
    Forecasts,
    Health,
    Leaderboard,
    Ledger,
    Models,
    Overview,
    Problem,
    Runs,
    SeriesList,
)
from webapp.replies import (
    Answer,
    Format,
    Replies,
    State,
    digest,
    market_state,
    respond,
    series_state,
    tree_state,
)

OPTIONS: dict[int | str, dict[str, Any]] = {422: {"model": Problem, "description": "impossible option"}}
SERIES: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "unknown series"},
    **OPTIONS,
}
CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}

MarketOption = Annotated[
    Market | None,
    Query(description="default: spot, or the market that has stored data; sim where no other has any"),
]
Form = Annotated[Format, Query(alias="format", description="csv: the list in the answer as a table")]
Limit = Annotated[int, Query(ge=1, le=5000)]
TimeframeOption = Annotated[str | None, Query(description="only this candle length", max_length=3)]
RunOption = Annotated[
    str | None,
    Query(description="only rows of this run: its id, or its first characters", pattern="^[0-9a-f]{4,32}$"),
]


_YEARS = r"^(19[7-9]|2[01]\d|22[0-5])\d-"
"""Pattern for the beginning of an instant: JSON Schema has no range of times."""


def _date(text: str) -> str:
    """Refuse numbers, which pydantic reads as seconds since 1970: 20250609 is meant as a day."""
    if not re.match(r"\d{4}-", text):
        raise ValueError("write a date, as 2025-06-09 or 2025-06-09T12:00:00Z")
    return text


def _utc(given: datetime) -> datetime:
    """Return an instant in UTC, which is also its zone if it has none; refuse years without candles."""
    found = given.replace(tzinfo=given.tzinfo or UTC)
    # the range of int64 nanoseconds since 1970
    if not datetime(1970, 1, 1, tzinfo=UTC) <= found < datetime(2262, 1, 1, tzinfo=UTC):
        raise ValueError("use a date from 1970 to 2261")
    return found.astimezone(UTC)


Instant = Annotated[datetime, BeforeValidator(_date), AfterValidator(_utc)]
_PATTERN = {"pattern": _YEARS}
Until = Annotated[
    Instant | None, Query(description="newest close; UTC where no zone is given", json_schema_extra=_PATTERN)
]
IssuedUntil = Annotated[
    Instant | None, Query(description="newest issue; UTC where no zone is given", json_schema_extra=_PATTERN)
]
IssuedAt = Annotated[
    Instant | None,
    Query(description="the forecast issued at this time; default: the newest", json_schema_extra=_PATTERN),
]


class Api:
    """State shared by the routes: the home, and the cached responses."""

    def __init__(self, home: Path) -> None:
        self.home, self.replies = home, Replies()

    def market(self, market: Market | None) -> Market:
        """Return the market of a request."""
        return market or reading.default_market(self.home)

    def series(self, symbol: str, timeframe: str, market: MarketOption = None) -> SeriesId:
        """Return the series in a path; raises `MemberError` if it is invalid."""
        if timeframe not in INTERVAL_SECONDS:
            raise MemberError(
                f"timeframe {timeframe!r} is unknown: choose from {', '.join(INTERVAL_SECONDS)}"
            )
        try:
            found = self.market(market)
            return SeriesId(found, symbol_of(symbol, quoted=found == OWN), timeframe)
        except UsageError as error:
            raise MemberError(str(error)) from error

    def reply(
        self,
        request: Request,
        key: tuple[Any, ...],
        state: State,
        make: Callable[[], Answer],
        form: Format = "json",
        name: str = "",
    ) -> Response:
        """Respond with the result of `make`, cached by `key` while the state is unchanged."""

        def render() -> bytes:
            made = make()
            return made.csv() if form == "csv" else made.json()

        return respond(request, self.replies.get((*key, form), state, render), form, name)

    def of_series(
        self, request: Request, what: str, series: SeriesId, options: tuple[Any, ...], state: State,
        make: Callable[[], Answer], form: Format,
    ) -> Response:  # fmt: skip
        """Respond with data of a series; arguments as in `reply`."""
        name = f"cpb-{_label(series.market)}-{series.symbol}-{series.timeframe}-{what}"
        return self.reply(request, (what, series, *options), state, make, form, name)


def add_api(app: FastAPI, api: Api) -> None:
    """Add the routes that return lists and tables."""
    Series = Annotated[SeriesId, Depends(api.series)]
    _add_lists(app, api)
    _add_models(app, api, Series)
    _add_series(app, api, Series)


def _add_lists(app: FastAPI, api: Api) -> None:
    home = api.home

    def stored() -> State:
        trees = tuple(tree_state(home, tree) for tree in ("klines", "provisional", "forecasts"))
        return (*trees, *(market_state(home, market) for market in MARKETS))

    @app.get("/healthz", response_model=Health)
    def healthz(request: Request) -> Response:
        """Return the state of the service, the amount of its data, and stale data."""
        return api.reply(request, ("health",), (stored(), _minute()), lambda: Answer(reading.health(home)))

    @app.get("/api/symbols", response_model=SeriesList)
    def symbols(request: Request) -> Response:
        """List every series with forecasts or candles, of all markets."""
        return api.reply(
            request, ("symbols",), stored(), lambda: Answer(SeriesList(reading.all_series(home)))
        )

    @app.get("/api/overview", response_model=Overview, responses={**CSV, **OPTIONS})
    def overview(request: Request, market: MarketOption = None, form: Form = "json") -> Response:
        """Return an overview of all series of a market."""
        chosen = api.market(market)
        state = (stored(), registry.state(), _minute())
        return api.reply(
            request, ("overview", chosen), state, lambda: overviews.overview(home, chosen), form,
            f"cpb-{_label(chosen)}-overview",
        )  # fmt: skip

    @app.get("/api/runs", response_model=Runs, responses={**CSV, **OPTIONS})
    def runs(
        request: Request, limit: Annotated[int, Query(ge=1, le=200)] = 20, form: Form = "json"
    ) -> Response:
        """Return the trainings in progress, and the newest runs of the flow, of all markets."""
        # Renewed every minute: when a run's process dies, no stored data changes.
        state = (trainings.trainings_state(home), registry.state(), _minute())
        return api.reply(
            request, ("runs", limit), state, lambda: trainings.runs(home, limit), form, "cpb-runs"
        )

    @app.get("/api/changes", response_model=Changes)
    def changes(request: Request) -> Response:
        """Return a token for each part of the stored data; cheap enough for a request every few seconds."""
        board, training = registry.state(), trainings.trainings_state(home)
        parts = {
            "candles": (tree_state(home, "klines"), tree_state(home, "provisional")),
            "forecasts": tree_state(home, "forecasts"),
            "ledger": tree_state(home, "ledger"),
            "board": board,
            "runs": (board, training),
        }
        tokens = Changes(**{name: digest(state) for name, state in parts.items()})
        return api.reply(request, ("changes",), (parts,), lambda: Answer(tokens))


def _add_models(app: FastAPI, api: Api, Series: Any) -> None:
    @app.get("/api/leaderboard", response_model=Leaderboard, responses={**CSV, **OPTIONS})
    def leaderboard(
        request: Request, market: MarketOption = None, timeframe: TimeframeOption = None,
        run: RunOption = None, form: Form = "json",
    ) -> Response:  # fmt: skip
        """Return a market's architectures and champions against the random walk."""
        chosen = api.market(market)
        return api.reply(
            request, ("leaderboard", chosen, timeframe, run), registry.state(),
            lambda: registry.leaderboard(chosen, timeframe, run), form, f"cpb-{_label(chosen)}-leaderboard",
        )  # fmt: skip

    @app.get("/api/models/{symbol}/{timeframe}", response_model=Models, responses={**CSV, **SERIES})
    def models(request: Request, series: Series, form: Form = "json") -> Response:
        """Return the newest judged model of each architecture on a series."""
        state = registry.state()
        return api.of_series(request, "models", series, (), state, lambda: registry.models(series), form)

    @app.get("/api/decisions/{symbol}/{timeframe}", response_model=Decisions, responses={**CSV, **SERIES})
    def decisions(
        request: Request,
        series: Series,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        form: Form = "json",
    ) -> Response:
        """Return the decisions on a series' champion after each run, and their reasons, newest first."""
        return api.of_series(
            request, "decisions", series, (limit,), registry.state(), lambda: registry.decisions(series, limit), form
        )  # fmt: skip


def _add_series(app: FastAPI, api: Api, Series: Any) -> None:
    home = api.home

    @app.get("/api/forecast/{symbol}/{timeframe}", response_model=Forecast, responses={**CSV, **SERIES})
    def forecast(
        request: Request, series: Series, issued_at: IssuedAt = None, form: Form = "json"
    ) -> Response:
        """Return the newest forecast, or the forecast of a given issue time."""
        return api.of_series(
            request, "forecast", series, (issued_at,), series_state(home, series, "forecasts"),
            lambda: reading.forecast(home, series, issued_at), form,
        )  # fmt: skip

    @app.get("/api/forecasts/{symbol}/{timeframe}", response_model=Forecasts, responses={**CSV, **SERIES})
    def forecasts(
        request: Request, series: Series, until: IssuedUntil = None, limit: Limit = 200, form: Form = "json"
    ) -> Response:
        """Return the issue times of forecasts, newest last; each can be used as `issued_at` of a forecast."""
        return api.of_series(
            request, "forecasts", series, (until, limit), series_state(home, series, "forecasts"),
            lambda: reading.forecasts(home, series, limit, until), form,
        )  # fmt: skip

    @app.get("/api/candles/{symbol}/{timeframe}", response_model=Candles, responses={**CSV, **SERIES})
    def candles(
        request: Request, series: Series, until: Until = None, limit: Limit = 200, form: Form = "json"
    ) -> Response:
        """Return stored candles, the newest last."""
        return api.of_series(
            request, "candles", series, (until, limit), series_state(home, series, "klines", "provisional"),
            lambda: reading.candles(home, series, limit, until), form,
        )  # fmt: skip

    @app.get("/api/ledger/{symbol}/{timeframe}", response_model=Ledger, responses={**CSV, **SERIES})
    def ledger(
        request: Request,
        series: Series,
        limit: Annotated[int, Query(ge=0, le=5000)] = 200,
        form: Form = "json",
    ) -> Response:
        """Return the scores of the forecasts against the random walk, and the newest `limit` scored rows."""
        return api.of_series(
            request, "ledger", series, (limit,), series_state(home, series, "forecasts", "ledger"),
            lambda: reading.scored(home, series, limit), form,
        )  # fmt: skip


def _label(market: Market) -> str:
    return "simulated" if market == "sim" else market


def _minute() -> int:
    """Return the current minute, for responses that contain an age."""
    return int(datetime.now(UTC).timestamp() // 60)
