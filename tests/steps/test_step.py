"""A step's policy is in the function that both ways of running call."""

import pytest

from schemas.errors import BusyError, CpbError
from schemas.failure import Failure
from schemas.handover import IngestResult
from schemas.identity import SeriesId
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
