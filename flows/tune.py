"""`cpb tune`: candles -> features -> folds -> batches of trials -> the winner on the test span, once -> its preset."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cpbmodels
from flows.runner import Runner, series_records, with_pairs
from flows.summary import Say, Summary
from flows.tables import p_value
from flows.tracked_run import run_of
from schemas.errors import COMPLETE, PARTIAL, CpbError
from schemas.presets import own_presets_folder
from schemas.tuning import TuneSpec
from schemas.wording import count, install_extra
from tasks.backtesting.folds import FoldSeries, load_folds, plan_bounds
from tasks.running.progress import tell
from tasks.storage.digests import value_digest
from tasks.storage.files import write_bytes, write_json
from tasks.storage.locks import locked
from tasks.storage.records import write_record
from tasks.tracking.artifacts import check_place
from tasks.tracking.store import open_store
from tasks.tracking.studies import TrialRecord, finish_study, log_trials, start_study
from tasks.tracking.tags import AS_OF, NEWEST
from tasks.training.devices import check_device, gpu_held, gpus_of
from tasks.training.plan import training_code
from tasks.training.progress import ProgressFile
from tasks.training.runner import PROGRESS
from tasks.tuning.at_work import LOCK, SEARCH, Search

_FIRST_BATCH = 16
"""Trials of a call's first batch under a budget: it tells how many fit into the rest."""


def run_tune(spec: TuneSpec, steps: Runner, say: Say) -> dict[str, Any]:
    """Search, choose and score; return what `--json` prints. The same command goes on with its study.

    Raises:
        CpbError: Optuna is not installed, no series can be used, or no trial was completed.
    """
    started = time.monotonic()
    tuning = _tuning()
    check_device(spec.device)
    check_place(open_store())
    summary, spec = Summary(), with_pairs(spec, say)
    inner, newest = _folds(spec, steps, say, summary)
    key = _key(spec, inner + newest)
    folder = spec.scope.root / "tuning" / key
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK):
        (folder / PROGRESS).unlink(missing_ok=True)  # of an earlier call
        write_record(folder / SEARCH, _asked(spec, inner + newest))
        study = tuning.Study(spec.scope.root / "tuning" / "optuna.db", key, spec)
        run = start_study(
            f"tune-{key}",
            spec.model_dump(mode="json") | {"space": tuning.space_as_json(spec.space)},
            {
                "architecture": spec.names[0],
                "preset": spec.preset,
                "market": spec.market,
                AS_OF: spec.as_of or NEWEST,
            },
        )
        with run_of(run.run_id):
            deadline = started + spec.budget_s if spec.budget_s is not None else None
            how = {"device": spec.device, "dtype": spec.dtype, "profile": _profile(spec)}
            with gpu_held(gpus_of(spec.device)):
                scored = _search(spec, study, inner, deadline, how, run.run_id, folder, say)
                answer = _conclude(spec, study, scored, newest, how, folder, say)
            answer |= {
                "study": key,
                "storage": str(spec.scope.root / "tuning" / "optuna.db"),
                "run_id": run.run_id,
                "seconds": time.monotonic() - started,
                "failures": [failure.as_json() for failure in summary.failures],
                "exit": PARTIAL if summary.failures else COMPLETE,
            }
            _write_report(folder, spec, answer)
            finish_study(run.run_id, _metrics(answer), folder)
    say(_sentence(answer))
    return answer


def _tuning() -> Any:
    """The module that imports Optuna: an extra, which no other command needs."""
    try:
        from tasks.tuning import study
    except ImportError as error:
        if error.name and error.name.split(".")[0] != "optuna":
            raise
        raise CpbError(
            f"tune: the package optuna is not installed; run {install_extra('tune')}",
            code="extra-missing", field="tune",
        ) from error  # fmt: skip
    return study


def _folds(
    spec: TuneSpec, steps: Runner, say: Say, summary: Summary
) -> tuple[list[FoldSeries], list[FoldSeries]]:
    """The folds that choose, and the newest one, whose test span is the winner's. Series need all of them."""
    records = series_records(spec, steps, say, summary)
    wanted = spec.folds + 1
    found = load_folds(spec.scope.home, records, plan_bounds(records, wanted)) if records else None
    if found is not None:
        summary.add(found.failures, say)
        for sentence in found.incomplete:
            say(sentence)
    loaded = found.loaded if found is not None else ()
    ids = [one.id for one in loaded]
    whole = [one for one in loaded if ids.count(one.id) == wanted]
    usable = [one for one in whole if not _why_not(spec, one)]
    if not usable:
        reasons = "; ".join(f"{f.subject}: {f.reason}" for f in summary.failures[:3])
        reasons = reasons or next((_why_not(spec, one) for one in whole), "no series has all folds")
        raise CpbError(
            f"nothing to tune on ({reasons}); check coins, since, as_of and folds", code="no-series"
        )
    say(
        f"{count(len({one.id for one in usable}), 'series')}, {count(spec.folds, 'fold')} to choose on, "
        f"test span from {usable[-1].bounds.test[0]:%Y-%m-%d}"
    )
    return [one for one in usable if one.fold < wanted], [one for one in usable if one.fold == wanted]


