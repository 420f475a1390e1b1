"""The routes of the figures: `/api/figures/…`, each a figure for plotly in a light or a dark theme."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Path, Query, Request, Response

from schemas.identity import Market, SeriesId
from webapp import figures, registry
from webapp.answers import Figure
from webapp.api import OPTIONS, SERIES, Api, IssuedAt, Limit, MarketOption, TimeframeOption, Until
from webapp.figures import MAX_EARLIER, ThemeName
from webapp.replies import State, series_state

Theme = Annotated[ThemeName, Query(description="of the colours")]
TwoModels = Annotated[
    str,
    Query(
        description="two models: har,gru or har,gru/smoke",
        max_length=200,
        json_schema_extra={"pattern": r"^[^,]*[^,\s][^,]*,[^,]*[^,\s][^,]*$"},
    ),
]


def add_figures(app: FastAPI, api: Api) -> None:
    """Add the routes."""
    home = api.home
    Series = Annotated[SeriesId, Depends(api.series)]

    def reply(
        request: Request, what: str, of: SeriesId | Market | None, options: tuple[Any, ...], state: State,
        make: Callable[[], dict[str, Any]], theme: ThemeName,
    ) -> Response:  # fmt: skip
        market = of.market if isinstance(of, SeriesId) else of
        key = ("figure", what, of, options, theme)
        return api.reply(request, key, state, lambda: figures.answer(make(), theme, market))

    @app.get("/api/figures/forecast/{symbol}/{timeframe}", response_model=Figure, responses=SERIES)
    def forecast(
        request: Request, series: Series, until: Until = None, issued_at: IssuedAt = None, limit: Limit = 500,
        earlier: Annotated[int, Query(ge=0, le=MAX_EARLIER)] = 0, theme: Theme = "light",
    ) -> Response:  # fmt: skip
        """Return candles with a forecast over them, and the realised closes."""
        return reply(
            request, "forecast", series, (until, issued_at, limit, earlier),
            series_state(home, series, "klines", "provisional", "forecasts"),
            lambda: figures.forecast(home, series, limit, until, issued_at, earlier), theme,
        )  # fmt: skip

    @app.get("/api/figures/record/{symbol}/{timeframe}", response_model=Figure, responses=SERIES)
    def record(request: Request, series: Series, theme: Theme = "light") -> Response:
        """Return the CRPS ratio over time, of live forecasts if there are any, otherwise of replays."""
        state = series_state(home, series, "ledger")
        return reply(
            request, "record", series, (), state, lambda: figures.over_time(home, series, "record"), theme
        )

    @app.get("/api/figures/coverage/{symbol}/{timeframe}", response_model=Figure, responses=SERIES)
    def coverage(request: Request, series: Series, theme: Theme = "light") -> Response:
        """Return the share of closes inside the bands over time."""
        state = series_state(home, series, "ledger")
        return reply(
            request, "coverage", series, (), state, lambda: figures.over_time(home, series, "coverage"), theme
        )

    @app.get("/api/figures/decisions/{symbol}/{timeframe}", response_model=Figure, responses=SERIES)
    def decisions(request: Request, series: Series, theme: Theme = "light") -> Response:
        """Return the decisions on a series' champion over time."""
        state = registry.state()
        return reply(request, "decisions", series, (), state, lambda: figures.decisions(series), theme)

    @app.get("/api/figures/losses/{run_id}", response_model=Figure, responses=SERIES)
    def losses(
        request: Request, run_id: Annotated[str, Path(pattern="^[0-9a-f]{32}$")], theme: Theme = "light"
    ) -> Response:
        """Return the losses per epoch of a model's run, or of a fleet's first models."""
        return reply(
            request, "losses", None, (run_id,), registry.state(), lambda: figures.losses(run_id), theme
        )

    @app.get("/api/figures/compare", response_model=Figure, responses=OPTIONS)
    def compare(
        request: Request, models: TwoModels, market: MarketOption = None, timeframe: TimeframeOption = None,
        theme: Theme = "light",
    ) -> Response:  # fmt: skip
        """Return two models side by side, on the coins that both were judged on over the same test span."""
        chosen = api.market(market)
        return reply(
            request, "compare", chosen, (timeframe, models), registry.state(),
            lambda: figures.compare(home, chosen, timeframe, models), theme,
        )  # fmt: skip

    @app.get("/api/figures/{name}", response_model=Figure, responses=OPTIONS)
    def of_board(
        request: Request, name: Literal["board", "coins"], market: MarketOption = None,
        timeframe: TimeframeOption = None, theme: Theme = "light",
    ) -> Response:  # fmt: skip
        """Return the leaderboard's architectures, or its coins."""
        chosen = api.market(market)
        make = figures.board if name == "board" else figures.coins
        return reply(
            request, name, chosen, (timeframe,), registry.state(), lambda: make(chosen, timeframe), theme
        )
