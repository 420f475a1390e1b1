"""How a registered version was made, so that it can be made again: by a night, or beside the recipes of a backtest."""

from collections.abc import Mapping

import cpbmodels
from schemas.errors import UsageError
from schemas.run import FleetSpec
from tasks.tracking.registry import recorded_fleet
from tasks.tracking.tags import RECIPE
from tasks.training.plan import planned_recipe


def fleet_of(tags: Mapping[str, str]) -> FleetSpec:
    """Return what made the version with these tags.

    Raises:
        UsageError: the version does not say it, or this release trains another recipe with it.
    """
    fleet = recorded_fleet(tags)
    if fleet is None:
        why = "does not say how it was trained; `cpb train-all` with its own options records it"
        raise _not_again(tags, f"its version {why}")
    anew = "to replace it, delete its alias champion in MLflow, and the next training chooses anew"
    try:
        planned = planned_recipe(fleet)
    except cpbmodels.ModelError as error:
        refusal = f"this release refuses its options ({str(error).rstrip('.')})"
        raise _not_again(tags, f"{refusal}; {anew}") from None
    if str(planned) != tags.get(RECIPE):
        raise _not_again(tags, f"this release's preset {fleet.preset} gives {planned}; {anew}")
    return fleet


def _not_again(tags: Mapping[str, str], why: str) -> UsageError:
    recipe = tags.get(RECIPE) or "/".join(tags.get(name, "?") for name in ("architecture", "recipe"))
    return UsageError(
        f"the champion's recipe {recipe} cannot be trained again, and goes on forecasting: {why}",
        code="unknown-recipe",
    )
