"""A flow's parameters are its specification's fields: Prefect's form shows them, and nothing is lost on the way."""

import json

import pytest
from prefect import flow
from prefect.utilities.callables import parameter_schema

from flows.runner import flow_parameters
from schemas.run import BacktestSpec, RunSpec
from schemas.scope import IngestSpec, ScopeSpec

SCOPE = {
    "coins": "exchange",
    "timeframes": "5m,4h",
    "source": "/",
    "market": "um",
    "since": "2023-01-02",
    "as_of": "2024-01-02T03:04:05",
    "tail": True,
}
RUN = SCOPE | {
    "architectures": "gru,lstm-universal",
    "preset": "mine.toml,smoke",
    "device": "cuda:1",
    "profile": "gpu-6gb",
    "dtype": "float64",
    "kernels": False,
    "seed": 7,
    "seeds": 2,
    "overrides": {"epochs": 5, "lr": 0.01},
    "train_timeout_s": 12.5,
    "engine": "local",
    "repo": "alice/models",
    "force": "a wrong feed",
    "prune": True,
    "wandb": True,
    "serving": True,
    "preset_files": {
        "mine.toml": {"base": "smoke", "architectures": ["lstm-universal"], "options": {"hidden_dim": 8}},
    },
}
NO_BACKTEST = {"repo", "force", "prune", "wandb", "serving"}
BACKTEST = {name: value for name, value in RUN.items() if name not in NO_BACKTEST} | {
    "folds": 2,
    "baselines": "random-walk",
    "check_lookahead": True,
    "out": "out",
}
CASES = [
    (ScopeSpec, SCOPE, set()),
    (IngestSpec, SCOPE, set()),
    (RunSpec, RUN, set()),
    (BacktestSpec, BACKTEST, NO_BACKTEST | {"gate", "trials"}),
    # The gate needs a single timeframe.
    (
        BacktestSpec,
        BACKTEST | {"gate": True, "trials": 3, "timeframes": "4h"},
        NO_BACKTEST,
    ),
]


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
