"""`cpb serve` (the page and the JSON API), `cpb ui` (MLflow's interface), `cpb deploy` (a local Prefect server)."""

import os
import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.cli.ending import Answer, Json, answered
from flows.cli.options import Command
from flows.console import Column, echo, emit, print_table, quiet_libraries, show
from flows.progress import shown_progress
from flows.typed import program
from schemas.errors import EXIT_COMPLETE, EXIT_FATAL, EXIT_PARTIAL, MINUTE, counted

if TYPE_CHECKING:
    from flows.deploy.status import Deployment, Status
    from flows.ops.mlflow_ui import Address


PAGE_PORT = 8000

_DEPLOYMENTS = (
    Column("deployment", "name", stays=True),
    Column("running", "running", stays=True, folds=True),
    Column("queued", "queued", stays=True, folds=True),
    Column("last run", "last", stays=True, folds=True),
    Column("next", "next"),
)

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
        if not is_loopback(host):
            echo(
                f"warning: everybody who reaches port {port} of {host} can read the page and its JSON, which ask for "
                "no password and are sent unencrypted; leave --host out, or put a proxy with both before it"
            )
        # Not an `Answer`: a server tells its address when it begins, not when it ends.
        if json:
            emit({"url": url, "docs": f"{url}/docs"})
        else:
            echo(f"forecasts at {url}  (API: {url}/docs; stop with Ctrl-C)")

    from flows.ops.listeners import PAGE
    from flows.ops.ports import is_loopback
    from flows.ops.serve import run_server
    from tasks.storage.home_version import checked_home
    from webapp.app import create_app

    # The option replaces the variable also when it is empty: so a shell can take the names away.
    names = os.environ.get("CPB_ALLOWED_HOSTS", "") if allowed_hosts is None else allowed_hosts
    # Who reads the page on another machine has this cpb at no path, and is not told of it.
    typed = program() if is_loopback(host) and not _names(names) else "cpb"
    run_server(PAGE, partial(create_app, checked_home(), typed), host, port, ready, hosts=_names(names))


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

    # Said first: a command that shows nothing for ten seconds looks stuck.
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
@answered
def up(
    port: ServerPort = None,
    host: Annotated[
        Literal["127.0.0.1", "0.0.0.0"] | None,
        typer.Option(
            help="address to listen on; 0.0.0.0, all of them, is what a container needs; default: that of a running "
            "server, else 127.0.0.1",
            show_default=False,
        ),
    ] = None,
    foreground: Annotated[
        bool,
        typer.Option(
            "--foreground", help="stay until Ctrl-C, or until server or worker ends; then stop both"
        ),
    ] = False,
) -> Answer:
    """Start server, work pool, deployments and worker, unless they are already running.

    Example: cpb deploy up && cpb deploy run train-all
    """
    from flows.deploy import services
    from flows.ops.passwords import password_file

    echo("starting server, worker and deployments, unless they run (10 to 30 s) …")
    result = services.up(port, host)
    api, show_password = services.api_of(result.port), f"cat {shlex.quote(str(password_file()))}"
    export = f'export PREFECT_API_URL={api} PREFECT_API_AUTH_STRING="$({show_password})"'
    said = [f"run {name} is marked Crashed: its worker has ended" for name in result.runs_ended]
    if result.runs_dropped:
        dropped = counted(result.runs_dropped, "scheduled run")
        said.append(f"{dropped} missed while no worker was running: dropped")
    said += [
        f"up: {api.removesuffix('/api')}  (started: {' and '.join(result.started) or 'nothing, both run'})",
        f"the page asks for a password, which this prints: {show_password}",
        f"for prefect's own commands: {export}",
        "`cpb deploy status` shows the runs, `cpb deploy down` stops everything",
    ]
    if foreground:
        for sentence in said:
            echo(sentence)
        services.stay()
        said = ["stopped server and worker"]
    places = {"api": api, "auth_file": password_file(), "export": export}
    return Answer(asdict(result) | places | {"exit": EXIT_COMPLETE}, notes=said)


@app.command(cls=Command)
@answered
def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="train-all, nightly, hourly, or FLOW/DEPLOYMENT")
    ],
    param: Annotated[
        list[str] | None,
        typer.Option("--param", help="NAME=VALUE, the value as JSON or text; may be repeated"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="wait until the run has ended")] = False,
) -> Answer:
    """Ask a deployment for a run; the short form of `prefect deployment run FLOW/DEPLOYMENT`.

    Example: cpb deploy run train-all --param preset=smoke --param source=sim
    """
    from flows.deploy import services

    with shown_progress("deploy run", "asking the server"):
        flow_run = services.run(name, param or (), watch=watch)
    state = flow_run.state
    # Without --watch the run has only begun: that it could be asked for is the whole result.
    code = EXIT_COMPLETE
    if watch and state:
        code = (
            EXIT_PARTIAL if state.name == "Partial" else EXIT_COMPLETE if state.is_completed() else EXIT_FATAL
        )
    shown = f"{state.name}{f': {state.message}' if state.message else ''}" if state else "unknown"
    answer = {
        "flow_run_id": flow_run.id,
        "name": flow_run.name,
        "state": state and state.name,
        "exit": code,
    }
    return Answer(answer, notes=[f"run {flow_run.name} (id {flow_run.id}): {shown}"])


@app.command()
@answered
def status() -> Answer:
    """Show the processes, each deployment's last run, and problems, such as stale data; exit 1 if there is one.

    Example: cpb deploy status
    """
    from flows.deploy.status import read_status

    result = read_status()
    code = EXIT_FATAL if result.problems else EXIT_COMPLETE
    answer = asdict(result) | {"up": len(result.pids) == 2, "exit": code}
    return Answer(answer, partial(_print_status, result))


def _print_status(status: "Status") -> None:
    # On stdout, problems too: this is the result, which scripts search and units log.
    pids = ", ".join(f"{name} pid {pid}" for name, pid in status.pids.items())
    show(f"port {status.port}: {pids}" if pids else "nothing is running; start it with `cpb deploy up`")
    if status.deployments:
        print_table("", _DEPLOYMENTS, [_deployment_row(deployment) for deployment in status.deployments])
    show(f"disk: {status.free_bytes / 1e9:,.0f} GB free")
    for problem in status.problems:
        show(f"WRONG: {problem}")


def _deployment_row(deployment: "Deployment") -> dict[str, str | None]:
    ended = f"{deployment.outcome} {_time(deployment.ended)}"
    if deployment.ended_in:
        ended += f", a run of {deployment.ended_in}"
    return {
        "name": deployment.name,
        "running": ", ".join(deployment.running) or None,
        "queued": ", ".join(deployment.queued) or None,
        "last": ended if deployment.outcome else "no run has ended yet",
        "next": "paused" if deployment.paused else _time(deployment.next),
    }


@app.command()
@answered
def down() -> Answer:
    """Stop worker and server; runs in progress end as Cancelled.

    Example: cpb deploy down
    """
    from flows.deploy import services

    stopped = services.down()
    said = f"stopped {' and '.join(stopped)}" if stopped else "nothing was up"
    return Answer({"stopped": stopped, "exit": EXIT_COMPLETE}, notes=[said])


def _time(time: datetime | None) -> str:
    return f"{time.astimezone(UTC):{MINUTE}} UTC" if time else "none"
