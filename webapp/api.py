"""The routes under `/api`: their parameters, and what they answer with."""

import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from fastapi import APIRouter, Depends, Query
from fastapi import Path as InPath
from pydantic import AfterValidator, BeforeValidator, Field

from cpbmodels.data import INTERVAL_SECONDS
from schemas.coins import symbol_of
from schemas.errors import MemberError, UsageError
from schemas.forecasting import MAX_PRICE, MIN_PRICE, parse_price, parse_prices
from schemas.identity import OWN, SIM, Market, SeriesId
from tasks.figures.themes import THEMES, themed
from webapp import all_series, answers, figures, one_series, runs, stored
from webapp.cache import cached_routes, checked_tokens
from webapp.figures import MAX_EARLIER, ThemeName
from webapp.formats import table

OPTIONS: dict[int | str, dict[str, Any]] = {
    422: {"model": answers.Problem, "description": "impossible option"}
}
SERIES: dict[int | str, dict[str, Any]] = {
    404: {"model": answers.Problem, "description": "unknown series"},
    **OPTIONS,
}
_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}

MarketOption = Annotated[
    Market | None,
    Query(description="default: spot, or the market that has stored data; sim where no other has any"),
]
Form = Annotated[
    Literal["json", "csv"], Query(alias="format", description="csv: the answer's list as a table")
]
Limit = Annotated[int, Query(ge=1, le=5000)]
TimeframeOption = Annotated[str | None, Query(description="only this candle length", max_length=3)]
RunOption = Annotated[
    str | None,
    Query(description="only rows of this run: its id, or its first characters", pattern="^[0-9a-f]{4,32}$"),
]
Theme = Annotated[ThemeName, Query(description="of the colours")]
TwoModels = Annotated[
    str,
    Query(
        description="two models: har,gru or har,gru/smoke",
        max_length=200,
        json_schema_extra={"pattern": r"^[^,]*[^, ][^,]*,[^,]*[^, ][^,]*$"},
    ),
]

_YEARS: dict[str, Any] = {"pattern": r"^(19[7-9]|2[01]\d|22[0-5])\d-"}
"""Pattern for the beginning of an instant: JSON Schema has no range of times."""


def _date(text: str) -> str:
    """Refuse numbers, which pydantic reads as seconds since 1970: 20250609 is meant as a day."""
    if not re.match(r"\d{4}-", text):
        raise ValueError("write a date, as 2025-06-09 or 2025-06-09T12:00:00Z")
    return text


def _utc(given: datetime) -> datetime:
    """Return an instant in UTC, which is also its zone if it has none; refuse years without candles."""
    # The query of a browser rarely has a zone; UTC is what the page shows.
    instant = given.replace(tzinfo=given.tzinfo or UTC)
    # the range of int64 nanoseconds since 1970
    if not datetime(1970, 1, 1, tzinfo=UTC) <= instant < datetime(2262, 1, 1, tzinfo=UTC):
        raise ValueError("use a date from 1970 to 2261")
    return instant.astimezone(UTC)


Instant = Annotated[datetime, BeforeValidator(_date), AfterValidator(_utc)]
Until = Annotated[
    Instant | None,
    Query(description="newest close or issue; UTC where no zone is given", json_schema_extra=_YEARS),
]
Price = Annotated[float, Field(ge=MIN_PRICE, le=MAX_PRICE)]
Target = Annotated[
    Price,
    BeforeValidator(partial(parse_price, option="target")),
    Query(description="a price on the other side of the last close than the stop"),
]
Stop = Annotated[
    Price,
    BeforeValidator(partial(parse_price, option="stop")),
    Query(description="a price; a candle that reaches both counts for the stop"),
]
Prices = Annotated[
    tuple[Price, ...],
    BeforeValidator(lambda given: parse_prices(*map(str, given)) if given else given),
    Query(description="as in 98000,105000; at most 1,000"),
]
IssuedAt = Annotated[
    Instant | None,
    Query(description="the forecast issued at this time; default: the newest", json_schema_extra=_YEARS),
]


def _listed(answer: Any, name: str, rows: pl.DataFrame, form: str) -> Any:
    """Return an answer whose list of that name, which is empty in it, are these rows."""
    return table(answer, rows) if form == "csv" else (answer, name, rows)


