"""Two views of MLflow's interface: the architectures of the newest run, and all runs of these architectures.

A view is a link to the chart of the runs that satisfy a filter, which can be changed on the page. Runs of real and of
simulated candles are never in the same view.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote

from cpbmodels.data import INTERVAL_SECONDS
from schemas.identity import SIM
from tasks.storage.urls import public_url
from tasks.tracking.calls import NEWEST_FIRST, search
from tasks.tracking.experiment import Store
from tasks.tracking.home_store import is_server
from tasks.tracking.metrics import CLASSIFIER_SKILL, SKILL
from tasks.tracking.tags import (
    COINS,
    FLEET,
    FLOW,
    KIND,
    MARKET,
    PARENT,
    architecture_of,
    market_of,
    recipe_of_run,
)

if TYPE_CHECKING:
    from mlflow.entities import Run

_WORKFLOW = "workflowType=machine_learning"
"""Query of an experiment's page that shows runs; without it MLflow (3.17.2) opens the page of traces."""
_CHART = "compareRunsMode=CHART"
_FLEETS = f"tags.`{KIND}` = '{FLEET}'"
_FLOWS = f"tags.`{KIND}` = '{FLOW}' and tags.`{COINS}` IS NOT NULL"
_FLOWS_READ, _FLEETS_READ = 50, 500
"""How many of the newest are looked at: MLflow takes 2 to 4 ms to read a run."""


def runs_page(url: str, store: Store) -> str:
    """Return the address of the page of the experiment's runs."""
    return f"{url}/#/experiments/{store.experiment_id}/runs?{_WORKFLOW}"


def run_address(store: Store, run_id: str) -> str:
    """Return the address of a run's page, without credentials; without a server, that at `cpb ui`'s usual port."""
    page = f"/#/experiments/{store.experiment_id}/runs/{run_id}"
    if is_server(store.uri):
        return f"{public_url(store.uri)}{page}"
    return f"http://127.0.0.1:5000{page} (once `cpb ui` runs)"


@dataclass(frozen=True)
class View:
    """The runs that satisfy a filter, sorted by a metric, the highest first; `about` says in words which."""

    about: str
    filter: str
    sort_by: str

    def link(self, url: str, store: Store, *, chart: bool = True) -> str:
        """Return the address of the view in MLflow's interface, as a chart or as a table."""
        order = f"orderByKey={quote(f'metrics.`{self.sort_by}`')}&orderByAsc=false"
        mode = f"&{_CHART}" if chart else ""
        return f"{runs_page(url, store)}{mode}&searchFilter={quote(self.filter)}&{order}"


def views(store: Store) -> list[View]:
    """Return the views of real candles, or of simulated ones if nothing else was trained; empty before the first run.

    The run is the newest with several fleets to compare, else the newest.
    """
    real = f"tags.`{MARKET}` != '{SIM}'"
    newest = _newest_run(store, real) or _newest_run(store, f"tags.`{MARKET}` = '{SIM}'")
    if newest is None:
        return []
    flow, fleets = newest
    sort_by, names = _skill(fleets), ", ".join(sorted(set(map(architecture_of, fleets))))
    return [
        View(
            f"the architectures of {flow.info.run_name}", f"tags.`{PARENT}` = '{flow.info.run_id}'", sort_by
        ),
        View(f"all runs of {names} on {flow.data.tags[COINS]}", _alike(store, flow, fleets), sort_by),
    ]


def _newest_run(store: Store, condition: str) -> "tuple[Run, list[Run]] | None":
    """Return a finished run of a flow with its fleets that have a skill; None if there is none."""
    first = None
    finished = f"{_FLOWS} and attributes.status = 'FINISHED' and {condition}"
    for flow in islice(search(store, finished, [NEWEST_FIRST], page_size=_FLOWS_READ), _FLOWS_READ):
        below = search(store, f"{_FLEETS} and tags.`{PARENT}` = '{flow.info.run_id}'")
        fleets = [fleet for fleet in below if _skill([fleet])]
        # A chart of one architecture compares nothing: an older run with several is a better start.
        if len({(architecture_of(f), recipe_of_run(f.data.params, f.data.tags)) for f in fleets}) > 1:
            return flow, fleets
        if fleets and first is None:
            first = flow, fleets
    return first


def _skill(fleets: "Sequence[Run]") -> str:
    """Return the name of the skill on the longest timeframe that one of these fleets has, or ""."""
    for name in (SKILL, CLASSIFIER_SKILL):
        for timeframe in sorted(INTERVAL_SECONDS, key=INTERVAL_SECONDS.__getitem__, reverse=True):
            if any(name.format(timeframe) in fleet.data.metrics for fleet in fleets):
                return name.format(timeframe)
    return ""


def _alike(store: Store, flow: "Run", fleets: "Sequence[Run]") -> str:
    """Return the filter of all fleets of these architectures on the same market and coins.

    MLflow's filters know neither OR nor IN for tags, so it leaves out by name what was trained besides.
    """
    tags = {MARKET: market_of(flow), COINS: flow.data.tags[COINS]}
    same = " and ".join([_FLEETS, *(f"tags.`{name}` = '{value}'" for name, value in tags.items())])
    of_run = set(map(architecture_of, fleets))
    if len(of_run) == 1:
        return f"{same} and tags.architecture = '{of_run.pop()}'"
    # Names that were trained later appear in the view until it is opened anew, which asks again.
    trained = set(map(architecture_of, islice(search(store, same, [NEWEST_FIRST]), _FLEETS_READ)))
    return " and ".join([same, *(f"tags.architecture != '{name}'" for name in sorted(trained - of_run))])
