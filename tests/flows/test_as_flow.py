"""The decorator that makes a function of a specification a Prefect flow."""

from prefect.states import Completed

from flows.prefect import as_flow
from schemas.errors import UsageError
from schemas.scope import ScopeSpec


def test_a_wrong_parameter_ends_a_flow_as_failed_with_the_sentence_alone():
    @as_flow("scoped", ScopeSpec, "scoped {coins}")
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
    assert (scoped.name, scoped.flow_run_name, scoped.should_validate_parameters) == (
        "scoped",
        "scoped {coins}",
        False,
    )
