import json

from benchmarks import judging
from benchmarks._paired import main


def test_members_are_judged_and_the_gate_is_simulated(capsys, monkeypatch):
    monkeypatch.setattr(judging, "GAIN", 0.01)
    main("judging", judging.PARTS, ["--members", "2", "--runs", "3", "--json"], judging.options)
    answer = json.loads(capsys.readouterr().out)
    assert answer["judge"]["forecast_rows"] == 4 * 2 * 2000 * 10
    # a gain ten times as large always passes
    assert answer["gate"]["power_5"] == answer["gate"]["power_20"] == 1
    assert 0 <= answer["gate"]["null_5"] <= answer["gate"]["null_20"] < 1
