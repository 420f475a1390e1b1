"""How many of their preset's epochs trainings used before early stopping, as MLflow's runs of the members record it."""

from collections.abc import Mapping
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from tasks.tracking.calls import NEWEST_FIRST, find_runs, search
from tasks.tracking.experiment import Store
from tasks.tracking.tags import KIND, MEMBER, PARENT

NEWEST = 200
"""Models of a preset that are read: MLflow takes 2 to 4 ms for each."""


class Used(NamedTuple):
    """What the newest `models` of a preset used: `percent` of the epochs, on average."""

    percent: float
    models: int


def epochs_used(store: Store, presets: Mapping[str, tuple[int, int]]) -> dict[str, Used]:
    """Return the share of epochs that finished models of each preset used; presets without any are left out.

    Args:
        presets: epochs and patience of each. Models that were trained with others say nothing of the preset.
    """
    return {name: used for name, own in presets.items() if (used := _used(store, name, own))}


def _used(store: Store, preset: str, own: tuple[int, int]) -> Used | None:
    condition = f"tags.`{KIND}` = '{MEMBER}' and tags.preset = '{preset}' and attributes.status = 'FINISHED'"
    newest = list(islice(search(store, condition, [NEWEST_FIRST], NEWEST), NEWEST))
    fleets = find_runs(store, {run.data.tags.get(PARENT, "") for run in newest})
    shares = []
    for run in newest:
        fleet = fleets.get(run.data.tags.get(PARENT, ""))
        # What all members have in common is on the fleet's run.
        params = (fleet.data.params if fleet else {}) | run.data.params
        ran = run.data.metrics.get("epochs_run")
        # Params are texts in MLflow. Other limits of epochs or patience say nothing of the preset's own.
        if ran and (params.get("epochs"), params.get("patience")) == tuple(map(str, own)):
            shares.append(100 * ran / own[0])
    return Used(fmean(shares), len(shares)) if shares else None
