"""The HTTP service: `/api/…` for programs, `/` for people. No request writes; on loopback unless told otherwise."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp

from schemas.errors import CpbError, MemberError, UsageError
from schemas.scope import home as home_folder
from webapp import registry
from webapp.answers import Problem
from webapp.api import Api, add_api
from webapp.api_figures import add_figures
from webapp.bundle import add_bundle
from webapp.guard import Guard

ALLOWED_HOSTS = "CPB_ALLOWED_HOSTS"
"""Environment variable of `cpb serve --allowed-hosts`: names separated by commas."""

_STATIC = Path(__file__).parent / "static"
_PAGE_HEADERS = {"Cache-Control": "no-cache"}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    421: {"model": Problem, "description": "the Host is not this service's"},
    503: {"model": Problem, "description": "what is stored cannot be read"},
}


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
        lifespan=_warmed,
    )
    app.allowed_hosts = allowed_hosts
    Guard(app, allowed_hosts)  # a name that cannot be one is refused now, not at the first request
    add_bundle(app)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    _add_problems(app)
    _add_pages(app)
    api = Api(home)
    add_api(app, api)
    add_figures(app, api)
    return app


def from_environment() -> FastAPI:
    """Build the service over `CPB_HOME`, for `uvicorn --factory` and `cpb serve`."""
    names = os.environ.get(ALLOWED_HOSTS, "").split(",")
    return create_app(home_folder(), [name.strip() for name in names if name.strip()])


@asynccontextmanager
async def _warmed(_app: FastAPI) -> AsyncIterator[None]:
    """Load MLflow while the first requests are answered: that takes seconds, which the first overview would wait."""
    Thread(target=registry.load, daemon=True, name="mlflow").start()
    yield


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
