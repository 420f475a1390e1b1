"""Checks every stored artefact of a market, or of all: candles, features, fleets, champions, forecasts and the ledger.

Not a step of the DAG: `cpb verify` runs it beside it. What damage keeps one kind from being checked stops no other.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from schemas.errors import CpbError
from schemas.handover import Damage
from tasks.forecasting.verify import verify as verify_forecasts
from tasks.hub.tree import verify as verify_published
from tasks.market.verify import verify as verify_market
from tasks.promotion.verify import verify as verify_records
from tasks.signals.verify import verify as verify_features
from tasks.storage.damage import Seen, unseen
from tasks.storage.files import check_writable
from tasks.tracking.verify import verify as verify_champions
from tasks.training.verify import verify as verify_fleets

KINDS: dict[str, Callable[..., Iterator[Damage]]] = {
    "candles": verify_market,
    "features": verify_features,
    # Before the fleets: a champion's files are copied back from the fleet that it comes from.
    "champions": verify_champions,
    "fleets": verify_fleets,
    "forecasts": verify_forecasts,
    "records of the ledger": verify_records,
    "published models": verify_published,
}
"""What is checked, in this order."""


@dataclass
class Verification:
    """What was found: files checked, damaged ones, and a sentence for each kind that could not be checked.

    `rows_before`: by market, how many forecast and score rows were stored before their chain began, so that it does
    not say when.
    """

    checked: int = 0
    rows_before: dict[str, int] = field(default_factory=dict)
    damaged: list[Damage] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def remaining(self) -> list[Damage]:
        """The damage that was not repaired."""
        return [damage for damage in self.damaged if not damage.repaired]

    @property
    def is_good(self) -> bool:
        """Whether everything could be checked and no damage remains."""
        return not self.remaining and not self.unchecked


def verify_all(
    home: Path,
    markets: Sequence[str],
    *,
    repair: bool = False,
    source: str | None = None,
    seen: Seen = unseen,
) -> Verification:
    """Check all artefacts of the markets, and with `repair` fetch or make again what can be.

    Args:
        source: where damaged candles are fetched from; None: Binance Vision (the simulator's from itself).
        seen: called with each file that is checked.

    Raises:
        UsageError: `repair`, and the home cannot be written to.
    """
    if repair:
        check_writable(home)
    result = Verification()

    def count(path: Path) -> None:
        result.checked += 1
        seen(path)

    for market in markets:
        for kind, verify in KINDS.items():
            options: dict[str, Any] = {"source": source} if kind == "candles" else {}
            if kind == "forecasts":
                options["before"] = partial(result.rows_before.__setitem__, market)
            try:
                result.damaged += verify(home, market, repair=repair, seen=count, **options)
            except (CpbError, OSError) as error:
                result.unchecked.append(f"the {kind} of market {market} could not be checked: {error}")
    return result
