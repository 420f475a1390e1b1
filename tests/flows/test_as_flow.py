"""The decorator that makes a function of a specification a Prefect flow."""

import logging
import sys

import cloudpickle
import pytest
from prefect.states import Completed

from flows.backtest import backtest
from flows.hourly import forecast_flow
from flows.prefect import as_flow, is_unexpected
from flows.train_all import train_all
from schemas.errors import CpbError, UsageError
from schemas.scope import ScopeSpec


def test_a_wrong_parameter_ends_a_flow_as_failed_with_the_sentence_alone():
    @as_flow("scoped", ScopeSpec, lambda spec: spec.scope.title)
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
    assert (scoped.name, scoped.should_validate_parameters) == ("scoped", False)


@pytest.mark.parametrize("flow", [train_all, forecast_flow, backtest], ids=lambda flow: flow.name)
def test_a_flow_can_be_pickled_as_prefects_runners_do(flow):
    again = cloudpickle.loads(cloudpickle.dumps(flow))
    assert (again.name, again.parameters) == (flow.name, flow.parameters)


@pytest.mark.parametrize(("error", "is_logged"), [(CpbError("no candles"), False), (KeyError("x"), True)])
def test_prefect_logs_the_traceback_of_a_fault_but_not_of_an_expected_error(error, is_logged):
    try:
        raise error
    except type(error):
        record = logging.LogRecord("prefect.engine", logging.ERROR, "", 0, "ended", (), sys.exc_info())
    assert is_unexpected(record) == is_logged
    assert is_unexpected(logging.LogRecord("prefect.engine", logging.ERROR, "", 0, "ended", (), None))
