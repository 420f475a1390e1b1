"""The loop of a search: batch after batch of trials, then the winner compared with luck and on the test span.

A search does not import MLflow: finished trials are passed to a callback, as `TrialRecord`s.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cpbmodels
from schemas.errors import CpbError, count
from schemas.presets import own_presets_folder
from schemas.tuning import TrialRecord, TuneSpec
from tasks.backtesting.folds import FoldSeries
from tasks.running.progress import tell
from tasks.training.progress import ProgressFile
from tasks.tuning.study import BLOCKS, Study, figures, parameters, state_of
from tasks.tuning.trials import prepare, sums_by_block, train_batch
from tasks.tuning.winner import best_of_null_trials, score_on_test, write_preset

BATCH = 64
"""Trials that are proposed and trained together."""

_FIRST_BATCH = 16
"""Trials of a call's first batch under a budget: its time determines how many fit into the rest."""

Say = Callable[[str], None]


def run_trials(
    spec: TuneSpec,
    study: Study,
    folds: Sequence[FoldSeries],
    how: dict[str, Any],
    folder: Path,
    log: Callable[[Sequence[TrialRecord]], None],
    say: Say,
) -> None:
    """Train and score batch after batch until there are enough trials or the budget, which starts here, is used up.

    Args:
        folds: the series on which trials are compared.
        how: device, dtype and profile of every training.
        folder: of the search; the page reads a batch's progress there.
        log: called with the trials of each batch, once they are stored.
    """
    deadline = None if spec.budget_s is None else time.monotonic() + spec.budget_s
    name = spec.names[0]
    scored = prepare(folds, cpbmodels.preset(spec.preset, name, **spec.overrides))
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
            prune=_pruner(study, trials),
            deadline=deadline,
            progress=ProgressFile(folder, name),  # a new file: the previous batch had a different pace
            **how,
        )
        finished = [one for one in results if one is not None]
        for trial, one in zip(trials, results, strict=True):
            if one is not None:
                study.tell(trial, one.ratio, one.pruned, {BLOCKS: one.losses, "epochs": one.epochs})
        new = study.save()
        log(
            [
                TrialRecord(
                    t.number, t.params, state_of(t), {"crps_ratio": one.ratio, "epochs_run": one.epochs},
                    sorted(t.intermediate_values.items()),
                )
                for t, one in zip(new, finished, strict=True)
            ]
        )  # fmt: skip
        each = max(each or 0.0, (time.monotonic() - began) / wanted)
        best = study.best()
        say(
            f"{count(study.trials, 'trial')}, {sum(one.pruned for one in finished)} of the last "
            f"{len(finished)} pruned" + (f"; best ratio {best.value:.4f}" if best else "")
        )
        if len(finished) < wanted:
            say(
                f"the budget ended before {count(wanted - len(finished), 'trial')} had a whole epoch; left out"
            )
            break
    tell("tune", 1, 1, "trials")


def _next_batch(spec: TuneSpec, done: int, deadline: float | None, each: float | None) -> int:
    """Return the trials of the next batch: as many as fit into the time left; the first batch is small."""
    wanted = min(BATCH, spec.trials - done)
    if deadline is None:
        return wanted
    left = deadline - time.monotonic()
    return max(min(wanted, _FIRST_BATCH if each is None else int(left / each)), 0) if left > 0 else 0


def _pruner(study: Study, trials: Sequence[Any]) -> Callable[[int, int, float], bool]:
    return lambda trial, epoch, loss: bool(study.should_prune(trials[trial], epoch, loss))


def conclude(
    spec: TuneSpec,
    study: Study,
    newest: Sequence[FoldSeries],
    how: dict[str, Any],
    folder: Path,
    say: Say,
) -> dict[str, Any]:
    """Return the winner compared with luck and on the test span, with its preset and its pictures.

    Args:
        newest: the fold whose test span no trial has seen; a winner is scored there once.

    Raises:
        CpbError: no trial was completed.
    """
    best, trials = study.best(), study.finished()
    states = [state_of(one) for one in trials]
    if best is None or best.value is None:
        why = (
            f"none of {count(len(trials), 'trial')} was completed ({states.count('failed')} diverged, "
            f"{states.count('pruned')} pruned): give it more budget, or a smaller lr"
        )
        if not trials:
            why = "no trial had a whole epoch within the budget: give it more, or fewer coins or a smaller batch_size"
        raise CpbError(why, code="no-trial")
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
