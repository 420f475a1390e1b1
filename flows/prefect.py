"""Flows under Prefect: the decorator that makes one, what its log shows, and the client of the configured server.

Without a server a flow's function is called directly: that starts immediately, and leaves no open run when it is
killed. Retries, concurrency and time limits belong to the steps (`tasks.running.step`), so both modes behave alike.
"""

import inspect
import logging
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

import httpx
from prefect import Flow, flow, runtime
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, get_current_settings, temporary_settings
from prefect.states import Failed

from cpbmodels.errors import printable
from flows.console import LINES, continue_without_reader
from flows.ops.passwords import password_file
from flows.ops.ports import hold
from flows.progress import shown_progress
from schemas.base import Spec
from schemas.errors import CpbError, log
from tasks.storage.urls import public_url, without_credentials
from tasks.tracking.store_errors import store_errors

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Spec)

ANSWER_WITHIN_S = 5.0

NOT_YET = "Not yet"
"""Name of the state (of type Completed) of a scheduled forecast that runs before the first training has ended."""

PREFECTS_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")
"""Where Prefect logs an error that a flow or a step has ended with: on the run's page, in the output of its process."""

_HELD: dict[int, socket.socket] = {}
"""The ports that this process holds."""


class RunLogHandler(APILogHandler):
    """Sends records to the flow run or task run of the calling thread; others are dropped.

    The lines are sent to Prefect's API handler directly: through Prefect's loggers they would appear on the terminal
    twice or not at all, depending on `quiet_libraries` and the user's settings.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; credentials in URLs are removed."""
        if FlowRunContext.get() or TaskRunContext.get():
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the text that the page shows, and Prefect's own logs."""
        return printable(without_credentials(super().format(record)))


RUN_LOG = RunLogHandler()


@contextmanager
def run_log() -> Iterator[None]:
    """Send cpb's lines for people and its log messages (retries, damaged files) to the log of the flow run."""
    loggers = (log, LINES)
    for logger in loggers:
        logger.addHandler(RUN_LOG)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(RUN_LOG)


def is_unexpected(record: logging.LogRecord) -> bool:
    """Whether Prefect should log a record: not the traceback of an expected error, whose sentence it has logged."""
    return not (record.exc_info and isinstance(record.exc_info[1], CpbError))


def as_flow(
    name: str, spec: type[S], about: Callable[[S], str]
) -> Callable[[Callable[[S], State]], Flow[..., State]]:
    """Return a decorator that makes a function of a specification a Prefect flow, whose parameters are its fields.

        @as_flow("train-all", RunSpec, lambda spec: f"{spec.preset} {spec.scope.title}")
        def train_all(spec: RunSpec) -> State: ...

    The flow can be pickled, as `serve()` and Prefect's runners do: what its functions refer to is found by its name.

    Args:
        about: what is said after the flow's name in the name of a run.
    """

    def run_name() -> str:
        try:
            return f"{name} {about(spec(**runtime.flow_run.parameters))}"
        except CpbError:  # a wrong parameter, which the flow itself reports
            return name

    # `validate_parameters=False`: the specification validates the values, with its own messages.
    def decorate(function: Callable[[S], State]) -> Flow[..., State]:
        return flow(name=name, validate_parameters=False, flow_run_name=run_name)(
            plain_failures(flow_parameters(spec)(function))
        )

    return decorate