def _why_not(spec: TuneSpec, one: FoldSeries) -> str:
    return cpbmodels.why_not(one.series, spec.names[0], spec.preset, **spec.overrides)


def _asked(spec: TuneSpec, folds: Sequence[FoldSeries]) -> Search:
    """What the page shows of a search."""
    return Search(
        market=spec.scope.market,
        architecture=spec.names[0],
        preset=spec.preset,
        device=spec.device,
        symbols=tuple(dict.fromkeys(one.id.symbol for one in folds)),
        timeframes=tuple(dict.fromkeys(one.id.timeframe for one in folds)),
    )


def _profile(spec: TuneSpec) -> str | None:
    return None if spec.profile == "auto" else spec.profile


def _key(spec: TuneSpec, folds: Sequence[FoldSeries]) -> str:
    """What decides the trials, but not how many: more trials, another budget or batch go on with the same study."""
    asked = ("architectures", "preset", "dtype", "seed", "overrides", "search", "sampler", "pruner", "folds")
    data = [(one.id.label, one.fold, one.record.digest) for one in folds]
    return value_digest([spec.model_dump(mode="json", include=set(asked)), data, training_code()])[:16]


def _search(
    spec: TuneSpec,
    study: Any,
    inner: Sequence[FoldSeries],
    deadline: float | None,
    how: dict[str, Any],
    run_id: str,
    folder: Path,
    say: Say,
) -> list[Any]:
    """Batch after batch until there are enough trials or the time is up; return the folds as they are scored."""
    from tasks.tuning.study import BLOCKS, parameters, state_of
    from tasks.tuning.trials import prepare, sums_by_block, train_batch

    name = spec.names[0]
    scored = prepare(inner, cpbmodels.preset(spec.preset, name, **spec.overrides))
    study.stored.set_user_attr("reference", sums_by_block(scored, [one.losses for one in scored]).tolist())
    each: float | None = None  # seconds of a trial in the slowest batch so far
    while wanted := _next_batch(spec, study.trials, deadline, each):
        began = time.monotonic()
        tell("tune", study.trials, spec.trials, "trials")
        trials = study.ask(wanted)
        results = train_batch(
            parameters(trials),
            scored,
            architecture=name,
            preset=spec.preset,
            overrides=spec.overrides,
            seed=spec.seed,
            prune=_prune(study, trials),
            deadline=deadline,
            progress=ProgressFile(folder, name),
            **how,
        )
        told = [one for one in results if one is not None]
        for trial, one in zip(trials, results, strict=True):
            if one is not None:
                study.tell(trial, one.ratio, one.pruned, {BLOCKS: one.losses, "epochs": one.epochs})
        new = study.save()
        log_trials(
            run_id,
            [
                TrialRecord(
                    t.number, t.params, state_of(t), {"crps_ratio": one.ratio, "epochs_run": one.epochs},
                    sorted(t.intermediate_values.items()),
                )
                for t, one in zip(new, told, strict=True)
            ],
        )  # fmt: skip
        each = max(each or 0.0, (time.monotonic() - began) / wanted)
        best = study.best()
        say(
            f"{count(study.trials, 'trial')}, {sum(one.pruned for one in told)} of the last "
            f"{len(told)} pruned" + (f"; best ratio {best.value:.4f}" if best else "")
        )
        if len(told) < wanted:
            say(f"the budget ended before {count(wanted - len(told), 'trial')} had a whole epoch; left out")
            break
    tell("tune", 1, 1, "trials")
    return scored


def _next_batch(spec: TuneSpec, done: int, deadline: float | None, each: float | None) -> int:
    """Trials of the next batch: as many as the time that is left is enough for; the first batch is a small one."""
    wanted = min(spec.batch, spec.trials - done)
    if deadline is None:
        return wanted
    left = deadline - time.monotonic()
    return max(min(wanted, _FIRST_BATCH if each is None else int(left / each)), 0) if left > 0 else 0


def _prune(study: Any, trials: Sequence[Any]) -> Callable[[int, int, float], bool]:
    return lambda trial, epoch, loss: bool(study.should_prune(trials[trial], epoch, loss))


