import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tasks.storage.process_ids import ProcessId
from tasks.tracking.dead_runs import MAX_SILENT_DAYS, reconcile
from tasks.tracking.home_store import sqlite_path
from tasks.tracking.runs import finish, start_fleet, start_parent
from tasks.tracking.tags import OPENED_AT, PARENT, PROCESS, REASON
from tests.tools import fork_server
from tests.tools.tracked_members import fleet_of, log_member, member

TRAINING = """
import os
import threading
import time
from tasks.tracking.runs import start_fleet, start_parent
from tasks.tracking.store import open_store
store = open_store()
flow = start_parent("killed", {})
fleet = start_fleet(flow.run_id, "gru", "killed/gru")
member = store.client.create_run(store.experiment_id, tags={"mlflow.parentRunId": fleet.run_id, "cpb.key": "m"})
print(os.getpid(), flow.run_id, fleet.run_id, member.info.run_id, flush=True)
time.sleep(600)
"""


@pytest.fixture
def training(forking, tmp_path):
    """A process that trains: a function that kills it, its number, and its runs."""
    process = subprocess.Popen(
        [forking / fork_server.CODE, TRAINING], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    number, *runs = process.stdout.readline().split()

    def kill():
        if process.poll() is None:
            os.kill(int(number), signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL  # that of the client follows its child's

    yield kill, number, runs
    kill()


def status(store, run_id):
    return store.client.get_run(run_id).info.status


def test_the_runs_of_a_killed_process_are_marked_by_the_next_writer(store, training):
    kill, number, runs = training
    assert reconcile(store) == []  # it lives
    assert {status(store, run) for run in runs} == {"RUNNING"}
    kill()

    start_parent("next", {})

    assert {status(store, run) for run in runs} == {"KILLED"}
    assert f"process {number} " in store.client.get_run(runs[0]).data.tags[REASON]


def test_a_killed_flow_is_continued_by_the_same_key(store, training):
    kill, _, (flow_id, fleet_id, _) = training
    kill()
    reconcile(store)

    flow = start_parent("killed", {})
    fleet = start_fleet(flow.run_id, "gru", "killed/gru")

    assert (flow.run_id, fleet.run_id) == (flow_id, fleet_id)
    run = store.client.get_run(flow_id)
    assert (run.info.status, run.data.tags[PROCESS]) == ("RUNNING", str(ProcessId.current()))
    assert REASON not in run.data.tags
    assert reconcile(store) == []


def test_runs_of_another_host_and_of_a_person_stay_open(store):
    fleet = fleet_of()
    store.client.set_tag(fleet.run_id, PROCESS, str(replace(ProcessId.current(), host="elsewhere")))
    run = store.client.create_run(store.experiment_id, tags={"cpb.kind": "flow"})
    store.client.create_run(store.experiment_id, tags={PARENT: run.info.run_id})
    assert reconcile(store) == []


def elsewhere(store, run_id, opened_days, started_days):
    """Make a run one of another machine, opened and begun these days ago."""
    now = datetime.now(UTC)
    store.client.set_tag(run_id, PROCESS, str(replace(ProcessId.current(), host="elsewhere")))
    store.client.set_tag(run_id, OPENED_AT, (now - timedelta(days=opened_days)).isoformat(timespec="seconds"))
    began = int((now - timedelta(days=started_days)).timestamp() * 1000)
    with closing(sqlite3.connect(sqlite_path(store.uri))) as database, database:
        database.execute("UPDATE runs SET start_time = ? WHERE run_uuid = ?", (began, run_id))


@pytest.mark.parametrize(
    ("opened", "began", "fleet_began", "dies"),
    [(8, 9, 8, True), (6, 9, 9, False), (8, 6, 9, False), (8, 9, 6, False)],
    ids=["silent", "continued lately", "begun lately", "a fleet begun lately"],
)
def test_a_run_of_another_host_is_dead_after_days_of_silence(store, opened, began, fleet_began, dies):
    flow = start_parent("theirs", {})
    fleet = start_fleet(flow.run_id, "gru", "theirs/gru")
    elsewhere(store, flow.run_id, opened, began)
    elsewhere(store, fleet.run_id, 30, fleet_began)
    dead = reconcile(store)
    assert (flow.run_id in dead) == dies
    assert status(store, flow.run_id) == ("KILLED" if dies else "RUNNING")
    if dies:
        reason = store.client.get_run(flow.run_id).data.tags[REASON]
        assert reason.endswith(f"on elsewhere has given no sign of life for {MAX_SILENT_DAYS} days")


def test_a_run_that_is_continued_counts_from_then(store):
    flow = start_parent("ours", {})
    elsewhere(store, flow.run_id, 30, 30)
    assert reconcile(store) == [flow.run_id]
    assert start_parent("ours", {}).run_id == flow.run_id
    store.client.set_tag(flow.run_id, PROCESS, str(replace(ProcessId.current(), host="elsewhere")))
    assert reconcile(store) == []


def test_a_member_whose_fleet_has_ended_is_dead(store):
    fleet = fleet_of()
    run_id = log_member(fleet.run_id, member())
    store.client.update_run(run_id, status="RUNNING")
    finish(fleet.run_id)

    assert reconcile(store) == [run_id]
