"""How a flow calls its steps: through Prefect's engine, or directly where no Prefect server is in use.

Retries, calls at once and time limits belong to the step (`tasks.step`), so both ways behave alike. The direct way
needs no server, starts at once, and leaves nothing behind when it is killed.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec

from prefect.states import Failed, State

from flows.leases import share_leases
from flows.progress import shown_progress
from flows.run_log import logged_to_run
from schemas.errors import CpbError
from tasks.parallel import run_each
from tasks.progress import tell, telling
from tasks.step import Step
from tasks.storage.urls import without_credentials

P = ParamSpec("P")


class Runner:
    """Calls steps. `prefect`: as task runs of the running flow."""

    def __init__(self, *, prefect: bool = False) -> None:
        self._prefect = prefect

    def one(self, step: Step[..., Any], *args: Any) -> Any:
        """Return the result of one call; its error is raised."""
        return self._call(step)(*args)

    def each(
        self,
        step: Step[..., Any],
        calls: Sequence[tuple[Any, ...]],
        unit: str = "",
        workers: int | None = None,
    ) -> list[Any]:
        """Return the result of every call, in order, or the exception that ended it; one stops no other.

        Args:
            unit: what a call is about, as in `series`; where it is given, the number of calls done is told.
            workers: calls at the same time, where not the step's own number; they begin in order.
        """
        call = self._call(step)
        if not unit:
            return run_each([partial(call, *args) for args in calls], workers or step.workers)
        done = itertools.count(1)

        def counted(*args: Any) -> Any:
            try:
                return call(*args)
            finally:
                tell(step.name, next(done), len(calls), unit)

        with telling(step.name, len(calls), unit):
            return run_each([partial(counted, *args) for args in calls], step.workers)

    def _call(self, step: Step[..., Any]) -> Callable[..., Any]:
        return step.in_prefect if self._prefect else step.fn


def plain_failures(flow: Callable[P, State]) -> Callable[P, State]:
    """Let a flow that meets an expected error end in the state Failed with its sentence, not in a traceback.

    Called directly, Prefect raises the error again, so the command line says the same sentence. What cpb logs
    meanwhile stands in the run's log.
    """

    @wraps(flow)
    def run(*args: P.args, **kwargs: P.kwargs) -> State:
        share_leases()
        with logged_to_run(), shown_progress("flow"):
            try:
                return flow(*args, **kwargs)
            except CpbError as error:
                return Failed(message=without_credentials(str(error)), data=error)

    return run