def routes(home: Path) -> APIRouter:
    """Return the routes over the store in `home`."""
    router = APIRouter(route_class=cached_routes(home))

    def market_of(market: MarketOption = None) -> Market:
        return market or stored.default_market(home)

    def series_of(symbol: str, timeframe: str, market: MarketOption = None) -> SeriesId:
        # 404, not 422: a series that cannot exist is as unknown as one that does not.
        if timeframe not in INTERVAL_SECONDS:
            raise MemberError(
                f"timeframe {timeframe!r} is unknown: choose from {', '.join(INTERVAL_SECONDS)}"
            )
        try:
            market = market_of(market)
            series = SeriesId(market, symbol_of(symbol, quoted=market == OWN), timeframe)
        except UsageError as error:
            raise MemberError(str(error)) from error
        stored.check_coin(home, series)
        return series

    MarketIn, Series = Annotated[Market, Depends(market_of)], Annotated[SeriesId, Depends(series_of)]
    _add_lists(router, home, MarketIn)
    _add_series(router, home, Series)
    _add_figures(router, home, Series, MarketIn)
    return router


def _add_lists(router: APIRouter, home: Path, MarketIn: Any) -> None:
    @router.get("/healthz")
    def healthz() -> answers.Health:
        """Return the state of the service, the amount of its data, and stale data."""
        return all_series.health(home)

    @router.get("/api/symbols")
    def symbols() -> list[answers.SeriesInfo]:
        """List every series with forecasts or candles, of all markets."""
        return all_series.listed(home)

    @router.get("/api/overview", response_model=answers.Overview, responses={**_CSV, **OPTIONS})
    def overview(market: MarketIn, form: Form = "json") -> Any:
        """Return an overview of all series of a market."""
        answer = all_series.overview(home, market)
        return answer if form == "json" else table(answer)

    @router.get("/api/runs", responses=OPTIONS)
    def flow_runs(limit: Annotated[int, Query(ge=1, le=200)] = 20) -> answers.Runs:
        """Return the trainings in progress, and the newest runs of the flow, of all markets."""
        return runs.runs(home, limit)

    @router.get("/api/changes")
    def changes() -> answers.Changes:
        """Return a token for each part of the stored data; cheap enough for a request every few seconds."""
        return checked_tokens(home)

    @router.get("/api/leaderboard", response_model=answers.Leaderboard, responses={**_CSV, **OPTIONS})
    def leaderboard(
        market: MarketIn, timeframe: TimeframeOption = None, run: RunOption = None, form: Form = "json"
    ) -> Any:
        """Return a market's architectures and champions against the random walk."""
        board = runs.leaderboard(market, timeframe, run)
        return board if form == "json" else table(board)


