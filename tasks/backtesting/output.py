"""Output of a backtest: forecast rows during judging, then tables, verdicts and the report.

Forecast rows are parquet files with the contract's columns, plus the fold and the realised close.

The report is an HTML page with verdicts, interactive figures and tables; it makes no network requests.
"""

import io
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from cpbmodels.data.series import Prediction, forecast_rows
from schemas.forecasts import check_backtest_rows
from schemas.run import BacktestSpec
from tasks.backtesting.fleets import TrainedFleet
from tasks.backtesting.folds import FoldSeries
from tasks.backtesting.judge import Backtest, FoldScore
from tasks.figures.judged import INTRODUCTION, MAX_OPEN_ROWS, judged_sections, members_section, pool_verdict
from tasks.figures.page import Column, Section, Table, write_page
from tasks.figures.training import losses_figure
from tasks.judging import table
from tasks.judging.table import title_of
from tasks.storage.files import public_url, write_bytes, write_json


def write_results(
    spec: BacktestSpec,
    found: Backtest,
    fleets: Sequence[TrainedFleet],
    notes: Sequence[str],
    answer: dict[str, Any],
) -> None:
    """Write tables, verdicts, the report and `result.json` into `out`, if it is given.

    Args:
        spec: the options.
        found: the results of judging.
        fleets: trained fleets, for the plots of their losses.
        notes: sentences under the report's heading.
        answer: the object that `--json` prints.
    """
    if spec.out is None:
        return
    histories = [history for fleet in fleets if (history := fleet.loss_history)]
    title = f"cpb backtest: {', '.join(spec.names)}"
    write_report(Path(spec.out) / "report.html", title, found, notes, histories)
    _write_tables(Path(spec.out), spec, found, answer)


def _write_tables(folder: Path, spec: BacktestSpec, found: Backtest, answer: dict[str, Any]) -> None:
    write_bytes(folder / "leaderboard.csv", table.as_csv(table.leaderboard_rows(found.pools)).encode())
    write_bytes(folder / "members.csv", table.as_csv(table.member_rows(found.members)).encode())
    verdicts = [*map(pool_verdict, found.pools), *(pair.verdict for pair in found.pairs)]
    verdicts += [f"{m.architecture}/{m.symbol}/{m.timeframe} is {m.verdict}" for m in found.members]
    write_bytes(folder / "verdicts.txt", ("\n".join(verdicts) + "\n").encode())
    config = spec.model_dump(mode="json") | {"source": public_url(spec.source) if spec.source else None}
    write_json(folder / "result.json", answer | {"config": config})


def backtest_rows(one: FoldSeries, forecasts: Prediction, model: str) -> pl.DataFrame:
    """Return a row per origin and step of a fold, validated; prices as Float64 (PEPE trades at 1e-8).

    Args:
        one: the forecast series and fold; the series needs `times`.
        forecasts: a trained model's, of the fold's test span.
        model: written as `model_version`.
    """
    series, origins = one.series, forecasts.origins
    assert series.times is not None  # every stored series has times
    last = series.prices[origins, 3][:, None, None]
    issued = pl.Series(series.times[origins] + one.id.seconds * 1_000_000).cast(pl.Datetime("us", "UTC"))
    close = last * np.exp(forecasts.quantiles)
    horizon = close.shape[1]
    rows = forecast_rows(issued, one.id.seconds, close, last * np.exp(forecasts.candle))
    later = origins[:, None] + np.arange(1, horizon + 1)
    return check_backtest_rows(
        rows.select(
            pl.lit(one.id.symbol).alias("symbol"),
            pl.lit(one.id.timeframe).alias("timeframe"),
            pl.lit(model).alias("model_version"),
            "issued_at",
            pl.col("step").cast(pl.Int16),
            pl.exclude("issued_at", "step"),
            pl.Series("last_close", np.repeat(last.ravel(), horizon)),
            pl.Series("realised_close", series.prices[later, 3].ravel()),
            pl.lit(one.fold, dtype=pl.Int16).alias("fold"),
        )
    )


def write_rows(folder: Path, one: FoldSeries, forecasts: Prediction, model: str) -> Path:
    """Write a model's rows of a series and fold below `folder`; return the file.

    The path contains the model, the market (unless it is spot), the interval, the symbol and the fold.
    """
    path = one.id.folder(folder, f"model={model}") / f"fold-{one.fold}.parquet"
    buffer = io.BytesIO()
    backtest_rows(one, forecasts, model).write_parquet(buffer, compression="zstd", compression_level=1)
    write_bytes(path, buffer.getvalue())
    return path


_FOLDS = (
    "Verdicts are of all folds together; a fold alone has too few independent forecasts. Look for a model whose ratio "
    "depends on the period."
)
_FOLD_COLUMNS = {
    "timeframe": Column("Candles"), "architecture": Column("Model"), "fold": Column("Fold", "the oldest is 1", "d"),
    "since": Column("From", "first forecast (UTC)"), "until": Column("To", "last forecast (UTC)"),
    "coins": Column("Coins", "", ","),
    "crps_ratio": Column("CRPS ratio", "CRPS / reference's, mean over the coins; below 1 is better", ".4f"),
    "best": Column("Best coin", "lowest ratio of a coin", ".4f"), "worst": Column("Worst coin", "highest", ".4f"),
    "n": Column("Forecasts", "", ","),
}  # fmt: skip

Histories = Sequence[tuple[str, Sequence[dict[str, Any]]]]


def write_report(
    path: Path,
    title: str,
    found: Backtest,
    notes: Sequence[str] = (),
    histories: Histories = (),
) -> None:
    """Write the page atomically.

    Args:
        path: path of the HTML file.
        title: heading.
        found: the results of judging.
        notes: sentences under the heading: options, look-ahead check, failures.
        histories: names of trained models and their epochs.
    """
    sections = [
        Section("What this is", text=[INTRODUCTION, *notes]),
        *judged_sections(found.pools, found.members, [f"{pair.verdict}." for pair in found.pairs]),
        *_folds(found.folds),
        *_trained(histories),
        members_section(found.members),
    ]
    write_page(path, title, sections)


def _folds(scores: Sequence[FoldScore]) -> list[Section]:
    """Return the table of each model on each fold, with equal weight per coin; nothing if there is a single fold."""
    if len({one.fold for one in scores}) < 2:
        return []
    groups: dict[tuple[str, str, int], list[FoldScore]] = defaultdict(list)
    for one in scores:
        groups[one.timeframe, one.architecture, one.fold].append(one)
    rows = [
        {
            "timeframe": timeframe, "architecture": title_of(name), "fold": fold, "coins": len(own),
            "since": f"{min(one.since for one in own):%Y-%m-%d}", "until": f"{max(one.until for one in own):%Y-%m-%d}",
            "crps_ratio": float(np.mean([one.ratio for one in own])), "best": min(one.ratio for one in own),
            "worst": max(one.ratio for one in own), "n": sum(one.n for one in own),
        }
        for (timeframe, name, fold), own in sorted(groups.items())
    ]  # fmt: skip
    return [
        Section(
            "Every fold", text=[_FOLDS], table=Table(_FOLD_COLUMNS, rows), folded=len(rows) > MAX_OPEN_ROWS
        )
    ]


def _trained(histories: Histories) -> list[Section]:
    losses = [(f"Loss of {title_of(name)}", losses_figure({name: rows})) for name, rows in histories]
    return [Section("Training", figures=losses)] if losses else []
