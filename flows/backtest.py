"""`cpb backtest`: klines -> features -> rolling-origin folds -> fleets and baselines -> one judgement and its report.

Folds of per-coin models are members of one fleet; a universal model is trained once per fold. Nothing goes to
MLflow and nothing is promoted: this answers what a method is worth, not which model to ship.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

import cpbmodels
from cpbmodels.series import RETURNS, Series
from flows.runner import Runner
from schemas.config import UNIVERSAL, TrainConfig
from schemas.errors import COMPLETE, PARTIAL, CpbError, UsageError
from schemas.records import Failure, SeriesRecord
from tasks.features import features
from tasks.files import write_bytes, write_json
from tasks.ingest import ingest
from tasks.judging import lookahead, pictures, table
from tasks.judging.backtest import (
    Backtest,
    FoldSeries,
    Forecaster,
    Forecasts,
    Trainer,
    as_json,
    baseline_trainer,
    load_folds,
    run_backtest,
)
from tasks.judging.baselines import Fit, ewma_walk, random_walk, reference
from tasks.judging.boosted import boosted
from tasks.judging.garch import garch
from tasks.judging.member import judge_member
from tasks.judging.money import trade
from tasks.judging.report import write_report
from tasks.judging.robust_har import robust_har
from tasks.judging.rows import backtest_rows, write_rows
from tasks.market.store import read_klines
from tasks.signals.splits import SplitBounds
from tasks.signals.splits import folds as make_folds

BASELINES: dict[str, Fit] = {
    "random-walk": random_walk,
    "robust-har": robust_har,
    "garch-t": garch,
    "lightgbm": boosted,
}
"""Baselines by name. The first two run always; the others need the extra `judging` and are asked for."""

NO_SKILL = 0.99
"""A model that learnt from shuffled features and still falls under this CRPS ratio has another source."""

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


@dataclass
class FleetTrainer:
    """Trains one architecture with `cpbmodels`; keeps the loss histories for the report."""

    name: str
    config: TrainConfig
    histories: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __call__(self, loaded: Sequence[FoldSeries]) -> Forecaster:
        """Return a forecaster of the trained members."""
        members = self._universal(loaded) if self.name.endswith(UNIVERSAL) else self._own(loaded)
        for one, member in zip(loaded, members, strict=True):
            self.histories.setdefault(
                f"{self.name} {one.series.symbol} {one.series.timeframe}", member.history
            )

        def forecast(series: Sequence[Series], split: str) -> Sequence[Forecasts]:
            origins = [s.origins(split, m.context, m.horizon) for s, m in zip(series, members, strict=True)]
            return cpbmodels.predict(members, list(series), origins)

        return forecast

    def _own(self, loaded: Sequence[FoldSeries]) -> list[cpbmodels.Member]:
        return self._train([one.series for one in loaded], [self._seed(one) for one in loaded], "per-series")

    def _universal(self, loaded: Sequence[FoldSeries]) -> list[cpbmodels.Member]:
        groups: dict[tuple[int, str], list[FoldSeries]] = defaultdict(list)
        for one in loaded:
            groups[one.fold, one.series.timeframe].append(one)
        trained = {
            key: self._train([o.series for o in group], [self._seed(group[0])], "universal")[0]
            for key, group in groups.items()
        }
        return [trained[one.fold, one.series.timeframe] for one in loaded]

    def _train(self, series: list[Series], seeds: list[int], scope: str) -> list[cpbmodels.Member]:
        return cpbmodels.train_fleet(
            series,
            architecture=self.name.removesuffix(UNIVERSAL),
            preset=self.config.preset,
            seeds=seeds,
            device=self.config.device,
            dtype=self.config.dtype,
            scope=scope,
            **self.config.overrides,
        )

    def _seed(self, one: FoldSeries) -> int:
        text = f"{self.config.seed}/{self.name}/{one.series.symbol}/{one.series.timeframe}/{one.fold}"
        return zlib.crc32(text.encode())


def run(config: TrainConfig, options: Options, steps: Runner, say: Say = print) -> dict[str, Any]:
    """Run the backtest and return what `--json` prints: `pooled`, `members`, `failures`, `exit`.

    Raises:
        CpbError: no series could be used.
    """
    result = Backtest()
    records = _records(config, steps, say, result.failures)
    bounds = _bounds(records, options)
    loaded = load_folds(records, bounds, result.failures)
    if not loaded:
        raise CpbError(f"nothing to backtest: {result.failures[0].reason}")
    fleets = {name: FleetTrainer(name, config) for name in config.architectures if name != "classifier-gru"}
    trainers: dict[str, Trainer] = {n: baseline_trainer(BASELINES[n]) for n in options.baselines} | dict(
        fleets
    )
    say(f"{len(loaded)} coins x folds; models: {', '.join(trainers)}")
    shown: list[tuple[str, Any]] = []
    judged = run_backtest(loaded, trainers, refit=options.refit, keep=_keeper(options, loaded, shown, say))
    judged.failures = [*result.failures, *judged.failures]
    notes = _notes(config, options, judged.failures)
    if options.check_lookahead:
        notes.append(_check_lookahead(config, records[0], bounds[records[0].timeframe][-1], fleets, loaded))
        say(notes[-1])
    _write(config, options, judged, fleets, shown, notes)
    say(table.as_text(table.leaderboard_rows(judged.pools)))
    for pool in judged.pools:
        say(f"{pool.architecture} {pool.timeframe} is {pool.verdict}")
    leaking = options.check_lookahead and "LOOK-AHEAD" in notes[-1]
    return as_json(judged) | {
        "failures": [f.model_dump() for f in judged.failures],
        "lookahead": notes[-1] if options.check_lookahead else None,
        "exit": PARTIAL if judged.failures or leaking else COMPLETE,
    }


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


def _keeper(
    options: Options, loaded: Sequence[FoldSeries], shown: list[tuple[str, Any]], say: Say
) -> Callable[[str, int, Series, Forecasts], None]:
    """Return what is told every fold's forecasts: writes the rows, draws the first coin's newest fold."""
    first, newest = loaded[0].series, max(one.fold for one in loaded)
    seen: set[str] = set()

    def keep(name: str, fold: int, series: Series, forecasts: Forecasts) -> None:
        if name not in seen:
            seen.add(name)
            say(f"judging {name}")
        if options.out is not None:
            frame = backtest_rows(
                series, forecasts.origins, forecasts.quantiles, forecasts.candle, model=name, fold=fold + 1
            )
            write_rows(options.out / "forecasts", frame)
        if fold == newest and (series.symbol, series.timeframe) == (first.symbol, first.timeframe):
            shown.extend(_shown(name, series, forecasts))

    return keep


def _shown(name: str, series: Series, forecasts: Forecasts) -> list[tuple[str, Any]]:
    middle = len(forecasts.origins) // 2
    account = trade(series, forecasts.origins, forecasts.quantiles)
    f = account.figures
    caption = (
        f"{name}: an illustration, never used to choose a model. Sharpe {f['strategy_sharpe']:.2f} "
        f"[{f['strategy_sharpe_low']:.2f}, {f['strategy_sharpe_high']:.2f}], "
        f"drawdown {f['strategy_drawdown']:.2f}, turnover {f['turnover_per_year']:.0f} a year"
    )
    curves = {name: account.equity, "buy and hold": account.hold}
    return [
        (f"{name}: one forecast", pictures.forecast_figure(series, forecasts, middle)),
        (caption, pictures.equity_figure(account.times, curves)),
    ]


def _check_lookahead(
    config: TrainConfig,
    record: SeriesRecord,
    bounds: SplitBounds,
    fleets: Mapping[str, FleetTrainer],
    loaded: Sequence[FoldSeries],
) -> str:
    """Return the finding for one series: columns, window list, baselines, forecasts, shuffled training."""
    scope = config.scope
    klines = read_klines(
        scope.home, record.symbol, record.timeframe, since=scope.since, as_of=scope.as_of, market=scope.market
    )
    one = next(o for o in reversed(loaded) if o.series.symbol == record.symbol)
    trained = {name: FleetTrainer(name, config)._own([one])[0] for name in fleets}
    models = {name: _live(member) for name, member in trained.items()}
    compute = lookahead.pipeline(bounds, {"reference": ewma_walk, "robust-har": robust_har}, models)
    first = one.series.spans["test"][0] + 200
    leaks = lookahead.check_lookahead(compute, klines, cuts=4, first=first, tolerance=1e-4)
    return lookahead.explain(leaks) + _shuffled(config, one, trained)


def _shuffled(config: TrainConfig, one: FoldSeries, trained: Mapping[str, cpbmodels.Member]) -> str:
    """Return what models learn from shuffled features: nothing, or something knows the future.

    Only for models that read no returns: those are the target's own columns and cannot be shuffled.
    """
    found = ""
    nonsense = FoldSeries(one.fold, lookahead.shuffled(one.series))
    for name, member in trained.items():
        if set(member.config["features"]) & set(RETURNS):
            continue
        learnt = FleetTrainer(name, config)._own([nonsense])[0]
        origins = one.series.origins("test", learnt.context, learnt.horizon)
        forecasts = cpbmodels.predict([learnt], [one.series], [origins])[0]
        known = reference(one.series, one.series.origins("train", 1, learnt.horizon), origins, learnt.horizon)
        ratio = judge_member(one.series, forecasts, known, architecture=name).metrics["test_crps_ratio"]
        verdict = "no skill, as it must be" if ratio >= NO_SKILL else "LOOK-AHEAD: skill from nothing"
        found += f"; {name} trained on shuffled features: ratio {ratio:.3f}, {verdict}"
    return found


def _live(member: cpbmodels.Member) -> lookahead.Forecaster:
    def forecast(series: Series, origins: np.ndarray) -> np.ndarray:
        return cpbmodels.predict([member], [series], [origins])[0].quantiles

    return forecast


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
        write_report(folder / "report.html", title, judged.pools, judged.members, [*shown, *losses], notes)
    if options.out is not None:
        rows = table.leaderboard_rows(judged.pools)
        write_bytes(options.out / "leaderboard.csv", table.as_csv(rows).encode())
        write_bytes(options.out / "members.csv", table.as_csv(table.member_rows(judged.members)).encode())
        verdicts = [f"{p.architecture} {p.timeframe} is {p.verdict}" for p in judged.pools]
        verdicts += [f"{m.architecture}/{m.symbol}/{m.timeframe} is {m.verdict}" for m in judged.members]
        write_bytes(options.out / "verdicts.txt", ("\n".join(verdicts) + "\n").encode())
        write_json(options.out / "result.json", as_json(judged) | {"config": config.model_dump(mode="json")})


def parse_baselines(text: str) -> tuple[str, ...]:
    """Return the names of `--baselines`; raises `UsageError` naming an unknown one."""
    names = tuple(dict.fromkeys(n.strip() for n in text.split(",") if n.strip()))
    unknown = [n for n in names if n not in BASELINES]
    if unknown:
        raise UsageError(f"--baselines {', '.join(unknown)}: choose from {', '.join(BASELINES)}")
    return names
