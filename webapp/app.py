"""The HTTP service: `/api/…` for programs, `/` for people. Reads only, on loopback unless told otherwise."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from schemas.errors import CpbError, MemberError, UsageError
from schemas.scope import home as home_folder
from schemas.universe import INTERVAL_SECONDS, symbol_of
from webapp import reading
from webapp.answers import Candles, Forecast, Health, Leaderboard, Ledger, Problem, SeriesInfo

_STATIC = Path(__file__).parent / "static"
# The page is ours alone: no script, style or font of anyone else's, and no one may frame it.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}
_MISSING: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "unknown series"}}


def series_of(symbol: str, timeframe: str) -> tuple[str, str]:
    """Return the symbol and timeframe of a path; `btc` is BTCUSDT. Raises `MemberError` for impossible ones."""
    if timeframe not in INTERVAL_SECONDS:
        raise MemberError(f"timeframe {timeframe!r} is unknown: choose from {', '.join(INTERVAL_SECONDS)}")
    try:
        return symbol_of(symbol), timeframe
    except UsageError as error:
        raise MemberError(str(error)) from error


Series = Annotated[tuple[str, str], Depends(series_of)]


def create_app(home: Path) -> FastAPI:
    """Build the service over the store in `home`; runs come from the MLflow store."""
    app = FastAPI(
        title="cpb",
        description="Forecasts of the distribution of the next closes, with what came true. Times are UTC.",
        version="1",
    )
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")

    @app.exception_handler(CpbError)
    def problem(_request: Request, error: CpbError) -> JSONResponse:
        status = 404 if isinstance(error, MemberError) else 503
        return JSONResponse({"detail": str(error)}, status_code=status)

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html", headers=_PAGE_HEADERS)

    @app.get("/healthz")
    def healthz() -> Health:
        """Tell that the service answers, and what it has."""
        return reading.health(home)

    @app.get("/api/symbols")
    def symbols() -> list[SeriesInfo]:
        """List every coin x timeframe with forecasts or candles."""
        return reading.all_series(home)

    @app.get("/api/forecast/{symbol}/{timeframe}", responses=_MISSING)
    def forecast(series: Series) -> Forecast:
        """Return the newest forecast."""
        return reading.newest_forecast(home, *series)

    @app.get("/api/candles/{symbol}/{timeframe}", responses=_MISSING)
    def candles(
        series: Series,
        limit: Annotated[int, Query(ge=1, le=5000)] = 200,
        until: Annotated[
            datetime | None, Query(description="newest close; UTC where no zone is given")
        ] = None,
    ) -> Candles:
        """Return stored candles, the newest last."""
        return reading.candles(home, *series, limit, until)

    @app.get("/api/leaderboard")
    def leaderboard() -> Leaderboard:
        """Return architectures and champions against the random walk."""
        return reading.leaderboard()

    @app.get("/api/ledger/{symbol}/{timeframe}", responses=_MISSING)
    def ledger(series: Series, limit: Annotated[int, Query(ge=1, le=5000)] = 200) -> Ledger:
        """Return how often forecasts of the last 90 days came true."""
        return reading.scored(home, *series, limit)

    return app


def from_environment() -> FastAPI:
    """Build the service over `CPB_HOME`, for `uvicorn --factory` and `cpb serve`."""
    return create_app(home_folder())