def plain_failures(function: Callable[P, State]) -> Callable[P, State]:
    """Make a flow that raises an expected error end in the state Failed with its message, without a traceback.

    When the flow is called directly, Prefect raises the error again, so the command line prints the same message. In
    the process of a worker Prefect would log the error that it raises, with its traceback.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> State:
        # Both before anything is said or sent: the worker that started this process may be gone already.
        continue_without_reader()
        hold_server()
        for logger in PREFECTS_LOGGERS:
            logging.getLogger(logger).addFilter(is_unexpected)
        try:
            with run_log(), shown_progress("flow"), store_errors():
                return function(*args, **kwargs)
        except CpbError as error:
            # The error is the data, so that a direct call raises it again with its code and exit code.
            return Failed(message=without_credentials(str(error)), data=error)

    return run


def flow_parameters(spec: type[S]) -> Callable[[Callable[[S], R]], Callable[..., R]]:
    """Give a flow function the fields of `spec` as its parameters and call it with the built spec.

    Prefect reads a flow's signature for its run form and the `Args:` section of its docstring for the descriptions.

    Raises (when the flow is called):
        UsageError: an invalid value, with the specification's message.
    """

    def decorate(function: Callable[[S], R]) -> Callable[..., R]:
        @wraps(function)
        def run(**parameters: Any) -> R:
            return function(spec(**parameters))

        declared = inspect.signature(spec).parameters
        defaults = {name: f.get_default(call_default_factory=True) for name, f in spec.model_fields.items()}
        # The signature of a specification has its fields in the order of declaration, which is that of the form.
        parameters = [declared[name].replace(default=default) for name, default in defaults.items()]
        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        described = [f"    {name}: {field.description}" for name, field in spec.model_fields.items()]
        run.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *described])
        return run

    return decorate


def server_in_use() -> bool:
    """Whether Prefect is configured to use a server; without one, flows run directly."""
    return bool(_api_url())


def hold_server() -> None:
    """Hold the port of a server of this machine that has a password, until this process ends.

    A flow run sends the password for hours, and its worker and server, which hold the port too, may die meanwhile. A
    server of another kind than `cpb deploy up`'s does not share its port: nothing can be held then.
    """
    api = get_current_settings().api
    with suppress(CpbError, ValueError):  # malformed: Prefect says so
        url = urlsplit(api.url or "")
        port = url.port or 80
        if api.auth_string and url.hostname in ("127.0.0.1", "localhost") and port not in _HELD:
            _HELD[port] = hold(port)


def check_server() -> None:
    """Send the configured server a request that needs credentials; errors as in `client_of_settings`."""
    with client_of_settings(ANSWER_WITHIN_S, retries=0) as client:
        client.request("POST", "/flows/filter", json={"limit": 1})


@contextmanager
def client_of_settings(timeout_s: float = 30, retries: int = 2) -> Iterator[SyncPrefectClient]:
    """Yield a client of the server in Prefect's settings.

    Raises:
        CpbError: the server cannot be reached (`server-unreachable`), rejects the credentials (`server-auth`), or
            answers with another error (`server-error`).
    """
    url = public_url(_api_url())
    try:
        with (
            # A person waits for the answer: with as many retries as Prefect makes by itself it would take a minute.
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: retries}),
            get_client(sync_client=True, httpx_settings={"timeout": timeout_s}) as client,
        ):
            yield client
    except httpx.HTTPStatusError as error:
        answer = error.response
        if answer.status_code in (401, 403):
            raise CpbError(
                f"the Prefect server at PREFECT_API_URL={url} refuses the credentials ({answer.status_code}); set "
                "them, for the server of `cpb deploy up` with: "
                f'export PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(password_file()))})"',
                code="server-auth",
                field="PREFECT_API_AUTH_STRING",
            ) from error
        raise CpbError(
            f"the Prefect server at {url} answered {answer.status_code} to {error.request.url.path}: "
            f"{answer.text[:300]}",
            code="server-error",
        ) from error
    except httpx.TransportError as error:
        raise CpbError(
            f"no Prefect server answers at PREFECT_API_URL={url} ({error or type(error).__name__}); start it, as with "
            "`cpb deploy up`, or take PREFECT_API_URL out of the environment or the Prefect profile to run without one",
            code="server-unreachable",
            field="PREFECT_API_URL",
        ) from error


def _api_url() -> str:
    return get_current_settings().api.url or ""


def in_prefect(flow: Callable[..., State], spec: Spec) -> dict[str, Any]:
    """Run a flow on the configured server, and return the same result as without a server."""
    hold_server()
    # Asked first: a server that is away is then one sentence, before Prefect begins a run.
    check_server()
    # A flow that is called directly returns the data of its final state.
    result: Any = flow(**spec.model_dump())
    return dict(result)
