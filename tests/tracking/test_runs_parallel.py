import os
import signal
from collections import Counter
from multiprocessing import get_context

from tasks.tracking.calls import search
from tasks.tracking.runs import finish, log_members, start_fleet, start_parent
from tasks.tracking.tags import KEY
from tests.tools.mlflow_engines import close_connections, then_leave
from tests.tools.tracked_members import fleet_of, member

FORK = get_context("fork")


def records(prefix, count):
    return [member(key=f"{prefix}{i}", symbol=f"C{i}USDT") for i in range(count)]


def children_of(store, fleet_run):
    return list(search(store, f"tags.`mlflow.parentRunId` = '{fleet_run}'"))


def test_processes_that_log_the_same_fleet_at_once_make_each_run_once(store):
    close_connections(store.uri)
    meet = FORK.Barrier(3)

    def work():
        meet.wait(60)
        flow = start_parent("same flow", {})
        fleet = start_fleet(flow.run_id, "gru", "same fleet")
        log_members(fleet.run_id, records("s", 8))
        finish(fleet.run_id)

    writers = [FORK.Process(target=then_leave, args=(work,)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)

    assert [w.exitcode for w in writers] == [0, 0, 0]
    runs = list(search(store))
    assert Counter(r.data.tags[KEY] for r in runs) == dict.fromkeys(
        ["same flow", "same fleet", *(f"s{i}" for i in range(8))], 1
    )
    (fleet,) = [r.info.run_id for r in runs if r.data.tags[KEY] == "same fleet"]
    assert {r.info.status for r in children_of(store, fleet)} == {"FINISHED"}


def test_after_a_kill_the_same_call_completes_the_fleet_once(store, monkeypatch):
    fleet = fleet_of()
    wanted = records("k", 6)
    close_connections(store.uri)

    def killed():
        def die_at_the_fourth(metrics):
            calls.append(1)
            if len(calls) == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return logged(metrics)

        from tasks.tracking import runs

        calls, logged, runs.logged = [], runs.logged, die_at_the_fourth
        log_members(fleet.run_id, wanted)

    victim = FORK.Process(target=killed)
    victim.start()
    victim.join(120)
    assert victim.exitcode == -signal.SIGKILL
    assert Counter(r.info.status for r in children_of(store, fleet.run_id)) == {"FINISHED": 3, "RUNNING": 1}

    ids = log_members(fleet.run_id, wanted)

    runs = children_of(store, fleet.run_id)
    assert {r.info.run_id for r in runs} == set(ids)
    assert sorted(r.data.tags[KEY] for r in runs) == [f"k{i}" for i in range(6)]
    assert {r.info.status for r in runs} == {"FINISHED"}
