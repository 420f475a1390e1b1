"""`cpb backtest`: klines -> features -> rolling-origin folds -> fleets and baselines -> one judgement and its report.

Folds of per-coin models are members of one fleet; a universal model is trained once per fold. Nothing goes to
MLflow and nothing is promoted: this answers what a method is worth, not which model to ship.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prefect import flow
from prefect.states import Completed, State

from cpbmodels.series import Series
from flows.backtest_audit import check
from flows.console import say
from flows.fleet_trainer import FleetTrainer
from flows.deploy.liveness import claim_run
from flows.prefect_server import check_server
from flows.runner import Runner, ThroughPrefect, plain_failures
from schemas.config import CLASSIFIER, UNIVERSAL, TrainConfig
from schemas.errors import COMPLETE, PARTIAL, CpbError, UsageError
from schemas.records import Failure, SeriesRecord
from tasks.features import features
from tasks.storage.files import check_writable, new_folder, write_bytes, write_json
from tasks.ingest import ingest
from tasks.judging import pictures, table
from tasks.judging.backtest import (
    Backtest,
    FoldSeries,
    Forecasts,
    Trainer,
    as_json,
    baseline_trainer,
    load_folds,
    missing,
    run_backtest,
)
from tasks.judging.baselines import Fit, random_walk
from tasks.judging.boosted import boosted
from tasks.judging.garch import garch
from tasks.judging.money import trade
from tasks.judging.report import write_report
from tasks.judging.robust_har import robust_har
from tasks.judging.rows import backtest_rows, write_rows
from tasks.signals.splits import SplitBounds
from tasks.signals.splits import folds as make_folds

BASELINES: dict[str, Fit] = {
    "random-walk": random_walk,
    "robust-har": robust_har,
    "garch-t": garch,
    "lightgbm": boosted,
}
"""Baselines by name. The first two run always; the others need the extra `judging` and are asked for."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What a backtest is asked besides the training config."""

    folds: int = 4
    refit: bool = True
    kind: Literal["expanding", "sliding"] = "expanding"
    baselines: tuple[str, ...] = ("random-walk", "robust-har")
    check_lookahead: bool = False
    out: Path | None = None
    report: Path | None = None


def run(config: TrainConfig, options: Options, steps: Runner, say: Say = say) -> dict[str, Any]:
    """Run the backtest and return what `--json` prints: `pooled`, `members`, `failures`, `exit`.

    Raises:
        CpbError: no series could be used.
    """
    if any(name.removesuffix(UNIVERSAL) == CLASSIFIER for name in config.architectures):
        raise UsageError("backtest judges forecasts of prices: leave classifier-gru out of --architectures")
    for folder in (options.out, options.report):
        if folder is not None:
            check_writable(folder)
    result = Backtest()
    records = _records(config, steps, say, result.failures)
    bounds = _bounds(records, options)
    loaded = load_folds(records, bounds, result.failures)
    if not loaded:
        raise CpbError(f"nothing to backtest: {result.failures[0].reason}")
    fleets = {name: FleetTrainer(name, config) for name in config.architectures}
    beside = [name for name in options.baselines if name not in fleets]  # robust-har is a model as well
    trainers: dict[str, Trainer] = {n: baseline_trainer(BASELINES[n]) for n in beside} | dict(fleets)
    absent = missing(records, loaded, options.folds)
    for text in (
        f"{len(loaded)} series (coins x timeframes x folds); models: {', '.join(trainers)}",
        *absent,
    ):
        say(text)
    shown: list[tuple[str, Any]] = []
    with _rows_of(options) as rows:
        judged = run_backtest(
            loaded, trainers, refit=options.refit, keep=_keeper(rows, fleets, loaded, shown, say)
        )
        judged.failures = [*result.failures, *judged.failures]
        notes = [*_notes(config, options, judged.failures), *absent]
        if options.check_lookahead:
            fits = {name: BASELINES[name] for name in options.baselines}
            notes += [found := check(config, bounds, fleets, fits, loaded)]
            say(found)
        leaking = options.check_lookahead and "LOOK-AHEAD" in notes[-1]
        answer = as_json(judged) | {
            "failures": [f.model_dump() for f in judged.failures],
            "folds_incomplete": absent,
            "lookahead": notes[-1] if options.check_lookahead else None,
            "exit": PARTIAL if judged.failures or leaking else COMPLETE,
        }
        _write(config, options, judged, answer, fleets, shown, notes)
    say(table.as_text(table.leaderboard_rows(judged.pools)))
    for pool in judged.pools:
        say(f"{pool.architecture} {pool.timeframe} is {pool.verdict}")
    return answer


@flow(name="backtest", on_running=[claim_run])
@plain_failures
def backtest(config: TrainConfig, options: Options) -> State:
    """Run the same backtest as a Prefect flow run."""
    result = run(config, options, ThroughPrefect(), say)
    return Completed(name="Partial" if result["exit"] else "Completed", data=result)


def in_prefect(config: TrainConfig, options: Options) -> dict[str, Any]:
    """Run the same backtest as a flow run on the server in use, and return what `run` returns."""
    check_server()
    # Called directly, a flow gives the data of the state that it returned.
    result: Any = backtest(config, options)
    return dict(result)


