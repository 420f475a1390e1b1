"""The count of files that a training runs."""

import json

import pytest

from benchmarks import trip


@pytest.mark.slow
def test_the_trip_of_train_all(capsys):
    trip.main(["--json"])
    answer = json.loads(capsys.readouterr().out)
    weights, everything = answer["to_the_weights"], answer["in_all"]
    assert everything[: len(weights)] == weights
    assert weights[0].startswith("flows/cli")
    assert {"tasks/steps.py", "tasks/training/trainer.py", "cpbmodels/fleet/member.py"} <= set(weights)
    assert {"tasks/judging/judge.py"} <= set(everything) - set(weights)
    assert len(everything) == len(set(everything))
