"""`cpb deploy up|run|status|down`: the project on a local Prefect server."""

import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.options import Json
from flows.console import emit, quiet_libraries, say, shown_progress
from schemas.errors import age, count

if TYPE_CHECKING:
    from flows.deploy.status import Deployment, Status

app = typer.Typer(
    help="Run the flows on a Prefect server and a schedule.\n\nExample: cpb deploy up && cpb deploy run train-all",
    callback=quiet_libraries,
)

Port = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        help="default: the port of the last `up`, until `down`; else 4200",
        show_default=False,
    ),
]


@app.command()
def up(port: Port = None, json: Json = False) -> None:
    """Start server, work pool, deployments and worker, unless they are already running.

    Example: cpb deploy up && cpb deploy run train-all
    """
    from flows.deploy import control
    from flows.prefect_server import password_file

    say("starting server, worker and deployments, unless they run (10 to 30 s) …")
    found = control.up(port)
    server, password = found.server, password_file(found.server.home).path
    show_password = f"cat {shlex.quote(str(password))}"
    export = f'export PREFECT_API_URL={server.api} PREFECT_API_AUTH_STRING="$({show_password})"'
    page = server.api.removesuffix("/api")
    if json:
        emit(
            {
                "port": server.port, "api": server.api, "auth_file": password, "export": export,
                "started": found.started, "pids": {s.name: s.process.pid for s in (server, found.worker)},
                "runs_ended": [run.name for run in found.ended], "runs_dropped": found.dropped,
                "seconds": found.seconds, "exit": 0,
            }
        )  # fmt: skip
    for run in found.ended:
        say(f"run {run.name} is marked {run.state}: its process is gone")
    started = " and ".join(found.started) or "nothing, both run"
    say(f"up: {page}  (started: {started}; {found.seconds:.0f} s)")
    say(f"the page asks for a password, which this prints: {show_password}")
    say(f"for prefect's own commands: {export}")
    say("`cpb deploy status` shows the runs, `cpb deploy down` stops everything")


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="train-all, nightly, hourly, or FLOW/DEPLOYMENT")],
    param: Annotated[
        list[str] | None,
        typer.Option("--param", help="NAME=VALUE, the value as JSON or text; may be repeated"),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="wait until the run has ended, and show its state and log")
    ] = False,
    json: Json = False,
) -> None:
    """Ask a deployment for a run; the short form of `prefect deployment run FLOW/DEPLOYMENT`.

    Example: cpb deploy run train-all --param preset=smoke --param source=sim
    """
    from flows.deploy import runs

    with shown_progress(runs.PROGRESS, "asking the server"):
        made = runs.run(name, param or (), watch)
    ending = (
        f" ended {made.state}" + (f": {made.message}" if made.message else "") if watch else " is requested"
    )
    say(f"run {made.name} of {made.deployment}{ending} (id {made.flow_run_id})")
    if json:
        emit({"deployment": made.deployment, "flow_run_id": made.flow_run_id, "name": made.name,
              "state": made.state, "exit": made.exit_code})  # fmt: skip
    raise typer.Exit(made.exit_code)


@app.command()
def status(json: Json = False) -> None:
    """Show the processes, each deployment's last run, and the age of the data; exit 1 if there is a problem.

    Example: cpb deploy status
    """
    from flows.deploy.status import status as look

    found = look()
    code = 1 if found.problems else 0
    if json:
        emit(_as_json(found) | {"exit": code})
    for line in _lines(found):
        say(line)
    raise typer.Exit(code)


@app.command()
def down(json: Json = False) -> None:
    """Stop worker and server; runs in progress end as Cancelled.

    Example: cpb deploy down
    """
    from flows.deploy import control

    stopped = control.down()
    if json:
        emit({"stopped": stopped, "exit": 0})
    say(f"stopped {', '.join(stopped)}" if stopped else "nothing was up")


def _as_json(found: "Status") -> dict[str, Any]:
    processes = {
        str(name): {"alive": service.alive, "pid": service.process.pid, "since": service.since}
        if service
        else None
        for name, service in found.services.items()
    }
    server = found.services["server"]
    return {
        "up": found.up, "port": server.port if server else None, "api": server.api if server else None, **processes,
        "deployments": [asdict(each) for each in found.deployments], "data": [asdict(data) for data in found.data],
        "disk": asdict(found.disk) if found.disk else None, "runs_ended": [run.name for run in found.ended],
        "problems": found.problems,
    }  # fmt: skip


def _lines(found: "Status") -> list[str]:
    server = found.services["server"]
    if not server:
        lines = ["nothing is running; start it with `cpb deploy up`"]
    else:
        parts = [
            f"{s.name} {f'pid {s.process.pid}' if s.alive else 'DEAD'}" for s in found.services.values() if s
        ]
        lines = [f"{_state(found)}: {server.api.removesuffix('/api')}  ({', '.join(parts)})"]
    lines += [_deployment_line(deployment) for deployment in found.deployments]
    for data in found.data:
        market = "" if data.market == "spot" else f"{data.market} "
        lines.append(
            f"{market}{data.timeframe:<6}  newest candle {_time(data.candle)}, newest forecast {_time(data.forecast)}"
        )
    if found.disk:
        used = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in found.disk.used.items())
        lines.append(f"disk: {used}; {found.disk.free / 1e9:,.0f} GB free")
    lines += [f"run {run.name} is marked {run.state}: its process is gone" for run in found.ended]
    return lines + [f"WRONG: {problem}" for problem in found.problems]


def _state(found: "Status") -> str:
    """Return the beginning of the status: all processes may be running while there are problems."""
    wrong = f", but {count(len(found.problems), 'problem')} (WRONG below)" if found.problems else ""
    return f"up{wrong}" if found.up else "not up"


def _deployment_line(deployment: "Deployment") -> str:
    last = (
        f"{deployment.last.outcome} {age(deployment.last.age_s)} ago"
        if deployment.last
        else "no run has ended yet"
    )
    active = f", {deployment.active} running" if deployment.active else ""
    return f"{deployment.name:<22}  {last}{active}; next {_time(deployment.next)}"


def _time(time: datetime | None) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if time else "none"
