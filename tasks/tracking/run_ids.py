"""Ids of flow runs as people type them: whole, or as many characters from the start as tell one from the others."""

from typing import TYPE_CHECKING

from schemas.errors import CpbError
from tasks.tracking.connection import Store, find_run, search
from tasks.tracking.tags import FLOW, KIND, PARENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlflow.entities import Run

SHORT = 8
"""Characters of an id that are shown; git shows 7 of 40, MLflow's ids have 32."""
_MIN_TYPED = 4


def short_id(run_id: str) -> str:
    """Return the start of a run's id, as commands print it and `find_flow` takes it."""
    return run_id[:SHORT]


def find_flow(store: Store, text: str) -> "Run":
    """Return the flow run of this id, or the only one whose id begins so; of a fleet's or a member's id its flow.

    Raises:
        CpbError: there is none, or there are several.
    """
    run = find_run(store, text)
    while run is not None and run.data.tags.get(PARENT):
        run = find_run(store, run.data.tags[PARENT])
    if run is not None:
        return run
    begun = text.strip().lower()
    flows = search(store, f"tags.`{KIND}` = '{FLOW}'") if len(begun) >= _MIN_TYPED else []
    found = [flow for flow in flows if flow.info.run_id.startswith(begun)]
    if len(found) == 1:
        return found[0]
    raise _several(text, found) if found else _none(text)


def _several(text: str, found: "Iterable[Run]") -> CpbError:
    ids = ", ".join(sorted(run.info.run_id for run in found))
    return CpbError(
        f"several runs begin with {text!r}: {ids}; give more of the id", code="ambiguous-run", field="run"
    )


def _none(text: str) -> CpbError:
    return CpbError(
        f"there is no run {text!r}; `cpb leaderboard --list` shows those that there are (old runs are pruned to one a "
        f"week, and an id is given with {_MIN_TYPED} characters or more)",
        code="no-run", field="run",
    )  # fmt: skip
