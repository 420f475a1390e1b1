"""Studies of `cpb tune` in MLflow: one parent run, a run per trial below it, figures and the report as artifacts.

They have separate kinds, so that no board includes a trial among the trained models.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.tuning import TrialRecord
from tasks.tracking.connection import Store, search
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.records import OpenRun, metric_entries, param_entries, param_texts, tag_texts
from tasks.tracking.runs import COMPLETE, finish, start_parent
from tasks.tracking.tags import KIND, OUTCOME, PARENT, STUDY, TRIAL


def start_study(
    key: str, config: Mapping[str, Any], tags: Mapping[str, Any], store: Store | None = None
) -> OpenRun:
    """Open the parent run of a study; the same command reopens it."""
    return start_parent(key, config, {KIND: STUDY, **tags}, "tune", store)


def log_trials(parent: str, trials: Sequence[TrialRecord], store: Store | None = None) -> None:
    """Write a run for each trial without a run."""
    store = store or open_store()
    condition = f"tags.`{PARENT}` = '{parent}' and tags.`{KIND}` = '{TRIAL}'"
    known = {run.info.run_name for run in search(store, condition)} if trials else set()
    for trial in trials:
        name = f"trial-{trial.number:05d}"
        if name in known:
            continue
        tags = {KIND: TRIAL, PARENT: parent, OUTCOME: trial.state}
        run = store.client.create_run(store.experiment_id, run_name=name, tags=tag_texts(tags))
        metrics = metric_entries(trial.metrics)
        for epoch, loss in trial.losses:
            metrics += metric_entries({"val_loss": loss}, step=epoch)
        store.client.log_batch(
            run.info.run_id, metrics=metrics, params=param_entries(param_texts(trial.params))
        )
        store.client.set_terminated(run.info.run_id, "FAILED" if trial.state == "failed" else "FINISHED")


def finish_study(parent: str, metrics: Mapping[str, Any], folder: Path, store: Store | None = None) -> None:
    """End the study's run with its figures, report and preset as artifacts."""
    store = store or open_store()
    store.client.log_artifacts(parent, str(folder))
    store.client.log_batch(parent, metrics=metric_entries(metrics))
    finish(parent, COMPLETE, store=store)
