"""`run`: ask a deployment for a flow run, and wait for its end where that is wanted."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound

from flows.deploy.liveness import end_dead_runs
from flows.deploy.project import prefect_home
from flows.deploy.services import client_of, find_alive
from flows.prefect_server import client_of_settings, server_in_use
from schemas.errors import COMPLETE, FATAL, PARTIAL, CpbError, UsageError
from schemas.presets import with_preset_file
from schemas.run import ForecastSpec, RunSpec, ScopeSpec

NAMES = {
    "train-all": "train-all/train-all",
    "nightly": "train-all/nightly",
    "hourly": "forecast/hourly",
    "forecast": "forecast/hourly",
}
"""Short names of the deployments; Prefect itself only takes FLOW/DEPLOYMENT."""

_POLL_S = 2.0


@dataclass(frozen=True)
class Requested:
    """A flow run that a deployment was asked for; state and exit code are those at its end where `watch` was set."""

    deployment: str
    flow_run_id: str
    name: str
    state: str
    message: str
    exit_code: int


SPECS: dict[str, type[ScopeSpec]] = {"train-all": RunSpec, "forecast": ForecastSpec}
"""What the flows of our deployments are asked."""


def run(name: str, parameters: Sequence[str] = (), watch: bool = False) -> Requested:
    """Ask a deployment for a run, by its short or full name.

    Raises:
        UsageError: a name that cannot be a deployment's, or a parameter that is not NAME=VALUE.
        CpbError: no server runs, the server knows no such deployment, or it refuses the parameters.
    """
    full = NAMES.get(name, name)
    if "/" not in full:
        raise UsageError(
            f"deployment {name!r} is unknown: choose from {', '.join(NAMES)} or FLOW/DEPLOYMENT",
            code="deployment", field="name",
        )  # fmt: skip
    values = parse_parameters(parameters)
    if spec := SPECS.get(full.partition("/")[0]):
        spec(**values)  # the same refusal as on the command line, before a run exists
        values = with_preset_file(values)  # the worker need not have the file
    with _server():
        flow_run = _requested(full, values, watch)
    state = flow_run.state
    failed = watch and not (state and state.is_completed())
    code = FATAL if failed else PARTIAL if state and state.name == "Partial" else COMPLETE
    said = (str(state.name), state.message or "") if state else ("", "")
    return Requested(full, str(flow_run.id), flow_run.name, *said, code)


def parse_parameters(parameters: Sequence[str]) -> dict[str, Any]:
    """Return flow parameters from NAME=VALUE texts; a value is JSON where it can be read as such, else text.

    Raises:
        UsageError: a text without `=`.
    """
    values: dict[str, Any] = {}
    for text in parameters:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"--param {text!r} is not NAME=VALUE", code="parameter", field="param")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


@contextmanager
def _server() -> Iterator[None]:
    """Ask this project's server in the block while it runs, else the server that Prefect's settings name."""
    own = find_alive("server")
    if not (own or server_in_use()):
        raise CpbError(
            "no server runs; start it with `cpb deploy up`, or set PREFECT_API_URL to yours", code="not-up"
        )
    with client_of(own) if own else client_of_settings() as client:
        end_dead_runs(client, own.home if own else prefect_home(), own.since if own else None)
        yield


def _requested(name: str, parameters: dict[str, Any], watch: bool) -> FlowRun:
    """Return the run of a deployment, at its end where `watch` is set."""
    try:
        run = run_deployment(
            name, parameters=parameters, timeout=None if watch else 0, poll_interval=_POLL_S, as_subflow=False
        )
    except ObjectNotFound as error:
        raise CpbError(
            f"the server knows no deployment {name!r}; `cpb deploy status` lists those it knows",
            code="deployment", field="name",
        ) from error  # fmt: skip
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in (409, 422):
            raise
        reason = error.response.json()
        said = reason.get("detail") or reason.get("exception_detail") or reason
        raise UsageError(f"{name} refuses the parameters: {said}", code="parameter", field="param") from error
    assert isinstance(run, FlowRun)  # a coroutine only where an event loop runs
    return run
