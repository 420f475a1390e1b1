"""What MLflow's store and the trainers' files say: boards, champions, decisions, runs."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from schemas.decision import Decision
from schemas.errors import CpbError, DamagedError
from schemas.identity import Market, SeriesId
from tasks.hub.card import verdict
from tasks.storage.files import read_json_or_none
from tasks.tracking.champions import Champion, champions
from tasks.tracking.decisions import decisions_on, newest_decisions
from tasks.tracking.experiment import Store
from tasks.tracking.flow_runs import FlowRunInfo, newest_flow_runs
from tasks.tracking.judged_models import JudgedModel, judged_models, loss_histories
from tasks.tracking.leaderboard import COLUMNS, coin_ratios, read_board, read_members
from tasks.training.shard import JOB, PROGRESS, read_job
from webapp import answers, store_cache
from webapp.changes import is_run_active, shards_in_training

T = TypeVar("T")

_MAX_DECISIONS, _MAX_RUNS = 1000, 200
"""Of a series, and of the newest runs, that are read; fewer are cut from these."""


@cache
def load() -> None:
    """Load MLflow and read what most pages show, so that few requests have to wait; errors are reported by requests."""
    for read in (_members, _champions, _flow_runs):
        with suppress(CpbError):
            read()
    # What is loaded stays: a garbage collection of all of it would stop every request for a tenth of a second.
    gc.freeze()


def keep_fresh(stop: threading.Event) -> None:
    """Load, then read anew what has changed until `stop` is set: the work of one thread."""
    load()
    store_cache.keep_fresh(stop)


def leaderboard(market: Market, timeframe: str | None = None, run: str | None = None) -> answers.Leaderboard:
    """Return a market's leaderboard over its finished runs, and its champions; a note says why it is empty or old.

    Args:
        run: id of a flow's run, or the beginning of an id, to restrict the rows to that run.
    """
    board = answers.Leaderboard(market=market, rows=[], columns=COLUMNS, champions=[])
    try:
        serving, decided, board.note = champions_of(market)
        board.champions = [_champion(champion, decided.get(champion.series)) for champion in serving]
        board.verdict = verdict(serving) if serving else None
        board.rows, old = board_rows(market, timeframe, run)
        board.note = board.note or old
    except CpbError as error:
        board.note = str(error)
    return board


def _champion(champion: Champion, decision: Decision | None) -> answers.ChampionInfo:
    return answers.ChampionInfo(
        **vars(champion.series),
        model_version=champion.model_version,
        architecture=champion.architecture or None,
        preset=champion.preset or None,
        verdict=champion.verdict or None,
        reason=champion.tags.get("reason"),
        decision=decision,
        selected_on=champion.selected_on or None,
        metrics={name: value for name, value in champion.metrics.items() if name.startswith("test_")},
    )


def _members() -> tuple[pl.DataFrame, str | None]:
    return store_cache.cached("members", read_members)


def _rows_of_run(store: Store, run: str) -> list[dict[str, Any]]:
    return read_board(run, read_members(store, run))


def board_rows(
    market: Market, timeframe: str | None, run: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the rows of a market's leaderboard, and a note if they are old; arguments as in `leaderboard`.

    Raises:
        CpbError: there are none, or the run is of another market.
    """
    if run is None:
        members, old = _members()
        rows = read_board(None, members, market=market, timeframes=[timeframe] if timeframe else None)
        return rows, old
    # A run's rows are read apart: its fleets need not be the newest of the board.
    rows, old = store_cache.cached("run", _rows_of_run, run)
    # Refused, not empty: whoever names a run means its rows.
    of_market = [row for row in rows if row["market"] == market]
    if not of_market:
        other = rows[0]["market"]
        raise CpbError(f"run {run} is of market {other}: ask for it with market={other}")
    return [row for row in of_market if timeframe in (None, row["timeframe"])], old


def coin_rows(market: Market, timeframe: str | None) -> list[dict[str, Any]]:
    """Return the ratio of each architecture of the leaderboard on each coin; empty if there are none."""
    with suppress(CpbError):
        return coin_ratios(_members()[0], board_rows(market, timeframe, None)[0])
    return []


