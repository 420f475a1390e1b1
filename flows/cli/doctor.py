"""`cpb doctor`: checks the machine, and says how long the trainings of the default scope take on it."""

import os
from typing import Annotated, Any

import typer

from flows.cli.ending import Answer, answered
from flows.console import quiet_libraries, show
from flows.progress import shown_progress
from schemas.coins import COINS
from schemas.errors import EXIT_COMPLETE, EXIT_FATAL, CpbError
from schemas.home import home_folder
from schemas.identity import SeriesId
from schemas.scope import ScopeSpec

HISTORY_DAYS = 5 * 365
"""Length of a history whose spans are as long as they get."""


@answered
def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="skip the training step of each architecture")
    ] = False,
    notify: Annotated[
        bool, typer.Option("--notify", help="only send a test message to the services of CPB_NOTIFY")
    ] = False,
) -> Answer:
    """Check and measure GPU, driver, torch build and memory; report problems and their remedies.

    Exit code 1 if there is a problem, such as a CPU-only torch on a machine with a GPU.

    Example: cpb doctor --json
    """
    if notify:
        from tasks.notices import send_test

        problems = send_test()
        said = [f"{name}: {problem or 'accepted'}" for name, problem in problems.items()]
        code = EXIT_FATAL if all(problems.values()) else EXIT_COMPLETE
        return Answer({"services": problems, "exit": code}, notes=said)
    quiet_libraries()
    from cpbmodels.doctor.examine import examine
    from cpbmodels.doctor.findings import Problem
    from cpbmodels.doctor.pace import Run
    from cpbmodels.doctor.report import lines
    from tasks.storage.wheel import second_library
    from tasks.training.local import kernel_cache
    from tasks.training.plan import MIN_MEMBERS
    from tasks.training.trainers import MALLOC

    os.environ.update(kernel_cache(home_folder()))  # where trainers look

    with shown_progress("doctor", "looking, and timing steps"):
        diagnosis = examine(steps=not quick, run=Run(default_spans(), MIN_MEMBERS, MALLOC))
        if "estimates" in diagnosis.facts:
            try:
                diagnosis.facts["epochs_used"] = _epochs_used()
            except CpbError as error:  # a store that is away says nothing of the machine
                diagnosis.notes.append(f"how early runs so far ended is not known: {error}")
    if found := second_library():
        diagnosis.problems.append(Problem(*found))
    answer = diagnosis.as_dict() | {"exit": diagnosis.exit_code}
    return Answer(answer, lambda: show("\n".join(lines(diagnosis))))


def default_spans() -> list[tuple[int, int]]:
    """Return the candles in the training and the validation span of each model that `cpb train-all` trains by default.

    They are those of a long history: the default coins at the default timeframes, from the oldest candle on.
    """
    from schemas.handover import SeriesRecord
    from tasks.signals.splits import split_bounds

    spans = []
    # Spans depend on lengths alone, so that no candle is needed to know them.
    for timeframe in ScopeSpec().intervals:
        series = SeriesId("spot", "BTCUSDT", timeframe)
        rows = HISTORY_DAYS * 86_400 // series.seconds
        record = SeriesRecord(
            series=series,
            path="",
            digest="",
            file_digest="",
            rows=rows,
            first_us=0,
            last_us=(rows - 1) * series.seconds * 1_000_000,
        )
        bounds = split_bounds([record])
        train, validation = (
            round((end - start).total_seconds()) // series.seconds
            for start, end in (bounds.train, bounds.validation)
        )
        spans += [(train, validation)] * len(COINS)
    return spans


def _epochs_used() -> dict[str, dict[str, Any]]:
    """Return what models of the estimated presets in the home's store used of their epochs."""
    import cpbmodels
    from cpbmodels.doctor.examine import ESTIMATED
    from tasks.tracking.epochs import epochs_used
    from tasks.tracking.experiment import NO_STORE
    from tasks.tracking.store import read_store

    options = {name: cpbmodels.preset(name, kind) for name, kind in ESTIMATED.items()}
    try:
        store = read_store()
    except CpbError as error:
        if error.code == NO_STORE:
            return {}
        raise
    used = epochs_used(store, {name: (own.epochs, own.patience) for name, own in options.items()})
    return {name: share._asdict() for name, share in used.items()}
