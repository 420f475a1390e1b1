"""Which sources make stored fleets stale: those that decide a training, no other, and none forgotten."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cpbmodels
from schemas.fleets import FleetSpec
from schemas.handover import JobMember
from schemas.identity import ModelId
from schemas.run import RunSpec
from tasks.signals import feature_files
from tasks.signals.splits import split_bounds
from tasks.steps import ingest
from tasks.storage import source_code
from tasks.training import plan as planning
from tasks.training.shard import prepare

ROOT = Path(__file__).resolve().parents[2]

EXECUTED_BESIDE = {
    "cpbmodels/__init__.py": "finds names",
    "cpbmodels/device/chips.py": "which GPUs there are",
    "cpbmodels/device/monitor.py": "measures the device",
    "schemas/errors.py": "the words of failures",
    "schemas/contract.py": "refuses features that break their contract, and changes none",
    "schemas/features.py": "the contract of features",
    "schemas/fleets.py": "the suffix of universal models",
    "schemas/handover.py": "the job's and the result's fields; the job's digest covers their values",
    "schemas/identity.py": "names of series and models; the job's digest covers them",
    "tasks/market/layout.py": "reads candles",
    "tasks/market/klines.py": "reads candles",
    "tasks/running/cores.py": "counts cores for what is told",
    "tasks/storage/arrays.py": "reads and writes arrays",
    "tasks/storage/files.py": "reads and writes files",
    "tasks/storage/folders.py": "replaces a folder as a whole",
    "tasks/storage/locks.py": "replaces a folder while no other process does",
    "tasks/storage/sealed.py": "which files of a folder are finished",
    "tasks/storage/source_code.py": "digests of code",
    "tasks/storage/records.py": "reads and writes records, digests",
    "tasks/training/plan.py": "tells universal models from others",
    "tasks/training/epochs.py": "what epochs cost",
    "tasks/training/progress.py": "how far the training is",
    "tasks/training/shard.py": "where a fleet's files lie",
}
"""Modules whose functions run in a training or in making its features, and why they do not decide its result."""

TRAIN = """
import sys, json, pathlib, threading
executed = set()
def trace(frame, event, arg):
    executed.add(frame.f_code.co_filename)
import schemas.identity, tasks.training.shard_training as worker
from tasks.signals import feature_files
threading.settrace(trace)
sys.settrace(trace)
home, out, symbol, *folders = sys.argv[1:]
feature_files.write_features(pathlib.Path(home), schemas.identity.SeriesId("sim", symbol, "1h"))
for folder in folders:
    worker.train_job(pathlib.Path(folder))
sys.settrace(None)
pathlib.Path(out).write_text(json.dumps(sorted(executed)))
"""


def digested():
    """The sources that the digest covers, relative to the project."""
    paths = source_code.source_files(planning._TRAINING, planning._NOT_TRAINING)
    return {path.relative_to(source_code.ROOT).as_posix() for path in paths}


@pytest.fixture(scope="module")
def fleets(tmp_path_factory):
    """A home with candles, and a job's folder for each architecture, alone and universal."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPB_HOME", str(home))
        spec = RunSpec(
            coins="BTC",
            timeframes="1h",
            preset="smoke",
            source="sim",
            since="2024-10",
            as_of="2025-01-01",
            overrides={"epochs": 1, "max_train_rows": 400},
        )
        ingest.fn(spec.scope)
        (series,) = spec.scope.series
        record = feature_files.write_features(home, series)
        shutil.rmtree(series.folder(home, "features"))
        folders = []
        for name in (*cpbmodels.architectures(), "har-universal"):
            of_name = FleetSpec(architecture=name, preset="smoke", overrides=spec.overrides)
            if cpbmodels.architecture(name.removesuffix("-universal")).closed_form:
                of_name = FleetSpec(architecture=name, preset="smoke")
            member = JobMember(
                model=ModelId(name, "smoke", series, 1), features=record, bounds=split_bounds([record])
            )
            folders.append(prepare(spec.scope.root, planning.plan_job(spec, of_name, [member])))
    return home, series, folders


@pytest.mark.slow
def test_nothing_else_runs_in_a_training(fleets, tmp_path):
    """In a process of its own: what other tests have imported, or a cache holds, is not executed again."""
    home, series, folders = fleets
    out = tmp_path / "executed.json"
    subprocess.run(
        [sys.executable, "-c", TRAIN, str(home), str(out), series.symbol, *map(str, folders)],
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CPB_HOME": str(home)},
    )
    executed = {Path(name) for name in json.loads(out.read_text())}
    ours = {p.relative_to(ROOT) for p in executed if p.is_relative_to(ROOT) and ".venv" not in p.parts}
    assert {path.as_posix() for path in ours} - digested() == EXECUTED_BESIDE.keys()
    assert all((folder / "result.json").exists() for folder in folders)
