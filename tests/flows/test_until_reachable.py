"""A night that network or store alone ended is tried again; every other error ends it at once."""

from datetime import UTC, datetime

import pytest

from flows.run import Run, until_reachable
from flows.train_all import run_train_all
from schemas.decision import Decision, ModelRef
from schemas.errors import CpbError
from schemas.failure import Failure
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.tracking.store_errors import UNUSABLE

WAITS_S = (900, 1800)


@pytest.fixture
def waited(monkeypatch):
    """The pauses of a run, none of which is waited for."""
    waits = []
    monkeypatch.setattr("flows.run.pause", waits.append)
    return waits


def attempts_of(run, *errors):
    """An attempt that raises these errors, one a call, after it has opened the run; and the run's id at each call."""
    calls = []

    def attempt():
        calls.append(run.run_id)
        if not run.run_id:
            run.failures.append(Failure.of(None, "ingest", "not published"))
        run.run_id = "r"
        run.failures.append(Failure.of(None, "plan", "left out"))
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]

    return attempt, calls


@pytest.mark.parametrize("code", ["unreachable", UNUSABLE])
def test_what_passes_by_itself_is_tried_again_and_nothing_is_told_twice(waited, code):
    run = Run("train-all", print)
    attempt, calls = attempts_of(run, CpbError("away", code=code), CpbError("away", code=code))
    until_reachable(run, attempt, WAITS_S)
    assert (calls, waited) == (["", "r", "r"], [900, 1800])
    assert [failure.step for failure in run.failures] == ["ingest", "plan"]


def test_a_switch_of_the_first_attempt_is_told_though_the_second_finds_it_done(waited):
    run = Run("train-all", print)
    (switched, kept) = (
        Decision(
            series=SeriesId("spot", "BTCUSDT", "1h"),
            outcome=outcome,
            rule="r",
            version_number="2",
            reason="it is better",
            candidate=ModelRef(recipe="gru/default/3f9a12c0d4e5"),
            decided_at=datetime(2025, 6, 6, tzinfo=UTC),
        )
        for outcome in ("switched", "kept")
    )

    def attempt():
        run.decisions = [kept if waited else switched]
        if not waited:
            raise CpbError("away", code=UNUSABLE)

    until_reachable(run, attempt, WAITS_S)
    assert run.decisions == [kept]
    assert list(run.events) == ["switch BTCUSDT-1h 2"]


def test_what_ended_before_the_run_was_opened_begins_from_the_start(waited):
    run, calls = Run("train-all", print), []

    def attempt():
        calls.append(len(run.failures))
        run.failures.append(Failure.of(None, "ingest", "not published"))
        if len(calls) == 1:
            raise CpbError("away", code="unreachable")

    until_reachable(run, attempt, WAITS_S)
    assert (calls, len(run.failures)) == ([0, 0], 1)


def test_the_last_error_ends_the_night(waited):
    run = Run("train-all", print)
    attempt, calls = attempts_of(run, *[CpbError("away", code=UNUSABLE)] * 3)
    with pytest.raises(CpbError, match="away"):
        until_reachable(run, attempt, WAITS_S)
    assert len(calls) == 3


@pytest.mark.parametrize("error", [CpbError("no model", code="no-model"), KeyError("a fault")])
def test_every_other_error_ends_it_at_once(waited, error):
    run = Run("train-all", print)
    attempt, calls = attempts_of(run, error)
    with pytest.raises(type(error)):
        until_reachable(run, attempt, WAITS_S)
    assert (calls, waited) == ([""], [])


def test_a_command_that_somebody_typed_ends_at_once(waited):
    run = Run("train-all", print)
    attempt, calls = attempts_of(run, CpbError("away", code=UNUSABLE))
    with pytest.raises(CpbError):
        until_reachable(run, attempt, ())
    assert (calls, waited) == ([""], [])


def test_a_night_of_the_whole_exchange_asks_again_for_the_pairs(waited, monkeypatch):
    asked = []

    def listed(spec, _report):
        asked.append(spec.coins)
        raise CpbError("away", code="unreachable" if len(asked) == 1 else "source")

    monkeypatch.setattr("flows.train_all.with_listed_pairs", listed)
    with pytest.raises(CpbError) as error:
        run_train_all(RunSpec(coins="exchange"), print, waits_s=WAITS_S)
    assert (error.value.code, asked, waited) == ("source", ["exchange"] * 2, [900])


def test_a_night_of_the_whole_exchange_waits_no_longer_than_another(waited, monkeypatch):
    asked = []

    def listed(spec, _report):
        asked.append(spec.coins)
        if len(asked) == 1:
            raise CpbError("away", code="unreachable")
        return spec.model_copy(update={"coins": ("BTC",)})

    def away(*_):
        raise CpbError("away", code=UNUSABLE)

    monkeypatch.setattr("flows.train_all.with_listed_pairs", listed)
    monkeypatch.setattr("flows.train_all.check_records", away)
    with pytest.raises(CpbError):
        run_train_all(RunSpec(coins="exchange"), print, waits_s=WAITS_S)
    assert (len(asked), waited) == (2, list(WAITS_S))
