import json

import pytest

from benchmarks._paired import main, show


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
