"""`run`: start a flow run of a deployment, and wait for its end if requested."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import LogSort
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound

from flows.cli.options import parse_value
from flows.deploy.liveness import end_dead_runs
from flows.deploy.services import client_of, find_alive
from flows.prefect_server import client_of_settings, server_in_use
from flows.runner import run_name_of
from schemas.errors import EXIT_COMPLETE, EXIT_FATAL, EXIT_PARTIAL, CpbError, UsageError
from schemas.presets import with_preset_file
from schemas.run import RunSpec
from schemas.scope import ForecastSpec, ScopeSpec
from tasks.running.progress import tell

NAMES = {
    "train-all": "train-all/train-all",
    "nightly": "train-all/nightly",
    "hourly": "forecast/hourly",
    "forecast": "forecast/hourly",
}
"""Short names of the deployments; Prefect itself only accepts FLOW/DEPLOYMENT."""

PROGRESS = "deploy run"
"""Name under which a watched run is reported as progress."""

_POLL_S = 2.0


@dataclass(frozen=True)
class Requested:
    """A requested flow run of a deployment; state and exit code are final only with `watch`."""

    deployment: str
    flow_run_id: str
    name: str
    state: str
    message: str
    exit_code: int


SPECS: dict[str, type[ScopeSpec]] = {"train-all": RunSpec, "forecast": ForecastSpec}
"""Specifications of the flows of our deployments."""


def run(name: str, parameters: Sequence[str] = (), watch: bool = False) -> Requested:
    """Start a run of a deployment, given by its short or full name.

    Raises:
        UsageError: the name is not a valid deployment name, or a parameter is not NAME=VALUE.
        CpbError: no server is running, the server does not have the deployment, or it rejects the parameters.
    """
    full = NAMES.get(name, name)
    if "/" not in full:
        raise UsageError(
            f"deployment {name!r} is unknown: choose from {', '.join(NAMES)} or FLOW/DEPLOYMENT",
            code="deployment", field="name",
        )  # fmt: skip
    values = parse_parameters(parameters)
    if spec := SPECS.get(full.partition("/")[0]):
        spec(**values)  # the same validation as on the command line, before a run exists
        values = with_preset_file(values)  # the worker does not need the file
    with _server():
        flow_run = _requested(full, values, watch)
    state = flow_run.state
    failed = watch and not (state and state.is_completed())
    code = EXIT_FATAL if failed else EXIT_PARTIAL if state and state.name == "Partial" else EXIT_COMPLETE
    said = (str(state.name), state.message or "") if state else ("", "")
    return Requested(full, str(flow_run.id), flow_run.name, *said, code)


def parse_parameters(parameters: Sequence[str]) -> dict[str, Any]:
    """Return flow parameters from NAME=VALUE texts; a value is parsed as JSON if possible, otherwise text.

    Raises:
        UsageError: a text without `=`.
    """
    values: dict[str, Any] = {}
    for text in parameters:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"--param {text!r} is not NAME=VALUE", code="parameter", field="param")
        values[name] = parse_value(value)
    return values


@contextmanager
def _server() -> Iterator[None]:
    """Use this project's server in the block if it is running, otherwise the server in Prefect's settings."""
    own = find_alive("server")
    if not (own or server_in_use()):
        raise CpbError(
            "no server is running; start it with `cpb deploy up`, or set PREFECT_API_URL to yours",
            code="not-up",
        )
    with client_of(own) if own else client_of_settings() as client:
        end_dead_runs(client, own.since if own else None)
        yield


def _requested(name: str, parameters: dict[str, Any], watch: bool) -> FlowRun:
    """Start a run of a deployment and return it, after its end if `watch` is set."""
    flow, given = name.partition("/")[0], parameters
    if spec := SPECS.get(flow):
        given = {key: field.default for key, field in spec.model_fields.items()} | parameters
    try:
        run = run_deployment(
            name, parameters=parameters, timeout=0, as_subflow=False,
            flow_run_name=run_name_of(flow, given) if spec else None,
        )  # fmt: skip
    except ObjectNotFound as error:
        raise CpbError(
            f"the server has no deployment {name!r}; `cpb deploy status` lists its deployments",
            code="deployment", field="name",
        ) from error  # fmt: skip
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in (409, 422):
            raise
        reason = error.response.json()
        said = reason.get("detail") or reason.get("exception_detail") or reason
        raise UsageError(f"{name} refuses the parameters: {said}", code="parameter", field="param") from error
    assert isinstance(run, FlowRun)  # a coroutine only inside a running event loop
    return _ended(run) if watch else run


def _ended(run: FlowRun) -> FlowRun:
    """Return a run after its end; meanwhile its state and the last line of its log are reported as progress."""
    newest: Any = {"flow_run_id": {"any_": [run.id]}}
    with get_client(sync_client=True) as client:
        while not (run.state and run.state.is_final()):
            time.sleep(_POLL_S)
            run = client.read_flow_run(run.id)
            lines = client.read_logs(LogFilter.model_validate(newest), limit=1, sort=LogSort.TIMESTAMP_DESC)
            state = f"{run.name} is {run.state.name}" if run.state else run.name
            tell(PROGRESS, 0, 0, "", state, *(lines[0].message.splitlines()[-1:] if lines else ()))
    return run
