"""Which runs count as dead; the runs are Prefect's own records, the client is a stand-in."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling, Pending, Running

from flows.deploy import liveness, services
from tasks.storage.processes import ProcessId

HERE = ProcessId.current()
GONE = ProcessId(HERE.host, HERE.boot_id, 2**22 - 1, 1.0)
ELSEWHERE = ProcessId("elsewhere", "boot", 1, 1.0)


class Server:
    """Holds runs, and remembers what it was asked to do."""

    def __init__(self, *runs, beats=False):
        self.runs, self.beats = runs, beats
        self.states, self.deleted = {}, []

    def read_flow_runs(self, offset=0, limit=200, **_):
        return [run for run in self.runs if run.id not in self.deleted][offset : offset + limit]

    def read_task_runs(self, **_):
        return []

    def read_events(self, wanted, limit):
        return SimpleNamespace(events=["one"] if self.beats else [])

    def set_flow_run_state(self, run, state, force):
        self.states[run] = state.type.value

    def delete_flow_run(self, run):
        self.deleted.append(run)


def run(process=None, state=None, age=timedelta(hours=1), worker=None, pool=services.POOL):
    state = (state or Running)()
    labels = {liveness.LABEL: str(process)} if process else {}
    if worker:
        labels["prefect.worker.name"] = str(worker)
    state.timestamp = datetime.now(UTC) - age
    return FlowRun(
        id=uuid4(), flow_id=uuid4(), state=state, labels=labels, name="some-run", work_pool_name=pool
    )


def ended(server, tmp_path, since=timedelta(days=1)):
    return [one.state for one in liveness.end_dead_runs(server, since and datetime.now(UTC) - since)]


@pytest.mark.parametrize(
    ("one", "state"),
    [
        (run(HERE), None),
        (run(GONE), "CRASHED"),
        (run(GONE, age=timedelta(0)), "CRASHED"),  # at once: the same host knows
        (run(GONE, Cancelling), "CANCELLED"),
        (run(None, Pending, worker=GONE), "CRASHED"),  # the worker died before it had started the process
        (run(HERE, worker=GONE), None),  # the worker died, the run goes on alone
        (run(ProcessId(HERE.host, "an earlier boot", HERE.pid, HERE.started)), "CRASHED"),
    ],
)
def test_a_host_knows_its_own_processes(tmp_path, one, state):
    server = Server(one)
    assert len(ended(server, tmp_path)) == (state is not None)
    assert server.states.get(one.id) == state


@pytest.mark.parametrize("one", [run(ELSEWHERE), run(None), run(None, worker="ProcessWorker 0b1a")])
def test_of_other_hosts_only_a_long_silence_tells(tmp_path, one):
    assert ended(Server(one), tmp_path) == ["Crashed"]
    assert ended(Server(one, beats=True), tmp_path) == []
    assert (
        ended(Server(one), tmp_path, since=timedelta(minutes=1)) == []
    )  # nobody could have heard a heartbeat
    assert ended(Server(one), tmp_path, since=None) == []
    one.state.timestamp = datetime.now(UTC)
    assert ended(Server(one), tmp_path) == []


def test_runs_of_other_projects_are_left_alone(tmp_path):
    server = Server(run(None, pool=None), run(None, worker="ProcessWorker 0b1a", pool="theirs"))
    assert ended(server, tmp_path) == []
    assert ended(Server(run(GONE, pool=None)), tmp_path) == [
        "Crashed"
    ]  # of the command line: it has our label


def test_all_runs_are_looked_at(tmp_path):
    server = Server(*[run(HERE) for _ in range(200)], run(GONE))
    assert ended(server, tmp_path) == ["Crashed"]


def test_runs_that_were_asked_for_do_not_end_the_dropping_of_missed_ones():
    runs = [run(state=Pending) for _ in range(600)]
    for number, one in enumerate(runs):
        one.auto_scheduled = number not in (3, 250, 599)
    server = Server(*runs)
    assert liveness.drop_missed_runs(server) == 597
    assert not {runs[number].id for number in (3, 250, 599)} & set(server.deleted)
