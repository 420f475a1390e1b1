"""Switches: a recipe passed the gate by a backtest, and coins follow it in the next night that trains it.

A switch is a record in `HOME/ledger/switches`, known by the time at which it was decided. Coins follow one by one, each
when its model of the winning recipe is there; `coins_to_follow` says which are left.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from schemas.base import Record
from schemas.decision import BacktestEvidence
from schemas.errors import UsageError
from schemas.fleets import FleetSpec
from schemas.identity import Market, Recipe, tree_of
from tasks.promotion.remade import UNKNOWN, why_another
from tasks.storage.records import find_record, write_record
from tasks.training.plan import fleet_of_recipe

_SWITCH = re.compile(r"\d{8}T\d{12}\.json")


class Switch(Record):
    """A recipe that replaces the recipe of a timeframe's champions, by a backtest.

    `coins_to_follow`: symbols that still have their champion, and follow in a night that trains the recipe. `fleet`:
    what trains it.
    """

    version: ClassVar[int] = 2

    market: Market
    timeframe: str
    backtest: BacktestEvidence
    switched_at: datetime
    coins_to_follow: tuple[str, ...]
    fleet: FleetSpec | None = None

    @property
    def recipes(self) -> tuple[Recipe, Recipe]:
        """The recipe that won, and the one that it replaces."""
        return Recipe.parse(self.backtest.challenger), Recipe.parse(self.backtest.incumbent)


def switch_files(home: Path, market: str, timeframe: str = "*") -> list[Path]:
    """Return the files of a timeframe's switches, or of all, oldest first; other files are ignored."""
    paths = (tree_of(home, "ledger", market) / "switches").glob(f"interval={timeframe}/*.json")
    return sorted(path for path in paths if _SWITCH.fullmatch(path.name))


def switches(home: Path, market: str, timeframe: str) -> list[Switch]:
    """Return every switch of a timeframe, oldest first; the coins of a damaged file stay as they are."""
    files = switch_files(home, market, timeframe)
    return [record for path in files if (record := find_record(path, Switch))]


def save_switch(home: Path, switch: Switch) -> None:
    """Write a switch, in place of what was written of it before."""
    folder = tree_of(home, "ledger", switch.market) / "switches" / f"interval={switch.timeframe}"
    path = folder / f"{switch.switched_at:%Y%m%dT%H%M%S%f}.json"
    write_record(path, switch, compact=True)


def replaced_recipes(home: Path, market: str, timeframe: str) -> dict[Recipe, Switch]:
    """Return, for each recipe that lost a timeframe by a switch and has not won it back, that switch."""
    lost: dict[Recipe, Switch] = {}
    for switch in switches(home, market, timeframe):
        winner, loser = switch.recipes
        # In the order of time: a recipe that wins back is nobody's loser any more, and its own earlier loss
        # is void.
        lost[loser] = switch
        lost.pop(winner, None)
    return lost


def switch_to_follow(switch: Switch, switched: Mapping[Recipe, Switch]) -> Switch:
    """Return the switch whose winner the coins of a switch follow: its own, unless that has since lost as well.

    Args:
        switched: as of `replaced_recipes`.
    """
    # Ends, since a recipe that won last is in no entry of `switched`.
    while after := switched.get(switch.recipes[0]):
        switch = after
    return switch


def fleet_to_follow(switch: Switch) -> FleetSpec:
    """Return what trains the recipe that won a switch.

    Raises:
        UsageError: the switch does not say it, or this release trains another recipe with it.
    """
    recipe = str(switch.recipes[0])
    refused = f"the recipe {recipe}, which has passed the gate at {switch.timeframe}, cannot be trained"
    if switch.fleet is None:
        raise UsageError(
            f"{refused}: its switch does not say how; repeat `cpb backtest --gate`", code=UNKNOWN
        )
    # Coins would otherwise wait for a recipe that no night can train, without a word.
    fleet = fleet_of_recipe(switch.fleet, recipe, switch.timeframe)
    if why := why_another(fleet, recipe, switch.timeframe):
        raise UsageError(f"{refused}: {why}; repeat `cpb backtest --gate`", code=UNKNOWN)
    return fleet