def _add_series(router: APIRouter, home: Path, Series: Any) -> None:
    @router.get("/api/models/{symbol}/{timeframe}", responses=SERIES)
    def models(series: Series) -> answers.Models:
        """Return the newest judged model of each architecture on a series."""
        return runs.models(series)

    responses = {**_CSV, **SERIES}

    @router.get("/api/decisions/{symbol}/{timeframe}", response_model=answers.Decisions, responses=responses)
    def decisions(
        series: Series, limit: Annotated[int, Query(ge=1, le=1000)] = 100, form: Form = "json"
    ) -> Any:
        """Return the decisions on a series' champion after each run, and their reasons, newest first."""
        answer = runs.decisions(series, limit)
        return answer if form == "json" else table(answer)

    @router.get("/api/ledger/{symbol}/{timeframe}", response_model=answers.Ledger, responses=responses)
    def ledger(series: Series, limit: Annotated[int, Query(ge=0, le=5000)] = 200, form: Form = "json") -> Any:
        """Return the scores of the forecasts against the random walk, and the newest `limit` scored rows."""
        return _listed(*one_series.scored(home, series, limit), form)

    @router.get("/api/forecast/{symbol}/{timeframe}", response_model=answers.Forecast, responses=responses)
    def forecast(series: Series, issued_at: IssuedAt = None, form: Form = "json") -> Any:
        """Return the newest forecast, or the forecast of a given issue time."""
        answer = one_series.forecast(home, series, issued_at)
        return answer if form == "json" else table(answer)

    @router.get("/api/touch/{symbol}/{timeframe}", responses=SERIES)
    def touch(series: Series, price: Prices = ()) -> answers.Touch:
        """Return the chances that prices are reached, by each step of the newest forecast."""
        return one_series.touch(home, series, price)

    @router.get("/api/first/{symbol}/{timeframe}", responses=SERIES)
    def first(series: Series, target: Target, stop: Stop) -> answers.First:
        """Return the chances that a target, and that a stop, is reached first, by each step of the newest forecast."""
        return one_series.first(home, series, target, stop)

    @router.get("/api/above/{symbol}/{timeframe}", responses=SERIES)
    def above(series: Series, price: Prices) -> answers.Above:
        """Return the chances that the closes of the newest forecast's candles lie above prices."""
        return one_series.above(home, series, price)

    @router.get("/api/extremes/{symbol}/{timeframe}", responses=SERIES)
    def extremes(series: Series) -> answers.Table:
        """Return the table from which the chances of the newest forecast are read."""
        return one_series.table(home, series)

    @router.get("/api/forecasts/{symbol}/{timeframe}", response_model=answers.Forecasts, responses=responses)
    def forecasts(series: Series, until: Until = None, limit: Limit = 200, form: Form = "json") -> Any:
        """Return the issue times of forecasts, newest last; each can be used as `issued_at` of a forecast."""
        answer = answers.Forecasts(**vars(series), forecasts=[])
        return _listed(answer, "forecasts", one_series.forecasts(home, series, limit, until), form)

    @router.get("/api/candles/{symbol}/{timeframe}", response_model=answers.Candles, responses=responses)
    def candles(series: Series, until: Until = None, limit: Limit = 200, form: Form = "json") -> Any:
        """Return stored candles, the newest last."""
        answer = answers.Candles(**vars(series), candles=[])
        return _listed(answer, "candles", one_series.candle_rows(home, series, limit, until), form)


def _add_figures(router: APIRouter, home: Path, Series: Any, MarketIn: Any) -> None:
    def themed_figure(drawn: dict[str, Any], theme: ThemeName, market: Market | None) -> answers.Figure:
        meta = {"market": market, "simulated": market == SIM} if market else {}
        return answers.Figure(**themed(figures.noted(drawn, **meta), THEMES[theme]))

    @router.get("/api/figures/forecast/{symbol}/{timeframe}", responses=SERIES)
    def forecast(
        series: Series,
        until: Until = None,
        issued_at: IssuedAt = None,
        limit: Limit = 500,
        earlier: Annotated[int, Query(ge=0, le=MAX_EARLIER)] = 0,
        theme: Theme = "light",
    ) -> answers.Figure:
        """Return candles with a forecast over them, and the realised closes."""
        drawn = figures.forecast(home, series, limit, until, issued_at, earlier)
        return themed_figure(drawn, theme, series.market)

    @router.get("/api/figures/{chart}/{symbol}/{timeframe}", responses=SERIES)
    def of_series(
        chart: Literal["record", "coverage", "decisions"], series: Series, theme: Theme = "light"
    ) -> answers.Figure:
        """Return the CRPS ratio of live forecasts (else of replays), the share of closes inside the bands, or the
        decisions on the champion, over time."""
        return themed_figure(figures.over_time(home, series, chart), theme, series.market)

    @router.get("/api/figures/losses/{run_id}", responses=SERIES)
    def losses(
        run_id: Annotated[str, InPath(pattern="^[0-9a-f]{32}$")], theme: Theme = "light"
    ) -> answers.Figure:
        """Return the losses per epoch of a model's run, or of a fleet's first models."""
        return themed_figure(figures.losses(run_id), theme, None)

    @router.get("/api/figures/compare", responses=OPTIONS)
    def compare(
        models: TwoModels, market: MarketIn, timeframe: TimeframeOption = None, theme: Theme = "light"
    ) -> answers.Figure:
        """Return two models side by side, on the coins that both were judged on over the same test span."""
        return themed_figure(figures.compare(home, market, timeframe, models), theme, market)

    @router.get("/api/figures/{chart}", responses=OPTIONS)
    def of_board(
        chart: Literal["board", "coins"],
        market: MarketIn,
        timeframe: TimeframeOption = None,
        theme: Theme = "light",
    ) -> answers.Figure:
        """Return the leaderboard's architectures, or its coins."""
        drawn = figures.board(market, timeframe) if chart == "board" else figures.coins(market, timeframe)
        return themed_figure(drawn, theme, market)
