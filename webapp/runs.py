"""What MLflow's store and the trainers' files say: boards, champions, decisions, runs."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from schemas.errors import CpbError, DamagedError
from schemas.handover import Decision
from schemas.identity import Market, SeriesId
from tasks.hub.card import verdict
from tasks.storage.files import read_json_or_none
from tasks.tracking import boards
from tasks.tracking.registry import Champion, champions, decisions_on, newest_decisions
from tasks.tracking.store import Store, open_store, store_errors
from tasks.training.shard import JOB, PROGRESS, read_job
from webapp import answers
from webapp.kept import at_work, kept

_reading_store = threading.RLock()

T = TypeVar("T")


@contextmanager
def _store() -> Iterator[Store]:
    """Yield the store, locked for this thread; raises `CpbError` if it cannot be read."""
    with _reading_store, store_errors():
        yield open_store(create=False)


@cache
def load() -> None:
    """Load MLflow and open its store so that no request has to wait; errors are reported by the first request."""
    with suppress(CpbError), _store():
        pass
    # What is loaded stays: a garbage collection of all of it would stop every request for a tenth of a second.
    gc.freeze()


def _or_note(read: Callable[[Store], list[T]], missing: str | None = None) -> tuple[list[T], str | None]:
    """Return what `read` finds in the store, and a note if that is nothing: `missing`, or why it cannot be read."""
    try:
        with _store() as store:
            results = read(store)
    except CpbError as error:
        return [], str(error)
    return results, None if results else missing


def leaderboard(market: Market, timeframe: str | None = None, run: str | None = None) -> answers.Leaderboard:
    """Return a market's leaderboard over its finished runs, and its champions; a note says why it is empty.

    Args:
        run: id of a flow's run, or the beginning of an id, to restrict the rows to that run.
    """
    board = answers.Leaderboard(market=market, rows=[], columns=boards.COLUMNS, champions=[])
    try:
        serving, decided = champions_of(market)
        board.champions = [_champion(champion, decided.get(champion.series)) for champion in serving]
        board.verdict = verdict(serving) if serving else None
        board.rows = board_rows(market, timeframe, run)
    except CpbError as error:
        board.note = str(error)
    return board


def _champion(champion: Champion, decision: Decision | None) -> answers.ChampionInfo:
    return answers.ChampionInfo(
        **identity(champion.series),
        model_version=champion.model_version,
        architecture=champion.architecture or None,
        preset=champion.preset or None,
        verdict=champion.verdict or None,
        reason=champion.tags.get("reason"),
        decision=decision,
        selected_on=champion.selected_on or None,
        metrics={name: value for name, value in champion.metrics.items() if name.startswith("test_")},
    )


def identity(series: SeriesId) -> dict[str, Any]:
    """Return the first fields of every response about a series."""
    return {"market": series.market, "symbol": series.symbol, "timeframe": series.timeframe}


@kept
def _members() -> pl.DataFrame:
    with _store() as store:
        return boards.read_members(store)


def board_rows(market: Market, timeframe: str | None, run: str | None) -> list[dict[str, Any]]:
    """Return the rows of a market's leaderboard; arguments as in `leaderboard`.

    Raises:
        CpbError: there are none, or the run is of another market.
    """
    rows = boards.leaderboard(run, _members(), market=market, timeframes=[timeframe] if timeframe else None)
    of_market = [row for row in rows if row["market"] == market]  # rows of a run are not filtered by market
    if not of_market:
        other = rows[0]["market"]
        raise CpbError(f"run {run} is of market {other}: ask for it with market={other}")
    return [row for row in of_market if timeframe in (None, row["timeframe"])]


def coin_rows(market: Market, timeframe: str | None) -> list[dict[str, Any]]:
    """Return the ratio of each architecture of the leaderboard on each coin; empty if there are none."""
    with suppress(CpbError):
        return boards.coin_ratios(_members(), board_rows(market, timeframe, None))
    return []


def loss_histories(run_id: str) -> dict[str, list[dict[str, float]]]:
    """Return the losses per epoch of a run's models; errors as in `boards.loss_histories`."""
    with _store() as store:
        return boards.loss_histories(store, run_id)


@kept
def champions_of(market: Market) -> tuple[list[Champion], dict[SeriesId, Decision]]:
    """Return a market's champions, and the newest decision on every series; raises `CpbError` without a store."""
    with _store() as store:
        return champions(store, market=market), newest_decisions(store)


def models(series: SeriesId) -> answers.Models:
    """Return a series' newest judged model of each architecture and preset; a note says why there are none."""
    missing = f"no judged model of {series} is in the MLflow store; train some with `cpb train-all {series.options}`"
    judged, note = _or_note(lambda store: boards.judged_models(store, series), missing)
    return answers.Models(**identity(series), models=judged, note=note)


def decisions(series: SeriesId, limit: int) -> answers.Decisions:
    """Return the newest decisions on a series, newest first; a note says why there are none."""
    missing = f"nothing has been decided on {series} yet; `cpb train-all {series.options}` trains candidates"
    made, note = _or_note(lambda store: decisions_on(store, series, limit), missing)
    return answers.Decisions(**identity(series), decisions=made, note=note)


def runs(home: Path, limit: int) -> answers.Runs:
    """Return the trainings in progress, and the newest `limit` runs of the flow."""
    flow_runs, note = _or_note(
        lambda store: [answers.FlowRun(**dict(run)) for run in boards.newest_flow_runs(store, limit)]
    )
    return answers.Runs(trainings=list(_trainings(home)), runs=flow_runs, note=note)


def _trainings(home: Path) -> Iterator[answers.Training]:
    for folder in at_work(home):
        try:
            job = read_job(folder)
        except (DamagedError, FileNotFoundError):  # reported by the flow that started it
            continue
        series = [member.model.series for member in job.members]
        fields = _progress(folder) | dict(job)
        fields |= {"members": len(series), "market": series[0].market}
        fields["symbols"] = sorted({s.symbol for s in series})
        fields["timeframes"] = sorted({s.timeframe for s in series})
        yield answers.Training(fleet=folder.name, **fields)


def _progress(folder: Path) -> dict[str, Any]:
    """Return the progress of a training since its current start, when its job was written."""
    path = folder / PROGRESS
    progress: dict[str, Any] | None = read_json_or_none(path)
    started = (folder / JOB).stat().st_mtime
    since = {"since": datetime.fromtimestamp(started, UTC)}
    if progress is None or path.stat().st_mtime < started:
        return since  # the trainer has not begun; the file is from an earlier process
    progress |= {"seconds_per_epoch": progress.get("seconds"), "eta_seconds": progress.get("eta_s")}
    return since | progress