def losses(run_id: str) -> dict[str, list[dict[str, float]]]:
    """Return the losses per epoch of a run's models; errors as in `judged_models.loss_histories`."""
    return store_cache.cached("losses", loss_histories, run_id)[0]


def _champions() -> tuple[tuple[list[Champion], dict[SeriesId, Decision]], str | None]:
    return store_cache.cached("champions", lambda store: (champions(store), newest_decisions(store)))


def champions_of(market: Market) -> tuple[list[Champion], dict[SeriesId, Decision], str | None]:
    """Return a market's champions, the newest decision on every series, and a note if these are old.

    Raises:
        CpbError: the store could not be read yet.
    """
    (everyone, decided), old = _champions()
    return [champion for champion in everyone if champion.series.market == market], decided, old


def _or_note(read: Callable[[], tuple[list[T], str | None]], missing: str) -> tuple[list[T], str | None]:
    """Return what `read` returns, and a note if that is old or nothing: `missing`, or why it cannot be read."""
    try:
        results, old = read()
    except CpbError as error:
        return [], str(error)
    return results, old or (None if results else missing)


def _models(store: Store, series: SeriesId) -> list[JudgedModel]:
    return judged_models(store, series, _members()[0])


def models(series: SeriesId) -> answers.Models:
    """Return a series' newest judged model of each architecture and preset; a note says why there are none."""
    missing = f"no judged model of {series} is in the MLflow store; train some with `cpb train-all {series.options}`"
    judged, note = _or_note(lambda: store_cache.cached("models", _models, series), missing)
    return answers.Models(**vars(series), models=judged, note=note)


def decisions(series: SeriesId, limit: int) -> answers.Decisions:
    """Return the newest decisions on a series, newest first; a note says why there are none."""
    missing = f"nothing has been decided on {series} yet; `cpb train-all {series.options}` trains candidates"
    made, note = _or_note(lambda: store_cache.cached("decisions", _decisions, series), missing)
    return answers.Decisions(**vars(series), decisions=made[:limit], note=note)


def _decisions(store: Store, series: SeriesId) -> list[Decision]:
    return decisions_on(store, series, _MAX_DECISIONS)


def _flow_runs() -> tuple[list[FlowRunInfo], str | None]:
    return store_cache.cached("runs", lambda store: newest_flow_runs(store, _MAX_RUNS))


def runs(home: Path, limit: int) -> answers.Runs:
    """Return the trainings in progress, and the newest `limit` runs of the flow."""
    made, note = _or_note(_flow_runs, "")
    flow_runs = [answers.FlowRun(**dict(run)) for run in made[:limit]]
    trainings, active = list(_trainings(home)), is_run_active(home)
    return answers.Runs(trainings=trainings, active=active, runs=flow_runs, note=note or None)


def _trainings(home: Path) -> Iterator[answers.Training]:
    # By the lock of the trainer's process: a killed training leaves its progress, and is none.
    for folder in shards_in_training(home):
        try:
            job = read_job(folder)
        except (DamagedError, FileNotFoundError):  # reported by the flow that started it
            continue
        series = [member.model.series for member in job.members]
        fields = _progress(folder) | dict(job)
        fields |= {"members": len(series), "market": series[0].market}
        fields["preset"] = job.members[0].model.recipe  # a run may train several changes of a preset
        fields["symbols"] = sorted({s.symbol for s in series})
        fields["timeframes"] = sorted({s.timeframe for s in series})
        yield answers.Training(fleet=folder.name, **fields)


def _progress(folder: Path) -> dict[str, Any]:
    """Return the progress of a training since its current start, when its job was written."""
    path = folder / PROGRESS
    progress: dict[str, Any] | None = read_json_or_none(path)
    # A continued training writes its job anew: what it measured before belongs to another process.
    started = (folder / JOB).stat().st_mtime
    since = {"since": datetime.fromtimestamp(started, UTC)}
    if progress is None or path.stat().st_mtime < started:
        return since  # the trainer has not begun; the file is from an earlier process
    progress |= {"seconds_per_epoch": progress.get("seconds"), "eta_seconds": progress.get("eta_s")}
    return since | progress
