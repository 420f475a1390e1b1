import json

import pytest

from benchmarks import training
from benchmarks._paired import main


def run(capsys, *words: str) -> dict:
    main("training", training.PARTS, [*words, "--json"], training.options)
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_loop_and_fleet_are_compared_in_turns(capsys):
    answer = run(capsys, "--only", "cpu", "--members", "1", "--rows", "300", "--repeats", "1")["cpu"]
    assert {"loop bf16", "fleet fp32"} < set(answer["gru, s"])
    equal = answer["lstm, loop / fleet fp32"]
    assert 0 < equal["least"] <= equal["ratio"] <= equal["most"]
