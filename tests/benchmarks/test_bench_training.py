import json

import pytest

from benchmarks import training
from benchmarks._paired import main


def run(capsys, *words: str) -> dict:
    main("training", training.PARTS, [*words, "--json"], training.options)
    return json.loads(capsys.readouterr().out)


def test_launches_are_counted_and_no_step_waits_for_the_device(capsys):
    found = run(capsys, "--only", "launches")["launches"]
    assert set(found) == {"transformer", "gru", "lstm"}
    for name, row in found.items():
        assert 100 < row["validation_part"] < 1000, name
        assert 100 < row["step"] < 1000, name
        assert row["host_syncs_in_an_epoch"] == 0, name


@pytest.mark.slow
def test_the_proxy_answers_with_one_number_per_architecture(capsys):
    found = run(capsys, "--only", "proxy")["proxy"]
    assert set(found) == {"transformer", "gru", "lstm"}
    assert all(ratio > 1 for ratio in found.values())


@pytest.mark.slow
def test_loop_and_fleet_are_compared_in_turns(capsys):
    found = run(capsys, "--only", "cpu", "--members", "1", "--rows", "300", "--repeats", "1")["cpu"]
    assert {"loop bf16", "fleet fp32"} < set(found["gru, s"])
    equal = found["lstm, loop / fleet fp32"]
    assert 0 < equal["least"] <= equal["ratio"] <= equal["most"]
