"""How a registered version was made, so that it can be made again: by a night, or beside the recipes of a backtest."""

from collections.abc import Mapping

from pydantic import ValidationError

import cpbmodels
from schemas.errors import UsageError
from schemas.run import FleetSpec
from tasks.tracking.tags import FLEET_SPEC, RECIPE
from tasks.training.plan import planned_recipe


def fleet_of(tags: Mapping[str, str]) -> FleetSpec:
    """Return what made the version with these tags.

    Raises:
        UsageError: the version does not say it, or this release trains another recipe with it.
    """
    recipe = tags.get(RECIPE, "")
    of = f"the champion's recipe {recipe}" if recipe else "the champion, which names no recipe,"
    try:
        fleet = FleetSpec.model_validate_json(tags[FLEET_SPEC])
    except (KeyError, ValidationError):  # registered by another program, or changed by a person
        raise _not_again(of, "its version does not say how it was trained") from None
    try:
        planned = planned_recipe(fleet)
    except cpbmodels.ModelError as error:
        raise _not_again(of, f"this release refuses its options: {str(error).rstrip('.')}") from None
    if str(planned) != recipe:
        raise _not_again(of, f"this release's preset {fleet.preset} gives {planned}")
    return fleet


def _not_again(of: str, why: str) -> UsageError:
    return UsageError(
        f"{of} cannot be trained again ({why}); the champion goes on forecasting: train its series without --serving, "
        "and choose with `cpb promote`",
        code="unknown-recipe",
    )
