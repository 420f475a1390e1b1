"""`cpb serve` (the page and the JSON API), `cpb ui` (MLflow's interface), `cpb deploy` (a local Prefect server)."""

import os
import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import Json
from flows.console import echo, emit, quiet_libraries, shown_progress
from schemas.errors import EXIT_COMPLETE, EXIT_FATAL, EXIT_PARTIAL, counted

if TYPE_CHECKING:
    from flows.ops.mlflow_ui import Address


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
            echo(f"forecasts at {url}  (API: {url}/docs; stop with Ctrl-C)")

    from flows.ops.listeners import PAGE
    from flows.ops.serve import run_server
    from tasks.storage.home_version import checked_home
    from webapp.app import create_app

    names = os.environ.get("CPB_ALLOWED_HOSTS", "") if allowed_hosts is None else allowed_hosts
    run_server(PAGE, partial(create_app, checked_home()), host, port, ready, hosts=_names(names))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def ui(
    host: Host = "127.0.0.1",
    port: Port = 5000,
    json: Json = False,
) -> None:
    """Start MLflow's interface to compare architectures, for you alone; print its password and two charts' links.

    Example: cpb ui
    """
    from flows.ops.mlflow_ui import serve_ui
    from flows.ops.passwords import USER

    def ready(where: "Address") -> None:
        if json:
            signing_in = {"user": USER, "password": where.password or None}
            emit({"url": where.url, "runs": where.runs, **signing_in, "views": where.views})
            return
        echo(f"MLflow: {where.runs}")
        if where.password:
            echo(f"user {USER}, password {where.password} (of this run; stop with Ctrl-C)")
        for about, link in where.views.items():
            echo(f"{about}:\n  {link}")

    echo("starting MLflow's interface, about ten seconds")
    serve_ui(host, port, ready)


app = typer.Typer(
    help="Run the flows on a Prefect server and a schedule.\n\nExample: cpb deploy up && cpb deploy run train-all",
    callback=quiet_libraries,
)

ServerPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="default: the port of the last `up`, else 4200", show_default=False),
]


@app.command()
def up(port: ServerPort = None, json: Json = False) -> None:
    """Start server, work pool, deployments and worker, unless they are already running.

    Example: cpb deploy up && cpb deploy run train-all
    """
    from flows.deploy import services
    from flows.ops.passwords import password_file

    echo("starting server, worker and deployments, unless they run (10 to 30 s) …")
    result = services.up(port)
    api, show_password = services.api_of(result.port), f"cat {shlex.quote(str(password_file()))}"
    export = f'export PREFECT_API_URL={api} PREFECT_API_AUTH_STRING="$({show_password})"'
    if json:
        places = {"api": api, "auth_file": password_file(), "export": export}
        emit(asdict(result) | places | {"exit": EXIT_COMPLETE})
    for name in result.runs_ended:
        echo(f"run {name} is marked Crashed: its worker has ended")
    if result.runs_dropped:
        echo(f"{counted(result.runs_dropped, 'scheduled run')} missed while no worker was running: dropped")
    echo(f"up: {api.removesuffix('/api')}  (started: {' and '.join(result.started) or 'nothing, both run'})")
    echo(f"the page asks for a password, which this prints: {show_password}")
    echo(f"for prefect's own commands: {export}")
    echo("`cpb deploy status` shows the runs, `cpb deploy down` stops everything")


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="train-all, nightly, hourly, or FLOW/DEPLOYMENT")],
    param: Annotated[
        list[str] | None,
        typer.Option("--param", help="NAME=VALUE, the value as JSON or text; may be repeated"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="wait until the run has ended")] = False,
    json: Json = False,
) -> None:
    """Ask a deployment for a run; the short form of `prefect deployment run FLOW/DEPLOYMENT`.

    Example: cpb deploy run train-all --param preset=smoke --param source=sim
    """
    from flows.deploy import services

    with shown_progress("deploy run", "asking the server"):
        flow_run = services.run(name, param or (), watch=watch)
    state = flow_run.state
    code = EXIT_COMPLETE
    if watch and state:
        code = (
            EXIT_PARTIAL if state.name == "Partial" else EXIT_COMPLETE if state.is_completed() else EXIT_FATAL
        )
    shown = f"{state.name}{f': {state.message}' if state.message else ''}" if state else "unknown"
    echo(f"run {flow_run.name} (id {flow_run.id}): {shown}")
    if json:
        emit({"flow_run_id": flow_run.id, "name": flow_run.name, "state": state and state.name, "exit": code})
    raise typer.Exit(code)


@app.command()
def status(json: Json = False) -> None:
    """Show the processes, each deployment's last run, and problems, such as stale data; exit 1 if there is one.

    Example: cpb deploy status
    """
    from flows.deploy.status import read_status

    result = read_status()
    code = EXIT_FATAL if result.problems else EXIT_COMPLETE
    if json:
        emit(asdict(result) | {"up": len(result.pids) == 2, "exit": code})
    pids = ", ".join(f"{name} pid {pid}" for name, pid in result.pids.items())
    echo(f"port {result.port}: {pids}" if pids else "nothing is running; start it with `cpb deploy up`")
    for deployment in result.deployments:
        last = (
            f"{deployment.outcome} {_time(deployment.ended)}"
            if deployment.outcome
            else "no run has ended yet"
        )
        echo(f"{deployment.name:<22}  {last}; next {_time(deployment.next)}")
    echo(f"disk: {result.free_bytes / 1e9:,.0f} GB free")
    for problem in result.problems:
        echo(f"WRONG: {problem}")
    raise typer.Exit(code)


@app.command()
def down(json: Json = False) -> None:
    """Stop worker and server; runs in progress end as Cancelled.

    Example: cpb deploy down
    """
    from flows.deploy import services

    stopped = services.down()
    if json:
        emit({"stopped": stopped, "exit": EXIT_COMPLETE})
    echo(f"stopped {' and '.join(stopped)}" if stopped else "nothing was up")


def _time(time: datetime | None) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if time else "none"
