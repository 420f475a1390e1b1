"""What a backtest refuses before any work, with one sentence wherever it is asked from."""

import pytest

from schemas.backtesting import BASELINES, BacktestSpec
from schemas.errors import UsageError
from tasks.backtesting import methods
from tasks.backtesting.backtest import check_backtest


def test_baselines_are_the_known_ones_each_once():
    assert tuple(methods.BASELINES) == BASELINES
    assert BacktestSpec(preset="smoke", baselines="robust-har, robust-har").baseline_names == ("robust-har",)
    assert BacktestSpec(preset="smoke", baselines="").baseline_names == ()


@pytest.mark.parametrize(
    ("wrong", "code", "field"),
    [
        ({"baselines": "magic,robust-har"}, "baselines", "baselines"),
        ({"architectures": "har,classifier-gru"}, "classifier", "architectures"),
        ({"folds": 0}, "greater-than-equal", "folds"),
    ],
)
def test_what_cannot_be_backtested_is_refused(wrong, code, field):
    with pytest.raises(UsageError) as refused:
        BacktestSpec(preset="smoke", **wrong)
    assert (refused.value.code, refused.value.field) == (code, field)


def test_a_baseline_of_the_same_name_as_an_architecture_is_not_judged_twice():
    named = methods.baselines(("random-walk", "robust-har"), ("robust-har", "har"))
    assert [baseline.name for baseline in named] == ["random-walk"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write"):
        check_backtest(BacktestSpec(preset="smoke", out=str(tmp_path / "file")))
