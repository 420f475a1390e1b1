"""Checks the records beside the ledger: evidence of pairs, drift watch, versions, references, derived figures."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import Damage, Record
from schemas.identity import SPOT, tree_of
from schemas.ledger import DailyState, KnownVersions, LedgerSummary
from schemas.reference import Reference
from tasks.forecasting.daily import DAILY
from tasks.forecasting.watch import Watch
from tasks.promotion.pairs import Pair
from tasks.storage.damage import VERIFY, Seen, damage_at, unseen
from tasks.storage.digests import file_digest
from tasks.storage.records import EARLIER, parse_record, set_aside

_AGAIN = "set aside; the next `cpb forecast` makes it again"

_RECORDS: Mapping[str, tuple[type[Record], str]] = {
    "summary.json": (LedgerSummary, _AGAIN),
    "watch.json": (Watch, "set aside; the drift watch begins anew"),
    "references/*.json": (Reference, _AGAIN),
    "interval=*/symbol=*/daily.json": (DailyState, _AGAIN),
    "interval=*/symbol=*/versions.json": (
        KnownVersions,
        "set aside; versions that forecast again are noted again, the recipes of older ones are lost",
    ),
    "evidence/interval=*/*.json": (Pair, "set aside; this pair of recipes is not tried again"),
}
"""Records by their place below `HOME/ledger`, and what setting one aside means."""


def verify(
    home: Path, market: str = SPOT, *, repair: bool = False, seen: Seen = unseen, earlier: Seen = unseen
) -> Iterator[Damage]:
    """Yield each damaged record of a market's ledger.

    Args:
        repair: set it aside. What is derived from forecasts and scores is then made again by the next `cpb forecast`.
        seen: called with each file that is checked.
        earlier: called with each record that an earlier version wrote; it is left alone.
    """
    ledger = tree_of(home, "ledger", market)
    for pattern, (kind, outcome) in _RECORDS.items():
        for path in sorted(ledger.glob(pattern)):
            seen(path)
            try:
                reason = _fault(path, kind)
            except DamagedError as error:
                if error.code == EARLIER:
                    earlier(path)
                    continue
                reason = str(error)
            if not reason:
                continue
            if repair:
                set_aside(path, reason)
            yield damage_at(home, path, reason, VERIFY, repair, outcome=outcome)


def _fault(path: Path, kind: type[Record]) -> str:
    """Return what does not fit a record that can be read, or ""; raises `DamagedError` where it cannot be."""
    found = parse_record(path, kind)
    if not isinstance(found, DailyState):
        return ""
    sums = path.with_name(DAILY)
    fits = sums.is_file() and file_digest(sums) == found.digest
    return "" if fits else f"{DAILY} beside it is not the file that was recorded"
