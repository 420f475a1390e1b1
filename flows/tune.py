"""`cpb tune`: candles -> features -> folds -> batches of trials -> a single test of the winner -> its preset."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import cpbmodels
from flows.phases import ingest_scope, write_columns
from flows.run import Run, flow_run, marked
from schemas.errors import CpbError, counted, install_extra
from schemas.tuning import Range, TuneSpec
from tasks.backtesting.folds import FoldSeries, load_folds, plan_bounds
from tasks.market.listing import with_listed_pairs
from tasks.running.progress import PrintLine
from tasks.storage.files import write_json
from tasks.storage.locks import locked
from tasks.storage.records import value_digest
from tasks.tracking.runs import check_place, log_trials, start_parent
from tasks.tracking.store import open_store
from tasks.tracking.tags import AS_OF, KIND, NEWEST, STUDY, spec_params
from tasks.training.gpu_locks import gpu_held
from tasks.training.gpus import check_device, gpus_of
from tasks.training.plan import training_code


def run_tune(spec: TuneSpec, report: PrintLine) -> dict[str, Any]:
    """Search, choose and score; return the object that `--json` prints. The same command continues its study.

    Raises:
        CpbError: Optuna is not installed, no series can be used, or no trial was completed.
    """
    started = time.monotonic()
    tuning = _tuning()
    check_device(spec.device)
    check_place(open_store())
    spec = with_listed_pairs(spec, report)
    with flow_run("tune", report) as run:
        inner, newest = _folds(run, spec)
        key = _key(spec, inner + newest)
        folder, storage = spec.scope.root / "tuning" / key, spec.scope.root / "tuning" / "optuna.db"
        folder.mkdir(parents=True, exist_ok=True)
        # Two searches of one study would draw the same trials and overwrite each other's report; and whoever waits for
        # the lock finds a run that has ended, however it did.
        with locked(folder / "lock"), marked(run):
            study = tuning.Study(storage, key, spec)
            run.run_id = _start_study(spec, key)
            log = partial(log_trials, run.run_id)
            profile = None if spec.profile == "auto" else spec.profile
            how = {"device": spec.device, "dtype": spec.dtype, "profile": profile}
            # Trials train in this process, so it holds the GPU as a trainer would.
            with gpu_held(gpus_of(spec.device)):
                tuning.run_trials(spec, study, inner, how, log, report)
                answer: dict[str, Any] = tuning.conclude(spec, study, newest, how, report)
            path = folder / "report.json"
            answer |= {
                "study": key,
                "report": str(path),
                "storage": str(storage),
                "run_id": run.run_id,
                "seconds": time.monotonic() - started,
                "failures": [failure.as_json() for failure in run.failures],
                "exit": run.exit_code,
            }
            write_json(path, answer)
            open_store().client.log_artifact(run.run_id, str(path))
            run.end()
    report(tuning.sentence(answer))
    return answer


def _start_study(spec: TuneSpec, key: str) -> str:
    """Open the study's run in MLflow, and return its id."""
    space = {
        name: [values.low, values.high, "log" if values.log else "linear"]
        if isinstance(values, Range)
        else list(values.values)
        for name, values in spec.ranges.items()
    }
    tags = {
        KIND: STUDY,
        "architecture": spec.fleet.architecture,
        "preset": spec.fleet.preset,
        "market": spec.market,
        AS_OF: spec.as_of or NEWEST,
    }
    return start_parent(f"tune-{key}", spec_params(spec) | {"space": space}, tags, "tune").run_id


def _tuning() -> Any:
    """Return the module that imports Optuna, an extra that no other command needs."""
    try:
        from tasks.tuning import search
    except ImportError as error:
        if error.name and error.name.split(".")[0] != "optuna":
            raise
        raise CpbError(
            f"tune: the package optuna is not installed; run {install_extra('tune')}",
            code="extra-missing",
            field="tune",
        ) from error
    return search


def _folds(run: Run, spec: TuneSpec) -> tuple[list[FoldSeries], list[FoldSeries]]:
    """Return the folds for choosing, and the newest fold, for the winner's test. A series must have all folds."""
    records = write_columns(run, spec, ingest_scope(run, spec))
    wanted = spec.folds + 1
    folds = load_folds(spec.scope.home, records, plan_bounds(records, wanted)) if records else None
    if folds is not None:
        run.note(folds)
        run.tell(folds.incomplete)
    loaded = folds.loaded if folds is not None else ()
    ids = [fold.id for fold in loaded]
    # A series that lacks a fold would weigh less in the choice than in the test.
    whole = [fold for fold in loaded if ids.count(fold.id) == wanted]
    usable = [fold for fold in whole if not _ineligible_reason(spec, fold)]
    if not usable:
        reasons = run.reasons or next(
            (_ineligible_reason(spec, fold) for fold in whole), "no series has all folds"
        )
        raise CpbError(
            f"nothing to tune on ({reasons}); check coins, since, as_of and folds", code="no-series"
        )
    run.report(
        f"{counted(len({fold.id for fold in usable}), 'series')}, {counted(spec.folds, 'fold')} to choose on, "
        f"test span from {usable[-1].bounds.test[0]:%Y-%m-%d}"
    )
    return [fold for fold in usable if fold.fold < wanted], [fold for fold in usable if fold.fold == wanted]


def _ineligible_reason(spec: TuneSpec, fold: FoldSeries) -> str:
    fleet = spec.fleet
    return cpbmodels.ineligible_reason(fold.series, fleet.architecture, fleet.preset, **fleet.overrides)


def _key(spec: TuneSpec, folds: Sequence[FoldSeries]) -> str:
    """Return a digest of the inputs of a trial; more trials or a different budget continue the same study."""
    # Neither trials nor budget: asking for more continues the study.
    decisive = ("seed", "search", "folds")
    data = [(fold.id.label, fold.fold, fold.record.digest) for fold in folds]
    options = spec.model_dump(mode="json", include=set(decisive))
    return value_digest([options, spec.fleet.model_dump(mode="json"), data, training_code()])[:16]
