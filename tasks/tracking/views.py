"""Two views of MLflow's interface: the newest run's architectures, and the runs of its best architecture over time.

Each view is a filter in the link; MLflow draws a chart for every metric. Real and simulated runs are never in the same
view.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from schemas.identity import SIM
from tasks.tracking.connection import Store, search
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
    """Return the views of real data, or of simulated data if nothing else was trained; empty before the first run."""
    flow = _newest_flow(store)
    if flow is None:
        return []
    fleets = search(store, f"tags.`{PARENT}` = '{flow.info.run_id}'")
    timeframes = sorted(
        {name.rpartition("_")[2] for f in fleets for name in f.data.metrics if _SKILL in name}
    )
    rows = board_of(store, flow)
    if not timeframes or not rows:
        return []
    best = next(f for f in fleets if f.data.tags.get("architecture") == rows[0]["architecture"])
    return [_newest(flow, timeframes), _nights(best, timeframes)]


_SKILL = "crps_skill_percent_"


def _newest_flow(store: Store) -> "Run | None":
    """Return the newest finished run of real data, preferably with several architectures to compare."""
    flows = finished_flows(store)
    real = [flow for flow in flows if market_of(flow) != SIM]
    return max(real or flows, key=_has_several, default=None)  # max returns the first match: the newest


def _has_several(flow: "Run") -> bool:
    asked = flow.data.params.get("architectures", "")
    return asked.startswith("[") and len(json.loads(asked)) > 1


def _newest(flow: "Run", timeframes: Sequence[str]) -> View:
    return View(
        f"the architectures of {flow.info.run_name} ({source_kind(market_of(flow))} data)",
        f"tags.`{PARENT}` = '{flow.info.run_id}'",
        f"metrics.`{_SKILL}{timeframes[-1]}`",
    )


def _nights(fleet: "Run", timeframes: Sequence[str]) -> View:
    tags = fleet.data.tags
    alike = {KIND: FLEET, **{n: tags[n] for n in (MARKET, "architecture", "preset", COINS) if n in tags}}
    what = ", ".join(tags[name] for name in ("architecture", "preset", COINS) if name in tags)
    return View(
        f"all runs of {what} ({source_kind(tags.get(MARKET, ''))} data)",
        " and ".join(f"tags.`{name}` = '{value}'" for name, value in alike.items()),
        f"metrics.`{_SKILL}{timeframes[-1]}`",
    )