def _records(config: TrainConfig, steps: Runner, say: Say, failures: list[Failure]) -> list[SeriesRecord]:
    scope = config.scope
    report = steps.one(ingest, scope, False)
    failed = {(s.symbol, s.timeframe): s.reason for s in report.series if s.status == "failed"}
    wanted = [(s, t) for s in scope.symbols for t in scope.timeframes if (s, t) not in failed]
    outcomes = steps.each(features, [(scope, symbol, timeframe) for symbol, timeframe in wanted], 2)
    failed |= {key: str(o.error) for key, o in zip(wanted, outcomes, strict=True) if o.error}
    for (symbol, timeframe), reason in failed.items():
        failures.append(Failure(symbol=symbol, timeframe=timeframe, step="data", reason=reason))
        say(f"FAILED {symbol} {timeframe}: {reason}")
    records = [o.value for o in outcomes if o.value]
    if not records:
        raise CpbError(f"nothing to backtest: {failures[0].reason if failures else 'the scope is empty'}")
    return records


def _bounds(records: list[SeriesRecord], options: Options) -> dict[str, list[SplitBounds]]:
    timeframes = dict.fromkeys(r.timeframe for r in records)
    return {
        t: make_folds([r for r in records if r.timeframe == t], options.folds, options.kind)
        for t in timeframes
    }


def _rows_of(options: Options) -> AbstractContextManager[Path | None]:
    """The folder of the forecast rows: the old one's place is taken at the end, whole, or not at all."""
    return new_folder(options.out / "forecasts") if options.out is not None else nullcontext()


def _keeper(
    rows: Path | None,
    fleets: Collection[str],
    loaded: Sequence[FoldSeries],
    shown: list[tuple[str, Any]],
    say: Say,
) -> Callable[[str, int, Series, Forecasts], None]:
    """Return what is told every fold's forecasts: writes the rows, draws each model's first coin, newest fold."""
    newest = {(one.series.symbol, one.series.timeframe): one.fold for one in loaded}  # fold by fold
    seen: set[str] = set()
    drawn: set[str] = set()

    def keep(name: str, fold: int, series: Series, forecasts: Forecasts) -> None:
        if name not in seen:
            seen.add(name)
            say(f"judging {name}")
        if rows is not None and name in fleets:  # baselines are cheap to compute again, rows are large
            frame = backtest_rows(
                series, forecasts.origins, forecasts.quantiles, forecasts.candle, model=name, fold=fold + 1
            )
            write_rows(rows, frame)
        if name in fleets and name not in drawn and fold == newest[series.symbol, series.timeframe]:
            drawn.add(name)
            shown.extend(_shown(name, series, forecasts))

    return keep


def _shown(name: str, series: Series, forecasts: Forecasts) -> list[tuple[str, Any]]:
    middle = len(forecasts.origins) // 2
    account = trade(series, forecasts.origins, forecasts.quantiles)
    free = trade(series, forecasts.origins, forecasts.quantiles, cost=0.0)
    curves = {name: account.equity, f"{name}, were trading free": free.equity, "buy and hold": account.hold}
    return [
        (f"{name}: one forecast", pictures.forecast_figure(series, forecasts, middle)),
        (f"{name}: {account.as_text()}", pictures.equity_figure(account.times, curves)),
    ]


def _notes(config: TrainConfig, options: Options, failures: Sequence[Failure]) -> list[str]:
    scope = config.scope
    as_of = f" as of {scope.as_of:%Y-%m-%d %H:%M} UTC" if scope.as_of else ""
    how = "refitted for each" if options.refit else "fitted once"
    notes = [
        f"Preset {config.preset}, {options.folds} folds, {options.kind} training, {how}{as_of}; seed {config.seed}."
    ]
    return notes + [f"Left out: {f.symbol} {f.timeframe}: {f.reason}" for f in failures]


def _write(
    config: TrainConfig,
    options: Options,
    judged: Backtest,
    answer: dict[str, Any],
    fleets: Mapping[str, FleetTrainer],
    shown: Sequence[tuple[str, Any]],
    notes: Sequence[str],
) -> None:
    losses = [
        (f"{key}: loss", pictures.loss_figure(history))
        for trainer in fleets.values()
        for key, history in list(trainer.histories.items())[:1]
    ]
    for folder in {f for f in (options.out, options.report) if f is not None}:
        title = f"cpb backtest: {', '.join(config.architectures)}"
        write_report(
            folder / "report.html",
            title,
            judged.pools,
            judged.members,
            [*shown, *losses],
            notes,
            judged.pairs,
        )
    if options.out is not None:
        rows = table.leaderboard_rows(judged.pools)
        write_bytes(options.out / "leaderboard.csv", table.as_csv(rows).encode())
        write_bytes(options.out / "members.csv", table.as_csv(table.member_rows(judged.members)).encode())
        verdicts = [f"{p.architecture} {p.timeframe} is {p.verdict}" for p in judged.pools]
        verdicts += [pair.verdict for pair in judged.pairs]
        verdicts += [f"{m.architecture}/{m.symbol}/{m.timeframe} is {m.verdict}" for m in judged.members]
        write_bytes(options.out / "verdicts.txt", ("\n".join(verdicts) + "\n").encode())
        write_json(options.out / "result.json", answer | {"config": config.model_dump(mode="json")})


def parse_baselines(text: str) -> tuple[str, ...]:
    """Return the names of `--baselines`; raises `UsageError` naming an unknown one."""
    names = tuple(dict.fromkeys(n.strip() for n in text.split(",") if n.strip()))
    unknown = [n for n in names if n not in BASELINES]
    if unknown:
        raise UsageError(f"--baselines {', '.join(unknown)}: choose from {', '.join(BASELINES)}")
    return names
