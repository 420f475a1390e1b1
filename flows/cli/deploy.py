"""`cpb deploy up|run|status|down`: the project on a local Prefect server."""

from typing import Annotated

import typer

from flows.console import emit, say

app = typer.Typer(
    no_args_is_help=True,
    help="Run the flows on a Prefect server and a schedule.\n\nExample: cpb deploy up && cpb deploy run train-all",
)

Json = Annotated[bool, typer.Option("--json", help="one JSON object on stdout, as the last line")]


@app.command()
def up(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 4200,
    workers: Annotated[int, typer.Option(min=1, help="flow runs at the same time")] = 2,
    json: Json = False,
) -> None:
    """Start server, work pool, GPU limit, deployments and worker.

    Example: cpb deploy up && cpb deploy run train-all
    """
    from flows import deployment

    say("starting server, pool, limit, deployments and worker (about 30 s) …")
    state = deployment.up(port, workers)
    if json:
        emit(state | {"exit": 0})
    say(f"up: http://127.0.0.1:{port}  (logs in .cpb/, stop with `cpb deploy down`)")
    say(f"for prefect's own commands: export PREFECT_API_URL={state['api']}")


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="train-all, nightly, hourly, or FLOW/DEPLOYMENT")],
    param: Annotated[list[str] | None, typer.Option("--param", help="NAME=VALUE, may be repeated")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="wait until the run has ended")] = False,
    json: Json = False,
) -> None:
    """Trigger a deployment; the short form of `prefect deployment run FLOW/DEPLOYMENT`.

    Example: cpb deploy run train-all --param preset=smoke --param source=sim
    """
    from flows import deployment

    started = deployment.run(name, param or (), watch)
    say(started.said)
    if json:
        emit({"deployment": started.deployment, "flow_run_id": started.flow_run_id, "exit": 0})


@app.command()
def status(json: Json = False) -> None:
    """Show what is up.

    Example: cpb deploy status
    """
    from flows import deployment

    state = deployment.running()
    if json:
        emit((state or {"processes": []}) | {"up": bool(state), "exit": 0})
    say(f"up: http://127.0.0.1:{state['port']}" if state else "nothing is up")


@app.command()
def down(json: Json = False) -> None:
    """Stop worker and server.

    Example: cpb deploy down
    """
    from flows import deployment

    stopped = deployment.down()
    if json:
        emit({"stopped": stopped, "exit": 0})
    say(f"stopped {', '.join(stopped)}" if stopped else "nothing was up")
