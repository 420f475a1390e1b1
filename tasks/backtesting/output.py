"""What a backtest leaves behind: forecast rows while it judges, then tables, verdicts and the report."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.run import BacktestSpec
from tasks.backtesting.examples import Examples
from tasks.backtesting.fleets import TrainedFleet
from tasks.backtesting.folds import FoldSeries
from tasks.backtesting.judge import Backtest
from tasks.backtesting.models import Forecasts
from tasks.backtesting.report import write_report
from tasks.backtesting.rows import write_rows
from tasks.figures.judged import pool_verdict
from tasks.judging import table
from tasks.storage.files import check_writable, new_folder, write_bytes, write_json
from tasks.storage.urls import public_url


def folders(spec: BacktestSpec) -> list[Path]:
    """Return the folders that the backtest is to write, each once."""
    return [Path(name) for name in dict.fromkeys((spec.out, spec.report)) if name]


def check_folders(spec: BacktestSpec) -> None:
    """Raise `UsageError` where a folder cannot be written: before the work, not after hours of it."""
    for folder in folders(spec):
        check_writable(folder)


class FoldRecorder:
    """Receives the forecasts of every judged fold: writes its rows, keeps examples of the newest folds."""

    def __init__(self, rows: Path | None, trained: Collection[str], folds: Sequence[FoldSeries]) -> None:
        self._rows, self._trained = rows, trained
        self._newest = {one.id: one.fold for one in folds}  # folds come oldest first
        self.examples = Examples()

    def record_fold(self, name: str, one: FoldSeries, forecasts: Forecasts) -> None:
        """Write and keep, of trained models only: baselines are quickly computed again, and rows are large."""
        if name not in self._trained:
            return
        if self._rows is not None:
            write_rows(self._rows, one, forecasts, name)
        if one.fold == self._newest[one.id]:
            self.examples.add(name, one, forecasts)


@contextmanager
def recorder(
    spec: BacktestSpec, trained: Collection[str], folds: Sequence[FoldSeries]
) -> Iterator[FoldRecorder]:
    """Yield a recorder; the rows of an earlier backtest in the same folder are replaced as a whole or not at all."""
    if spec.out is None:
        yield FoldRecorder(None, trained, folds)
        return
    with new_folder(Path(spec.out) / "forecasts") as rows:
        yield FoldRecorder(rows, trained, folds)


def write_results(
    spec: BacktestSpec,
    found: Backtest,
    fleets: Sequence[TrainedFleet],
    examples: Examples,
    notes: Sequence[str],
    answer: dict[str, Any],
) -> None:
    """Write the report into both folders, and tables, verdicts and `result.json` into `out`.

    Args:
        spec: what was asked.
        found: what was judged.
        fleets: whose losses are drawn.
        examples: of the recorder.
        notes: sentences under the report's heading.
        answer: what `--json` prints.
    """
    histories = [history for fleet in fleets if (history := fleet.loss_history)]
    title = f"cpb backtest: {', '.join(spec.names)}"
    for folder in folders(spec):
        write_report(
            folder / "report.html",
            title,
            found.pools,
            found.members,
            notes,
            found.pairs,
            histories,
            examples,
        )
    if spec.out is not None:
        _write_tables(Path(spec.out), spec, found, answer)


def _write_tables(folder: Path, spec: BacktestSpec, found: Backtest, answer: dict[str, Any]) -> None:
    write_bytes(folder / "leaderboard.csv", table.as_csv(table.leaderboard_rows(found.pools)).encode())
    write_bytes(folder / "members.csv", table.as_csv(table.member_rows(found.members)).encode())
    verdicts = [*pool_verdicts(found), *(pair.verdict for pair in found.pairs)]
    verdicts += [f"{m.architecture}/{m.symbol}/{m.timeframe} is {m.verdict}" for m in found.members]
    write_bytes(folder / "verdicts.txt", ("\n".join(verdicts) + "\n").encode())
    config = spec.model_dump(mode="json") | {"source": public_url(spec.source) if spec.source else None}
    write_json(folder / "result.json", answer | {"config": config})


def pool_verdicts(found: Backtest) -> list[str]:
    """Return a sentence per model and timeframe."""
    return [pool_verdict(pool) for pool in found.pools]
