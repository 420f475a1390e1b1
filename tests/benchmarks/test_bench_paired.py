import json

import pytest

from benchmarks._paired import Paired, main, paired, show


def test_the_order_alternates_and_both_ways_run_equally_often():
    calls = []
    result = paired(lambda: calls.append("a"), lambda: calls.append("b"), repeats=3)
    assert calls == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert len(result.slow) == len(result.fast) == 3


def test_the_ratio_is_the_median_of_the_pairs_not_of_the_totals():
    pairs = Paired(slow=[10.0, 2.0, 30.0], fast=[5.0, 1.0, 1.0])
    assert pairs.ratio == 2.0
    assert pairs.as_dict()["ratio_max"] == 30.0


def test_only_selects_parts_and_json_is_one_object(capsys):
    parts = {"one": lambda args: {"x": 1.0}, "two": lambda args: {"gru": {"ratio": 2.0}}}
    main("demo", parts, ["--only", "two", "--json"])
    assert json.loads(capsys.readouterr().out) == {"two": {"gru": {"ratio": 2.0}}}
    main("demo", parts, [])
    assert "| gru | 2 |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main("demo", parts, ["--only", "three"])


def test_a_figure_that_was_not_measured_is_a_dash():
    assert "| lstm | – |" in show({"gru": {"ratio": 1.0}, "lstm": {}})
