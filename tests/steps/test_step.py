"""A step's policy is in the function that both ways of running call."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from prefect.context import FlowRunContext

from schemas.errors import BusyError, CpbError
from schemas.failure import Failure
from schemas.handover import IngestResult
from schemas.identity import SeriesId
from tasks.running.parallel import run_each
from tasks.running.step import Retry, step

BTC = SeriesId("spot", "BTCUSDT", "1h")
FAILURE = Failure.of(BTC, "ingest", "away from http://u:secret@mirror/x")


def failing(errors):
    """A step that raises these errors, one a call, and then returns how often it was called."""
    calls = []

    @step("demo", run_name="demo {name}", workers=3, retry=Retry(on=BusyError, times=2, wait_s=0))
    def demo(name: str) -> int:
        """Do it."""
        calls.append(name)
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return len(calls)

    return demo, calls


def test_a_busy_step_is_tried_again_as_often_as_its_policy_says(caplog):
    demo, calls = failing([BusyError("held"), BusyError("held")])
    assert demo("x") == 3
    assert calls == ["x"] * 3
    assert "held" in caplog.text
    demo, calls = failing([BusyError("held")] * 3)
    with pytest.raises(BusyError):
        demo("x")
    assert len(calls) == 3


def test_other_errors_are_not_tried_again():
    demo, calls = failing([CpbError("gone")])
    with pytest.raises(CpbError):
        demo("x")
    assert len(calls) == 1


def test_prefect_calls_the_same_function_with_no_policy_of_its_own():
    demo, _ = failing([])
    assert demo.task.fn.__wrapped__ is demo.fn
    assert (demo.task.retries, demo.task.name, demo.task.task_run_name) == (0, "demo", "demo {name}")
    assert (demo.workers, demo.__doc__) == (3, "Do it.")


def test_a_call_is_a_task_run_within_a_flow_run_alone_also_from_its_threads(monkeypatch):
    demo, calls = failing([])
    task_runs = []

    def task_run(task, parameters, dependencies):
        task_runs.append(parameters["name"].unquote())
        return len(task_runs)

    monkeypatch.setattr("tasks.running.task_run.run_task_sync", task_run)
    assert demo("before") == 1
    with FlowRunContext.model_construct():
        assert demo("within") == 1
        assert sorted(run_each([partial(demo, "a"), partial(demo, "b")], 2)) == [2, 3]
    assert demo("after") == 2
    assert (sorted(task_runs), calls) == (["a", "b", "within"], ["before", "after"])


NONSENSE = """
from collections.abc import Sequence
from functools import partial

from schemas.handover import FleetJudgement, SeriesRecord
from schemas.run import RunSpec
from tasks.steps import promote


def call(spec: RunSpec, judged: Sequence[FleetJudgement], stopped: Sequence[SeriesRecord]) -> None:
    promote(spec, judged, stopped)
    promote(stopped, 42, "nonsense", spec)
    partial(promote, spec)("nonsense")
"""


def test_the_arguments_of_a_step_are_checked_as_those_of_the_function_that_it_is(tmp_path):
    """Of what stands around steps only the records are read: mypy takes a second, not a minute."""
    snippet = tmp_path / "nonsense.py"
    snippet.write_text(NONSENSE)
    root = Path(__file__).parents[2]
    read = [
        root / name
        for name in ("tasks/steps.py", "tasks/running/step.py", "schemas/run.py", "schemas/handover.py")
    ]
    options = ["--strict", "--follow-imports=skip", "--config-file=", f"--cache-dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(snippet), *map(str, read)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [
        line.split(": error: ")[1] for line in done.stdout.splitlines() if line.startswith(f"{snippet}:")
    ]
    assert [error.split(" of ")[0] for error in errors[:1]] == ['Too many arguments for "__call__"']
    wrong = ["Sequence[SeriesRecord]", "int", "str", "str"]
    assert [error.split("incompatible type ")[1].split(";")[0] for error in errors[1:]] == [
        f'"{x}"' for x in wrong
    ]


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (IngestResult(series=(BTC,)), None),
        (IngestResult(series=(BTC,), failures=(FAILURE,)), "Partial"),
        (IngestResult(series=(), failures=(FAILURE, FAILURE)), "Failed"),
        (FAILURE, "Failed"),
        (3, None),
    ],
)
def test_prefects_page_shows_a_result_that_holds_failures_as_such(value, state):
    shown = step("demo")(lambda: value).task.fn()
    if state is None:
        assert shown is value
    else:
        assert (shown.name, shown.is_completed(), shown.data) == (state, True, value)
        assert shown.message.startswith("BTCUSDT 1h: away from http://mirror/x")
