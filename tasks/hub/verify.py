"""Checks the folder that is published, which people load models from: each model by the library's own check."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.handover import Damage
from schemas.identity import SPOT, Market, tree_of
from tasks.storage.damage import Seen, damage_at, unseen
from tasks.storage.model_folder import CONFIG, WEIGHTS


def verify(
    home: Path, market: Market, *, repair: bool = False, seen: Seen = unseen, **_: Any
) -> Iterator[Damage]:
    """Yield each model of a market's published folder that cannot be loaded, or whose weights are not the config's.

    Nothing is repaired here: the folder is a copy of the champions, which `cpb publish --dry-run` makes again.
    """
    configs = sorted(tree_of(home, "hub", market).glob(f"*/*/{CONFIG}"))
    if not configs:
        return
    from cpbmodels import ModelError, load  # imports torch

    command = "cpb publish --dry-run" if market == SPOT else f"cpb publish --dry-run --market {market}"
    for config in configs:
        weights = config.with_name(WEIGHTS)
        seen(weights)
        try:
            load(config.parent)
        except ModelError as error:
            yield damage_at(home.resolve(), weights, str(error).partition(":")[0], command)
