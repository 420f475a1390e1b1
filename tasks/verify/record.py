"""The checks of what cannot be made again: forecasts with their chain, scores, and the records beside them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from schemas.identity import market_home, options_of, tree_of
from schemas.ledger import LedgerSummary, Settled
from tasks.forecasting import months
from tasks.forecasting.chain import check_months, pending_path
from tasks.forecasting.daily_sums import DAILY, parse_sums
from tasks.forecasting.lines import chain_path
from tasks.forecasting.published import (
    RESTORE,
    is_restorable,
    record_loss,
    restore_command,
    way_back,
)
from tasks.forecasting.score import settled_path
from tasks.forecasting.watch import Watch
from tasks.promotion import submissions, switches
from tasks.verify.checks import Check, record_check, remove_command, series_in


def forecasts(home: Path, market: str) -> Iterator[Check]:
    """Yield a market's chain and its months of forecasts and scores, which come back from a published record alone."""
    for path, fault in check_months(home, market):
        command = RESTORE
        # A batch that is pending has no rows in place yet: without it nothing is lost that was ever shown.
        if fault and path == pending_path(home, market):
            command = remove_command(path)
        elif fault and is_restorable(home, market, path):
            command = restore_command(home, market)
        elif fault and path != chain_path(home, market):
            command = way_back(home, market, path.relative_to(market_home(home, market)).as_posix())
        yield path, partial(str, fault), command


def published_record(home: Path, market: str) -> Iterator[Check]:
    """Yield a market's chain if it lacks what is published in the home, which is then the last copy."""
    # The stored chain may be intact and still too short, as after a backup was put back: no line of it tells.
    if reason := record_loss(home, market):
        yield chain_path(home, market), partial(str, reason), restore_command(home, market)


def ledger_records(home: Path, market: str) -> Iterator[Check]:
    """Yield the records beside the ledger: drift watch, versions, derived figures, switches and submissions.

    Without scores no file there is provably cpb's.
    """
    ledger, stored = tree_of(home, "ledger", market), series_in(home, "ledger", market)
    if stored:  # derived of scores alone: the next forecast writes both anew
        again = f"cpb forecast {options_of(stored)}"
        yield record_check(ledger / "summary.json", LedgerSummary, again)
        yield record_check(ledger / "watch.json", Watch, again)
    for series in stored:
        folder, again = series.folder(home, "ledger"), months.forecast_command(series)
        yield folder / DAILY, partial(parse_sums, folder / DAILY), again
        settled = settled_path(home, series)
        yield record_check(settled, Settled, remove_command(settled))
    for path in switches.switch_files(home, market):
        yield record_check(path, switches.Switch, RESTORE)
    for path in submissions.register_files(home, market):
        yield record_check(path, submissions.Submission, RESTORE)
