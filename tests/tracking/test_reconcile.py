import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from test_runs import fleet_of, log_member, member

from tasks.storage.processes import ProcessId
from tasks.tracking import mlflow_store
from tasks.tracking.mlflow_store import LEASE, open_store, reconcile
from tasks.tracking.runs import finish, start_fleet, start_parent
from tasks.tracking.tags import OPENED, PARENT, PROCESS, REASON

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime.now(UTC)

TRAINING = """
import threading
import time
from tasks.tracking.runs import start_fleet, start_parent
from tasks.tracking.mlflow_store import open_store
store = open_store()
flow = start_parent("killed", {})
fleet = start_fleet(flow.run_id, "gru", "killed/gru")
member = store.client.create_run(store.experiment_id, tags={"mlflow.parentRunId": fleet.run_id, "cpb.key": "m"})
print(flow.run_id, fleet.run_id, member.info.run_id, flush=True)
time.sleep(600)
"""


def start_training(folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().split()


def status(store, run_id):
    return store.client.get_run(run_id).info.status


def test_the_runs_of_a_killed_process_are_marked_by_the_next_writer(store, tmp_path):
    process, runs = start_training(tmp_path)
    try:
        assert reconcile(store) == []  # it lives
        assert {status(store, run) for run in runs} == {"RUNNING"}
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)

    mlflow_store._opened.clear()
    mlflow_store._opened_for_writing.clear()
    open_store(create=False)
    assert {status(store, run) for run in runs} == {"RUNNING"}  # a reader marks nothing
    open_store()

    assert {status(store, run) for run in runs} == {"KILLED"}
    assert f"process {process.pid} " in store.client.get_run(runs[0]).data.tags[REASON]


def test_a_new_flow_marks_the_runs_of_dead_ones(store, tmp_path):
    process, runs = start_training(tmp_path)
    process.kill()
    process.wait(30)

    start_parent("next", {})

    assert {status(store, run) for run in runs} == {"KILLED"}


def test_a_killed_flow_is_continued_by_the_same_key(store, tmp_path):
    process, (flow_id, fleet_id, _) = start_training(tmp_path)
    process.kill()
    process.wait(30)
    reconcile(store)

    flow = start_parent("killed", {})
    fleet = start_fleet(flow.run_id, "gru", "killed/gru")

    assert (flow.run_id, fleet.run_id) == (flow_id, fleet_id)
    run = store.client.get_run(flow_id)
    assert (run.info.status, run.data.tags[PROCESS]) == ("RUNNING", str(ProcessId.current()))
    assert REASON not in run.data.tags
    assert reconcile(store) == []


def test_a_run_of_an_earlier_boot_is_dead(store):
    fleet = fleet_of()
    earlier = replace(ProcessId.current(), boot_id="another boot")
    store.client.set_tag(fleet.run_id, PROCESS, str(earlier))

    assert reconcile(store) == [fleet.run_id]


def on_other_host(store, run_id):
    store.client.set_tag(run_id, PROCESS, str(replace(ProcessId.current(), host="elsewhere")))


def test_a_run_of_another_host_lives_as_long_as_its_lease(store):
    flow = start_parent("key", {})
    fleet = start_fleet(flow.run_id, "gru", "key/gru")
    for run in (flow, fleet):
        on_other_host(store, run.run_id)

    assert reconcile(store, NOW + LEASE - timedelta(minutes=5)) == []

    later = NOW + LEASE + timedelta(minutes=5)
    store.client.set_tag(flow.run_id, OPENED, (later - timedelta(minutes=10)).isoformat())
    assert reconcile(store, later) == []  # continued by that host just now: that counts for its fleets

    assert set(reconcile(store, later + LEASE)) == {flow.run_id, fleet.run_id}
    assert "elsewhere" in store.client.get_run(fleet.run_id).data.tags[REASON]


def test_a_run_that_a_person_opened_stays_open(store):
    run = store.client.create_run(store.experiment_id, tags={"cpb.kind": "flow"})
    store.client.create_run(store.experiment_id, tags={PARENT: run.info.run_id})
    assert reconcile(store, NOW + 100 * LEASE) == []


def test_a_member_whose_fleet_has_ended_is_dead(store):
    fleet = fleet_of()
    run_id = log_member(fleet.run_id, member())
    store.client.update_run(run_id, status="RUNNING")
    finish(fleet.run_id)

    assert reconcile(store) == [run_id]


@pytest.mark.parametrize("outcome", ["complete", "partial", "failed"])
def test_ended_runs_stay_as_they_are(store, outcome):
    fleet = fleet_of()
    finish(fleet.run_id, outcome)
    before = status(store, fleet.run_id)

    assert fleet.run_id not in reconcile(store, NOW + timedelta(days=100))
    assert status(store, fleet.run_id) == before


def test_a_run_that_is_continued_is_opened_anew(store):
    flow = start_parent("key", {})
    store.client.set_tag(flow.run_id, OPENED, "2020-01-01T00:00:00+00:00")
    finish(flow.run_id, "partial")
    assert start_parent("key", {}).run_id == flow.run_id
    on_other_host(store, flow.run_id)
    assert reconcile(store, NOW + LEASE - timedelta(minutes=5)) == []
