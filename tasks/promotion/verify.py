"""Checks the records beside the ledger: evidence of pairs, drift watch, versions, derived figures."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import Damage, Record
from schemas.identity import SPOT, stored_series, tree_of
from schemas.ledger import DailyState, KnownVersions, LedgerSummary
from tasks.forecasting.daily import DAILY
from tasks.forecasting.watch import Watch
from tasks.promotion.pairs import Pair, about, pair_files
from tasks.storage.damage import VERIFY, Seen, damage_at, unseen
from tasks.storage.digests import file_digest
from tasks.storage.records import parse_record, set_aside

_AGAIN = "set aside; the next `cpb forecast` makes it again"

_OF_MARKET: Mapping[str, tuple[type[Record], str]] = {
    "summary.json": (LedgerSummary, _AGAIN),
    "watch.json": (Watch, "set aside; the drift watch begins anew"),
}
_OF_SERIES: Mapping[str, tuple[type[Record], str]] = {
    "daily.json": (DailyState, _AGAIN),
    "versions.json": (
        KnownVersions,
        "set aside; versions that forecast again are noted again, the recipes of older ones are lost",
    ),
}
_TRIED = "set aside; this pair of recipes is not tried again"


def verify(home: Path, market: str = SPOT, *, repair: bool = False, seen: Seen = unseen) -> Iterator[Damage]:
    """Yield each damaged record of a market's ledger. Files with names that cpb gives no record are left alone.

    Args:
        repair: set it aside. What is derived from forecasts and scores is then made again by the next `cpb forecast`.
        seen: called with each file that is checked.
    """
    for path, kind, of, outcome in _records(home, market):
        seen(path)
        try:
            reason = _fault(path, kind, of)
        except FileNotFoundError:
            continue
        except DamagedError as error:
            reason = str(error)
        if not reason:
            continue
        if repair:
            set_aside(path, reason)
        yield damage_at(home, path, reason, VERIFY, repair, outcome=outcome)


def _records(home: Path, market: str) -> Iterator[tuple[Path, type[Record], str, str]]:
    """Yield each record of a market's ledger: its path, kind and subject, and what setting it aside means."""
    ledger = tree_of(home, "ledger", market)
    scored = [series for series in stored_series(home, "ledger") if series.market == market]
    for name, (kind, outcome) in _OF_MARKET.items():
        if scored and (ledger / name).is_file():  # without scores it is not a file of cpb's
            yield ledger / name, kind, market, outcome
    for series in scored:
        for name, (kind, outcome) in _OF_SERIES.items():
            if (path := series.folder(home, "ledger") / name).is_file():
                yield path, kind, series.name, outcome
    for path in pair_files(home, market):
        yield path, Pair, about(path), _TRIED


def _fault(path: Path, kind: type[Record], of: str) -> str:
    """Return what does not fit a record that can be read, or ""; raises `DamagedError` where it cannot be."""
    found = parse_record(path, kind, of=of)
    if not isinstance(found, DailyState):
        return ""
    sums = path.with_name(DAILY)
    fits = sums.is_file() and file_digest(sums) == found.digest
    return "" if fits else f"{DAILY} beside it is not the file that was recorded"
