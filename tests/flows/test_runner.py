"""A flow calls its steps directly or as Prefect tasks; either way one failing call stops no other."""

import threading

import pytest
from prefect import flow
from prefect.states import Completed

from flows.runner import Runner, flow_parameters, plain_failures
from schemas.errors import UsageError
from schemas.scope import ScopeSpec
from tasks.running.step import step


@step("halve", workers=2)
def halve(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2


def test_one_failing_call_stops_no_other():
    first, second, third = Runner().each(halve, [(2,), (3,), (4,)])
    assert (first, third) == (1, 2)
    assert str(second) == "3 is odd"
    assert Runner().one(halve, 8) == 4
    with pytest.raises(ValueError, match="5 is odd"):
        Runner().one(halve, 5)


def test_calls_run_side_by_side():
    meet = threading.Barrier(2, timeout=30)
    wait = step("wait", workers=2)(lambda: meet.wait() >= 0)
    assert Runner().each(wait, [(), ()]) == [True, True]


@pytest.mark.parametrize("unit", ["", "series"])
def test_as_many_calls_run_at_once_as_are_asked_for(unit):
    meet = threading.Barrier(2, timeout=30)
    wait = step("wait", workers=1)(lambda: meet.wait() >= 0)
    assert Runner().each(wait, [(), ()], unit, workers=2) == [True, True]


def test_a_wrong_parameter_ends_a_flow_as_failed_with_the_sentence_alone():
    @flow(name="scoped", validate_parameters=False)
    @plain_failures
    @flow_parameters(ScopeSpec)
    def scoped(spec):
        """Do nothing."""
        return Completed()

    state = scoped.fn(market="options")
    assert (state.name, state.message) == (
        "Failed",
        "market 'options' is unknown: choose spot, um, cm, own or sim",
    )
    assert isinstance(state.data, UsageError)
    assert list(scoped.parameters.properties) == list(ScopeSpec.model_fields)
