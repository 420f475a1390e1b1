import json

import pytest

pytest.importorskip("optuna")

from benchmarks import tune
from benchmarks._paired import main


@pytest.mark.slow
def test_both_comparisons_answer_and_say_what_was_sampled(capsys):
    words = ["--trials", "3", "--coins", "2", "--batch", "2", "--sample", "1", "--repeats", "1", "--json"]
    main("tune", tune.PARTS, words, tune._options)
    found = json.loads(capsys.readouterr().out)
    row = found["fleet"]["tune / equal members"]
    assert (row["trials"], row["coins"]) == (3, 2)
    assert row["times_the_cost"] == pytest.approx(row["tune_s"] / row["equal_s"])
    row = found["alone"]["one training at a time / tune"]
    assert row["sampled"] == 1
    assert row["times_faster"] == pytest.approx(row["alone_s_extrapolated"] / row["tune_s"])
