"""A flow's parameters are its specification's fields: Prefect's form shows them, and nothing is lost on the way."""

import json

import pytest
from prefect import flow
from prefect.utilities.callables import parameter_schema

from flows.prefect import flow_parameters
from schemas.backtesting import BacktestSpec
from schemas.run import RunSpec
from tests.tools.flow_options import CASES


@pytest.mark.parametrize(("spec", "values", "cannot"), CASES)
def test_every_field_survives_the_way_through_a_flow(spec, values, cannot):
    given = spec(**values)
    defaults = {n: f.get_default(call_default_factory=True) for n, f in spec.model_fields.items()}
    same = {n for n, default in defaults.items() if getattr(given, n) == default}
    assert same == cannot | {"offline", "columns", "decimal", "rewrite"}, (
        "each field needs another value than its default, or its loss would not be seen; tail excludes offline, "
        "and the three that say how a table is read and stored are in tests/market"
    )
    assert flow_parameters(spec)(lambda spec: spec)(**given.model_dump()) == given
    assert flow_parameters(spec)(lambda spec: spec)(**json.loads(given.model_dump_json())) == given
    assert flow_parameters(spec)(lambda spec: spec)() == spec()


def test_two_calls_share_no_default():
    made = flow_parameters(RunSpec)(lambda spec: spec)
    made().overrides["epochs"] = 5
    assert made().overrides == {}


@pytest.mark.parametrize(("spec", "values", "cannot"), CASES)
def test_prefects_form_has_types_choices_ranges_and_descriptions(spec, values, cannot):
    @flow(name="described", validate_parameters=False)
    @flow_parameters(spec)
    def described(spec):
        """Do it.

        Nothing else.
        """

    form = described.parameters.properties
    assert {n: p["description"] for n, p in form.items()} == {
        n: f.description for n, f in spec.model_fields.items()
    }
    assert list(form) == sorted(form, key=lambda name: form[name]["position"]) == list(spec.model_fields)
    assert described.parameters.required == []
    assert form["market"]["enum"] == ["spot", "um", "cm", "own", "sim"]
    assert form["tail"]["type"] == "boolean"
    if spec in (RunSpec, BacktestSpec):
        assert form["profile"]["enum"] == ["auto", "cpu", "gpu-6gb", "gpu-16gb", "gpu-80gb"]
        assert (form["seed"]["type"], form["seed"]["minimum"]) == ("integer", 0)
        assert form["overrides"]["type"] == "object"
        assert form["overrides"]["default"] == {}
    assert described.description.startswith("Do it.\n\nNothing else.")
    # `prefect deploy` asks the flow, not its function
    assert parameter_schema(described) == described.parameters
