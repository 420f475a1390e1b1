"""Two views of MLflow's interface: the newest run's architectures, and the runs of its best architecture over time.

Each view is a filter in the link; MLflow draws a chart for every metric. Real and simulated runs are never in the same
view.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from schemas.identity import SIM
from tasks.storage.locks import is_locked, locked
from tasks.storage.urls import public_url
from tasks.tracking.connection import Store
from tasks.tracking.database import is_server, sqlite_path
from tasks.tracking.leaderboard import board_of
from tasks.tracking.records import source_kind
from tasks.tracking.run_list import finished_flows
from tasks.tracking.tags import COINS, FLEET, KIND, MARKET, PARENT, market_of

if TYPE_CHECKING:
    from mlflow.entities import Run


_WORKFLOW = "workflowType=machine_learning"
"""Query of an experiment's page that shows runs and models instead of traces, which are MLflow's default (3.17.2, the
switch "Model training" at the top left); without it the browser's last choice counts."""


def runs_page(url: str, store: Store) -> str:
    """Return the address of the experiment's runs, with the models beside them: MLflow's own default is for traces."""
    return f"{url}/#/experiments/{store.experiment_id}/runs?{_WORKFLOW}"


def run_page(url: str, store: Store, run_id: str) -> str:
    """Return the address of a run's page."""
    return f"{url}/#/experiments/{store.experiment_id}/runs/{run_id}?{_WORKFLOW}"


@contextmanager
def announced(store: Store, url: str) -> Iterator[None]:
    """Note beside a store's database, during the block, the address at which its interface runs."""
    database = sqlite_path(store.uri)
    if database is None or store.read_only:
        yield
        return
    path = database.with_name(f"ui-{url.rpartition(':')[2]}.lock")
    with locked(path) as file:
        file.truncate()
        file.write(url.encode())
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def interface_of(store: Store) -> str | None:
    """Return the address at which MLflow shows a store: its tracking server's, or that of a running `cpb ui`."""
    if is_server(store.uri):
        return public_url(store.uri)
    database = sqlite_path(store.uri)
    notes = sorted(database.parent.glob("ui-*.lock")) if database and not store.read_only else []
    return next((path.read_text() for path in notes if is_locked(path)), None)


@dataclass(frozen=True)
class View:
    """Runs selected by a filter and sorted by a metric; `about` describes them in words."""

    about: str
    filter: str
    sort_by: str

    def link(self, url: str, store: Store) -> str:
        """Return the address of the view in MLflow's interface."""
        # Sorted by a metric, MLflow shows children flat; by time it would hide them under their parent.
        order_by = f"orderByKey={quote(self.sort_by)}&orderByAsc=false"
        runs = f"{runs_page(url, store)}&compareRunsMode=CHART"
        return f"{runs}&searchFilter={quote(self.filter)}&{order_by}"


def views(store: Store) -> list[View]:
    """Return the views of real data, or of simulated data if nothing else was trained; empty before the first run.

    The run is the newest with several architectures to compare, if there is any.
    """
    flows = finished_flows(store)
    real = [flow for flow in flows if market_of(flow) != SIM]
    flow = max(real or flows, key=_has_several, default=None)  # max returns the first match: the newest
    rows = board_of(store, flow) if flow else []
    if flow is None or not rows:
        return []
    best = store.client.get_run(rows[0]["run_id"])
    skills = sorted(name for name in best.data.metrics if name.startswith("crps_skill_percent_"))
    if not skills:
        return []
    kind, sort_by = source_kind(market_of(flow)), f"metrics.`{skills[-1]}`"
    alike = {n: best.data.tags[n] for n in ("architecture", "preset", COINS) if n in best.data.tags}
    same = {KIND: FLEET, MARKET: market_of(flow), **alike}
    return [
        View(
            f"the architectures of {flow.info.run_name} ({kind} data)",
            f"tags.`{PARENT}` = '{flow.info.run_id}'",
            sort_by,
        ),
        View(
            f"all runs of {', '.join(alike.values())} ({kind} data)",
            " and ".join(f"tags.`{name}` = '{value}'" for name, value in same.items()),
            sort_by,
        ),
    ]


def _has_several(flow: "Run") -> bool:
    asked = flow.data.params.get("architectures", "")
    return asked.startswith("[") and len(json.loads(asked)) > 1
