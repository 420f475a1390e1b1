"""The HTTP service: `/api/…` for programs, `/` for people. Reads only, on loopback unless told otherwise."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp

from schemas.errors import CpbError, MemberError, UsageError
from schemas.identity import Market, SeriesId
from schemas.scope import home as home_folder
from schemas.universe import INTERVAL_SECONDS, symbol_of
from webapp import reading
from webapp.answers import Candles, Forecast, Health, Leaderboard, Ledger, Problem, SeriesInfo
from webapp.guard import Guard

ALLOWED_HOSTS = "CPB_ALLOWED_HOSTS"
"""Environment variable of `cpb serve --allowed-hosts`: names separated by commas."""

_STATIC = Path(__file__).parent / "static"
_PAGE_HEADERS = {"Cache-Control": "no-cache"}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    421: {"model": Problem, "description": "the Host is not this service's"},
    503: {"model": Problem, "description": "what is stored cannot be read"},
}
_OPTIONS: dict[int | str, dict[str, Any]] = {422: {"model": Problem, "description": "impossible option"}}
_SERIES: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "unknown series"},
    **_OPTIONS,
}

MarketOption = Annotated[
    Market | None, Query(description="default: spot, or sim where nothing but simulated data is stored")
]


def instant(
    until: Annotated[datetime | None, Query(description="newest close; UTC where no zone is given")] = None,
) -> datetime | None:
    """Return the instant in UTC; raises `UsageError` for years that no candle can be of."""
    if until is None:
        return None
    try:
        moment = until.astimezone(UTC) if until.tzinfo else until.replace(tzinfo=UTC)
    except OverflowError:
        moment = None
    if moment is None or not 1970 <= moment.year < 2262:  # what nanoseconds since 1970 can say
        raise UsageError(
            f"until {until.isoformat()} is out of range: use a date from 1970 to 2261",
            code="date",
            field="until",
        )
    return moment


class Service(FastAPI):
    """FastAPI behind a guard that sees every request first and every answer last, those to faults included."""

    allowed_hosts: Sequence[str] = ()

    def build_middleware_stack(self) -> ASGIApp:
        """Put the guard outermost: FastAPI's own middleware lies inside the handler of unexpected errors."""
        return Guard(super().build_middleware_stack(), self.allowed_hosts)


def create_app(home: Path, allowed_hosts: Sequence[str] = ()) -> FastAPI:
    """Build the service over the store in `home`; runs come from the MLflow store.

    Args:
        allowed_hosts: names by which the service may be asked, besides loopback and the address it is asked at.
    """
    app = Service(
        title="cpb",
        description="Forecasts of the distribution of the next closes, with what came true. Times are UTC.",
        version="1",
        docs_url=None,  # its viewer would come from another host
        redoc_url=None,
        responses=_PROBLEMS,
    )
    app.allowed_hosts = allowed_hosts
    Guard(app, allowed_hosts)  # a name that cannot be one is refused now, not at the first request
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    _add_problems(app)
    _add_pages(app)
    _add_api(app, home)
    return app


def from_environment() -> FastAPI:
    """Build the service over `CPB_HOME`, for `uvicorn --factory` and `cpb serve`."""
    names = os.environ.get(ALLOWED_HOSTS, "").split(",")
    return create_app(home_folder(), [name.strip() for name in names if name.strip()])


def _add_problems(app: FastAPI) -> None:
    """Make every fault one sentence in `detail`."""

    @app.exception_handler(CpbError)
    def known(_request: Request, error: CpbError) -> JSONResponse:
        status = 422 if isinstance(error, UsageError) else 503
        if isinstance(error, MemberError) and error.code != "damaged":
            status = 404
        return JSONResponse({"detail": str(error)}, status_code=status)

    @app.exception_handler(RequestValidationError)
    def impossible(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name, given = first["loc"][-1], str(first.get("input"))[:100]
        reason = first["msg"][0].lower() + first["msg"][1:]
        return JSONResponse({"detail": f"{name} {given!r} cannot be used: {reason}"}, status_code=422)

    @app.exception_handler(Exception)
    def unexpected(_request: Request, error: Exception) -> JSONResponse:
        text = f"the service failed ({type(error).__name__}); its log has the details"
        return JSONResponse({"detail": text}, status_code=500)


def _add_pages(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html", headers=_PAGE_HEADERS)

    @app.get("/docs", include_in_schema=False)
    def docs() -> FileResponse:
        return FileResponse(_STATIC / "docs.html", headers=_PAGE_HEADERS)


def _add_api(app: FastAPI, home: Path) -> None:
    def series_of(symbol: str, timeframe: str, market: MarketOption = None) -> SeriesId:
        if timeframe not in INTERVAL_SECONDS:
            raise MemberError(
                f"timeframe {timeframe!r} is unknown: choose from {', '.join(INTERVAL_SECONDS)}"
            )
        try:
            return SeriesId(market or reading.default_market(home), symbol_of(symbol), timeframe)
        except UsageError as error:
            raise MemberError(str(error)) from error

    Series = Annotated[SeriesId, Depends(series_of)]
    Limit = Annotated[int, Query(ge=1, le=5000)]

    @app.get("/healthz")
    def healthz() -> Health:
        """Tell that the service answers, what it has, and whether that is too old."""
        return reading.health(home)

    @app.get("/api/symbols")
    def symbols() -> list[SeriesInfo]:
        """List every series with forecasts or candles, of all markets."""
        return reading.all_series(home)

    @app.get("/api/forecast/{symbol}/{timeframe}", responses=_SERIES)
    def forecast(series: Series) -> Forecast:
        """Return the newest forecast."""
        return reading.newest_forecast(home, series)

    @app.get("/api/candles/{symbol}/{timeframe}", responses=_SERIES)
    def candles(
        series: Series, until: Annotated[datetime | None, Depends(instant)], limit: Limit = 200
    ) -> Candles:
        """Return stored candles, the newest last."""
        return reading.candles(home, series, limit, until)

    @app.get("/api/leaderboard", responses=_OPTIONS)
    def leaderboard(market: MarketOption = None) -> Leaderboard:
        """Return a market's architectures and champions against the random walk."""
        return reading.leaderboard(market or reading.default_market(home))

    @app.get("/api/ledger/{symbol}/{timeframe}", responses=_SERIES)
    def ledger(series: Series, limit: Annotated[int, Query(ge=0, le=5000)] = 200) -> Ledger:
        """Return what came true of the forecasts, against the random walk, and the newest `limit` scored rows."""
        return reading.scored(home, series, limit)
