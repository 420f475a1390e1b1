"""How a recipe was made, so that it can be made again: by a night, or beside the recipes of a backtest."""

from collections.abc import Mapping

import cpbmodels
from schemas.errors import UsageError
from schemas.fleets import FleetSpec
from tasks.tracking.champions import recorded_fleet
from tasks.tracking.tags import RECIPE
from tasks.training.plan import planned_recipe

UNKNOWN = "unknown-recipe"
"""Code of the error for a recipe that cannot be made again."""


def fleet_of(tags: Mapping[str, str]) -> FleetSpec:
    """Return what made the version with these tags.

    Raises:
        UsageError: the version does not say it, or this release trains another recipe with it.
    """
    recipe = tags.get(RECIPE) or "/".join(tags.get(name, "?") for name in ("architecture", "recipe"))
    refused = f"the champion's recipe {recipe} cannot be trained again, and goes on forecasting"
    # The recorded options, planned anew by this release, must give the recorded recipe: a preset may have
    # changed since.
    fleet = recorded_fleet(tags)
    if fleet is None:
        why = "its version does not say how it was trained; `cpb train-all` with its own options records it"
        raise UsageError(f"{refused}: {why}", code=UNKNOWN)
    if why := why_another(fleet, recipe, tags["timeframe"]):
        anew = "to replace it, delete its alias champion in MLflow, and the next training chooses anew"
        raise UsageError(f"{refused}: {why}; {anew}", code=UNKNOWN)
    return fleet


def why_another(fleet: FleetSpec, recipe: str, timeframe: str) -> str:
    """Return why a fleet does not train this recipe at a timeframe in this release; "" if it does."""
    try:
        planned = planned_recipe(fleet, timeframe)
    except cpbmodels.ModelError as error:
        return f"this release refuses its options ({str(error).rstrip('.')})"
    # Compared as recipes, whose digest covers every option: equal words could hide another default.
    return "" if str(planned) == recipe else f"this release's preset {fleet.preset} gives {planned}"
