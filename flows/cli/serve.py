"""`cpb serve` (the page and the JSON API) and `cpb ui` (MLflow's interface)."""

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import Json
from flows.console import emit, say

if TYPE_CHECKING:
    from flows.ops.serve import Address

PAGE_PORT = 8000

Host = Annotated[str, typer.Option("--host", help="address to listen on; the default is this machine only")]
Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="port to listen on")]
Names = Annotated[
    str | None,
    typer.Option(
        "--allowed-hosts",
        metavar="HOST,HOST",
        help="other host names under which the server accepts requests",
    ),
]


def serve(
    host: Host = "127.0.0.1",
    port: Port = PAGE_PORT,
    allowed_hosts: Names = None,
    json: Json = False,
) -> None:
    """Serve the forecasts: a web page at /, JSON under /api, its description at /docs.

    Example: cpb serve --port 8000
    """

    def ready(url: str) -> None:
        if json:
            emit({"url": url, "docs": f"{url}/docs"})
        else:
            say(f"forecasts at {url}  (API: {url}/docs; stop with Ctrl-C)")

    from flows.ops.guard import PAGE
    from flows.ops.serve import serve as serve_app
    from tasks.storage.files import checked_home
    from webapp.app import create_app

    names = os.environ.get("CPB_ALLOWED_HOSTS", "") if allowed_hosts is None else allowed_hosts
    serve_app(PAGE, partial(create_app, checked_home()), host, port, ready, hosts=_names(names))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def ui(
    host: Host = "127.0.0.1",
    port: Port = 5000,
    json: Json = False,
) -> None:
    """Start MLflow's interface to compare architectures, for you alone, and print the password of this run.

    Example: cpb ui
    """
    from flows.ops.guard import USER
    from flows.ops.serve import serve_ui

    def ready(where: "Address") -> None:
        if json:
            emit({"url": where.url, "runs": where.runs, "user": USER, "password": where.password or None})
            return
        say(f"MLflow: {where.runs}")
        if where.password:
            say(f"user {USER}, password {where.password} (of this run; stop with Ctrl-C)")

    say("starting MLflow's interface, about ten seconds")
    serve_ui(host, port, ready)
