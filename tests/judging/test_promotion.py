import math

import pytest

from schemas.handover import Judgement
from schemas.identity import ModelId, SeriesId
from tasks.judging.promotion import choose


def judgement(architecture, validation, test, name="BTCUSDT-1h"):
    metrics = {"validation_crps_ratio": validation, "test_crps_ratio": test}
    model = ModelId(architecture, "default", SeriesId.parse(name), 1)
    return Judgement(model=model, run_id=f"run-{architecture}", metrics=metrics, verdict="no different from")


def test_the_choice_is_made_on_validation_not_on_test():
    (choice,) = choose([judgement("gru", 0.99, 0.90), judgement("har", 0.98, 0.99)])
    assert choice.best.model.architecture == "har"
    assert choice.best.run_id == "run-har"
    assert "0.9800" in choice.reason
    assert "gru 0.9900" in choice.reason


def test_every_series_gets_its_own_champion():
    judged = [
        judgement("gru", 0.99, 1),
        judgement("har", 0.98, 1, "ETHUSDT-15m"),
        judgement("lstm", 0.9, 1, "um-BTCUSDT-1h"),
    ]
    assert {(c.best.model.series.name, c.best.model.architecture) for c in choose(judged)} == {
        ("BTCUSDT-1h", "gru"),
        ("ETHUSDT-15m", "har"),
        ("um-BTCUSDT-1h", "lstm"),
    }


def test_ties_are_settled_by_name():
    (choice,) = choose([judgement("lstm", 0.99, 1), judgement("gru", 0.99, 1)])
    assert choice.best.model.architecture == "gru"


@pytest.mark.parametrize("ratio", [None, math.nan, math.inf])
def test_a_model_that_was_not_scored_is_no_candidate(ratio):
    unscored = judgement("classifier", 0.5, 1)
    unscored.metrics.pop("validation_crps_ratio")
    if ratio is not None:
        unscored.metrics["validation_crps_ratio"] = ratio
    (choice,) = choose([unscored, judgement("har", 1.2, 1)])
    assert choice.best.model.architecture == "har"
    assert choose([unscored]) == []
