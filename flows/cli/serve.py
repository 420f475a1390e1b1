"""`cpb serve` (the page and the JSON API), `cpb ui` (MLflow's interface) and `cpb tracking-server`."""

import os
import shlex
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import Json
from flows.console import emit, say

if TYPE_CHECKING:
    from flows.ops.ui import Address

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

    from flows.ops.listeners import PAGE
    from flows.ops.serving import serve as serve_app
    from tasks.storage.home import checked_home
    from webapp.app import create_app

    names = os.environ.get("CPB_ALLOWED_HOSTS", "") if allowed_hosts is None else allowed_hosts
    serve_app(PAGE, partial(create_app, checked_home()), host, port, ready, hosts=_names(names))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def tracking_server(
    host: Host = "127.0.0.1",
    port: Port = 5000,
    allowed_hosts: Names = None,
    artifacts: Annotated[
        str | None,
        typer.Option("--artifacts", metavar="URI", help="where it stores artifacts; default: ./mlartifacts"),
    ] = None,
    json: Json = False,
) -> None:
    """Serve MLflow to several machines, over the database in MLFLOW_BACKEND_STORE_URI and behind a password.

    Example: cpb tracking-server --host 0.0.0.0 --allowed-hosts head.example.com
    """
    from flows.ops.tracking_server import password_file, serve_tracking

    def ready(url: str) -> None:
        file = password_file().path
        lines = [
            f"export MLFLOW_TRACKING_URI={url} MLFLOW_TRACKING_USERNAME=cpb",
            f'export MLFLOW_TRACKING_PASSWORD="$(cut -d: -f2 {shlex.quote(str(file))})"',
        ]
        if json:
            emit({"url": url, "auth_file": str(file), "export": " && ".join(lines)})
            return
        say(f"MLflow for several machines: {url}  (stop with Ctrl-C)")
        say("on this machine (on others: with its address or name, and a copy of that file):")
        for line in lines:
            say(f"  {line}")

    serve_tracking(host, port, _names(allowed_hosts or ""), artifacts, ready)


def ui(
    host: Host = "127.0.0.1",
    port: Port = 5000,
    json: Json = False,
) -> None:
    """Start MLflow's interface to compare architectures, for you alone, and print a link that signs you in.

    Example: cpb ui
    """
    from flows.ops.ui import serve_ui

    def ready(where: "Address") -> None:
        if json:
            signing_in = {"sign_in": where.sign_in or None, "auth_file": where.auth_file}
            emit({"url": where.url, "runs": where.runs, **signing_in})
            return
        if where.sign_in:
            say(f"MLflow: {where.sign_in}  (valid once, for a minute; stop with Ctrl-C)")
            say(f"later, or in another browser: {where.runs}, user and password in {where.auth_file}")
        else:
            say(f"MLflow: {where.runs}")

    say("starting MLflow's interface, about ten seconds")
    serve_ui(host, port, ready)