def _conclude(
    spec: TuneSpec,
    study: Any,
    scored: Sequence[Any],
    newest: Sequence[FoldSeries],
    how: dict[str, Any],
    folder: Path,
    say: Say,
) -> dict[str, Any]:
    """The winner against luck, on the test span, as a preset and in figures."""
    import numpy as np

    from tasks.tuning.study import BLOCKS, figures, state_of
    from tasks.tuning.winner import best_of_null_trials, score_on_test, write_preset

    best, trials = study.best(), study.finished()
    states = [state_of(one) for one in trials]
    if best is None:
        raise CpbError(
            f"none of {count(len(trials), 'trial')} was completed ({states.count('failed')} diverged, "
            f"{states.count('pruned')} pruned): give it more budget, or a smaller lr",
            code="no-trial",
        )
    made = [one for one, state in zip(trials, states, strict=True) if state != "failed"]
    losses = np.array([one.user_attrs[BLOCKS] for one in made])
    luck = best_of_null_trials(losses, np.array(study.stored.user_attrs["reference"]), best.value, spec.seed)
    known = study.stored.user_attrs.get("test")
    if known is None or known["trial"] != best.number:
        say(f"scoring trial {best.number} on the test span")
        times = 1 if known is None else known["times_scored"] + 1
        known = {"trial": best.number, "times_scored": times}
        known["pools"] = score_on_test(spec, best.params, newest, **how)
        study.stored.set_user_attr("test", known)
    timeframes = "-".join(dict.fromkeys(one.id.timeframe for one in newest))
    preset = own_presets_folder() / f"{spec.names[0]}-{timeframes}-{study.stored.study_name[:8]}.toml"
    about = f"{spec.names[0]}: best of {count(len(trials), 'trial')} of cpb tune, validation ratio {best.value:.4f}"
    write_preset(preset, spec, best.params, about)
    return {
        "trials": len(trials),
        "completed": states.count("complete"),
        "pruned": states.count("pruned"),
        "failed": states.count("failed"),
        "blocks": int(losses.shape[1]),
        "winner": {"trial": best.number, "options": best.params, "validation_crps_ratio": best.value},
        "luck": {"best_of_null": luck.best, "best_of_null_low": luck.low, "p": luck.p, "trials": luck.trials},
        "test": known["pools"],
        "test_times_scored": known["times_scored"],
        "preset": str(preset),
        "figures": [str(path) for path in figures(study, folder / "figures")],
        "report": str(folder / "report.md"),
    }


def _write_report(folder: Path, spec: TuneSpec, answer: dict[str, Any]) -> None:
    test = "\n".join(f"- {timeframe}: {one['verdict']}" for timeframe, one in answer["test"].items())
    pictures = "\n".join(f"![{Path(path).stem}](figures/{Path(path).name})" for path in answer["figures"])
    text = f"""# cpb tune: {spec.names[0]}, {count(answer["trials"], "trial")}

{_sentence(answer)}

## Winner: trial {answer["winner"]["trial"]}

```json
{json.dumps(answer["winner"]["options"], indent=2)}
```

Preset: `{answer["preset"]}`

## Test span (no trial has seen it; scored {count(answer["test_times_scored"], "time")})

{test}

## Trials

{answer["completed"]} completed, {answer["pruned"]} pruned, {answer["failed"]} diverged. The ratio of a trial is the
mean over coins and folds of its CRPS to that of the random walk with EWMA volatility. Luck: the lowest ratio among as
many trials that are no better than that walk, median over resamples of {answer["blocks"]} blocks of time (White's
reality check).

{pictures}
"""
    write_bytes(folder / "report.md", text.encode())
    write_json(folder / "report.json", answer)


def _metrics(answer: dict[str, Any]) -> dict[str, float]:
    luck = answer["luck"]
    found = {
        "trials": answer["trials"], "pruned": answer["pruned"], "failed": answer["failed"],
        "validation_crps_ratio": answer["winner"]["validation_crps_ratio"],
        "luck_best_of_null": luck["best_of_null"], "luck_p": luck["p"],
    }  # fmt: skip
    return found | {f"test_crps_ratio_{t}": one["test_crps_ratio"] for t, one in answer["test"].items()}


def _sentence(answer: dict[str, Any]) -> str:
    luck, winner = answer["luck"], answer["winner"]
    tested = ", ".join(f"{one['test_crps_ratio']:.4f} at {t}" for t, one in answer["test"].items())
    return (
        f"{count(answer['trials'], 'trial')} ({answer['pruned']} pruned): the best has ratio "
        f"{winner['validation_crps_ratio']:.4f} on the validation folds; the best of as many trials without "
        f"skill would have had {luck['best_of_null']:.4f} (p {p_value(luck['p'])}). On the test span: {tested}."
    )
