"""The HTTP service: the API at `/api/…`, the page at `/`. Read-only; binds to loopback unless configured otherwise."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from html import escape
from pathlib import Path
from threading import Event, Thread
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from schemas.errors import CpbError, MemberError, UsageError
from webapp import all_series, runs
from webapp.answers import Problem
from webapp.api import routes

_STATIC = Path(__file__).parent / "static"
_PAGE_HEADERS = {"Cache-Control": "no-cache"}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    421: {"model": Problem, "description": "the Host header does not name this service"},
    503: {"model": Problem, "description": "what is stored cannot be read"},
}


class Service(FastAPI):
    """FastAPI that handles HEAD as GET (uvicorn omits the body): routes for GET reject HEAD."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await super().__call__(scope, receive, send)


def create_app(home: Path, program: str = "cpb") -> FastAPI:
    """Build the service over the store in `home`; runs come from the MLflow store.

    `cpb serve` runs it behind the guard of `flows/ops`.

    Args:
        program: the words that start cpb in the commands that the page shows; answers of the API have `cpb`.
    """
    app = Service(
        title="cpb",
        description="Forecasts of the distribution of the next closes, with the actual closes. Times are UTC.",
        version="1",
        docs_url=None,  # its viewer is loaded from another host
        redoc_url=None,
        responses=_PROBLEMS,
        lifespan=_warmed(home),
    )
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    # From the installed wheel, not a CDN; compressed, 1.5 MB instead of 4.8.
    plotly = StaticFiles(packages=[("plotly", "package_data")])
    app.mount("/plotly", GZipMiddleware(plotly, compresslevel=6), name="plotly")
    _add_problems(app)
    _add_pages(app, program)
    app.include_router(routes(home))
    return app


def _warmed(home: Path) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def warmed(_app: FastAPI) -> AsyncIterator[None]:
        # how long the thread of all requests waits for one that computes an answer
        sys.setswitchinterval(0.0005)
        with suppress(Exception):  # a request reports it
            await run_in_threadpool(all_series.warm, home)
        # During the first requests: it takes seconds, for which the first overview would have to wait.
        ended = Event()
        Thread(target=runs.keep_fresh, args=(ended,), daemon=True, name="mlflow").start()
        yield
        ended.set()

    return warmed


def _add_problems(app: FastAPI) -> None:
    """Convert every error to a single sentence in `detail`."""

    @app.exception_handler(CpbError)
    def foreseen(_request: Request, error: CpbError) -> JSONResponse:
        # 503, since a damaged store can be mended: the same request works later.
        status = 422 if isinstance(error, UsageError) else 503
        if isinstance(error, MemberError) and error.code != "damaged":
            status = 404
        return JSONResponse({"detail": str(error)}, status_code=status)

    @app.exception_handler(RequestValidationError)
    def impossible(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name, given = first["loc"][1], str(first.get("input"))[:100]
        reason = first["msg"].removeprefix("Value error, ")
        reason = reason[0].lower() + reason[1:]
        if first["type"] == "missing":
            return JSONResponse({"detail": f"{name} is missing; /docs says what it is"}, status_code=422)
        return JSONResponse({"detail": f"{name} {given!r} cannot be used: {reason}"}, status_code=422)

    @app.exception_handler(404)
    def unknown(request: Request, _error: Exception) -> JSONResponse:
        text = f"there is no {request.url.path}; /docs lists what there is"
        return JSONResponse({"detail": text}, status_code=404)

    @app.exception_handler(Exception)
    def unexpected(_request: Request, error: Exception) -> JSONResponse:
        text = f"the service failed ({type(error).__name__}); its log has the details"
        return JSONResponse({"detail": text}, status_code=500)


def _add_pages(app: FastAPI, program: str) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        index = (_STATIC / "index.html").read_text("utf-8")
        told = index.replace("<html ", f'<html data-program="{escape(program)}" ', 1)
        return HTMLResponse(told, headers=_PAGE_HEADERS)

    @app.get("/docs", include_in_schema=False)
    def docs() -> FileResponse:
        return FileResponse(_STATIC / "docs.html", headers=_PAGE_HEADERS)
