"""A search: batch after batch of trials, then the winner (`winner.py`), trained as by `train-all`.

A search does not import MLflow: finished trials are passed to a callback, as `TrialRecord`s.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import cpbmodels
from schemas.errors import CpbError, counted, p_value
from schemas.presets import own_presets_folder
from schemas.tuning import TrialRecord, TuneSpec
from tasks.backtesting.folds import FoldSeries
from tasks.running.progress import PrintLine, report_progress
from tasks.tuning.study import BLOCKS, Study, state_of
from tasks.tuning.trials import losses_by_block, prepare, train_batch
from tasks.tuning.winner import best_of_null_trials, score_on_test, write_preset

BATCH = 64
"""Trials that are proposed and trained together."""


def sentence(answer: dict[str, Any]) -> str:
    """Return a summary: the winner compared with luck, and its ratio on the test span."""
    luck, winner = answer["luck"], answer["winner"]
    tested = ", ".join(f"{pool['test_crps_ratio']:.4f} at {t}" for t, pool in answer["test"].items())
    return (
        f"{counted(answer['trials'], 'trial')} ({answer['pruned']} pruned): the best has ratio "
        f"{winner['validation_crps_ratio']:.4f} on the validation folds; the best of as many trials without "
        f"skill would have had {luck['best_of_null']:.4f} (p {p_value(luck['p'])}). On the test span: {tested}."
    )


def run_trials(
    spec: TuneSpec,
    study: Study,
    folds: Sequence[FoldSeries],
    how: dict[str, Any],
    log: Callable[[Sequence[TrialRecord]], None],
    report: PrintLine,
) -> None:
    """Train and score batch after batch until there are enough trials or the budget, which starts here, is used up.

    Args:
        folds: the series on which trials are compared.
        how: device, dtype and profile of every training.
        log: called with the trials of each batch, once they are stored.
    """
    deadline = None if spec.budget_s is None else time.monotonic() + spec.budget_s
    name, preset, overrides = spec.fleet.architecture, spec.fleet.preset, spec.fleet.overrides
    # The reference and the truth of each fold once, for all trials.
    scored = prepare(folds, cpbmodels.preset(preset, name, **overrides))
    study.stored.set_user_attr(
        "reference", losses_by_block(scored, [result.losses for result in scored]).tolist()
    )
    while study.trials < spec.trials and (deadline is None or time.monotonic() < deadline):
        wanted = min(BATCH, spec.trials - study.trials)
        report_progress("tune", study.trials, spec.trials, "trials")
        trials = study.ask(wanted)
        results = train_batch(
            [dict(trial.params) for trial in trials],
            scored,
            architecture=name,
            preset=preset,
            overrides=overrides,
            seed=spec.seed,
            prune=partial(study.should_prune, trials),
            deadline=deadline,
            **how,
        )
        finished = [result for result in results if result is not None]
        for trial, result in zip(trials, results, strict=True):
            if result is not None:
                attributes = {BLOCKS: result.losses, "epochs": result.epochs}
                study.tell(trial, result.ratio, pruned=result.pruned, attributes=attributes)
        new = study.save()
        log(
            [
                TrialRecord(
                    t.number,
                    t.params,
                    state_of(t),
                    {"crps_ratio": result.ratio, "epochs_run": result.epochs},
                    sorted(t.intermediate_values.items()),
                )
                for t, result in zip(new, finished, strict=True)
            ]
        )
        best = study.best()
        report(
            f"{counted(study.trials, 'trial')}, {sum(result.pruned for result in finished)} of the last "
            f"{len(finished)} pruned" + (f"; best ratio {best.value:.4f}" if best else "")
        )
        if len(finished) < wanted:
            report(
                f"the budget ended before {counted(wanted - len(finished), 'trial')} had a whole epoch; left out"
            )
            break
    report_progress("tune", 1, 1, "trials")


def conclude(
    spec: TuneSpec,
    study: Study,
    newest: Sequence[FoldSeries],
    how: dict[str, Any],
    report: PrintLine,
) -> dict[str, Any]:
    """Return the winner compared with luck and on the test span, with its preset.

    Args:
        newest: the fold whose test span no trial has seen; a winner is scored there once.

    Raises:
        CpbError: no trial was completed.
    """
    best, trials = study.best(), study.finished()
    states = [state_of(trial) for trial in trials]
    if best is None or best.value is None:
        raise CpbError(
            f"none of {counted(len(trials), 'trial')} was completed ({states.count('failed')} diverged): give it more "
            "budget, fewer coins, or a smaller lr or batch_size",
            code="no-trial",
        )
    # Pruned trials count too: they were tried, and luck had its chance with them.
    made = [trial for trial, state in zip(trials, states, strict=True) if state != "failed"]
    losses = np.array([trial.user_attrs[BLOCKS] for trial in made])
    luck = best_of_null_trials(losses, np.array(study.stored.user_attrs["reference"]), best.value, spec.seed)
    tested = study.stored.user_attrs.get("test")
    # The same winner is not scored again, and another one is counted: each look at the test span costs a bit of its
    # worth, and the report says how often it was looked at.
    if tested is None or tested["trial"] != best.number:
        report(f"scoring trial {best.number} on the test span")
        times = 1 if tested is None else tested["times_scored"] + 1
        tested = {"trial": best.number, "times_scored": times}
        tested["pools"] = score_on_test(spec, best.params, newest, **how)
        study.stored.set_user_attr("test", tested)
    timeframes = "-".join(dict.fromkeys(trial.id.timeframe for trial in newest))
    preset = (
        own_presets_folder() / f"{spec.fleet.architecture}-{timeframes}-{study.stored.study_name[:8]}.toml"
    )
    about = (
        f"{spec.fleet.architecture}: best of {counted(len(trials), 'trial')} of cpb tune, validation ratio "
        f"{best.value:.4f}"
    )
    write_preset(preset, spec, best.params, about)
    return {
        "trials": len(trials),
        "completed": states.count("complete"),
        "pruned": states.count("pruned"),
        "failed": states.count("failed"),
        "blocks": int(losses.shape[1]),
        "winner": {"trial": best.number, "options": best.params, "validation_crps_ratio": best.value},
        "luck": luck,
        "test": tested["pools"],
        "test_times_scored": tested["times_scored"],
        "preset": str(preset),
    }
