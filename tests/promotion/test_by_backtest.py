"""`cpb backtest --gate`: recipes are named before it, counted whether they pass or not, and replace the champions'."""

import pytest

from flows.backtest import run_backtest
from schemas.backtesting import BacktestSpec
from schemas.errors import UsageError
from schemas.fleets import FleetSpec
from schemas.home import home_folder
from tasks.promotion import by_backtest
from tasks.promotion.losses import registered_model
from tasks.promotion.submissions import counted_before, submissions
from tasks.promotion.switches import switches
from tasks.tracking.champions import champions
from tasks.tracking.store import open_store
from tasks.training.plan import planned_recipe
from tests.tools.promotion_tools import BTC, ETH, SECOND, aliases, decided, newest, night
from tests.tools.verifying import verify_ledger as verify

OPTIONS = {
    "coins": "BTC,ETH",
    "timeframes": "1h",
    "architectures": "linear,har",
    "preset": "smoke",
    "source": "sim",
    "since": "2024-09",
    "as_of": SECOND,
    "overrides": {"epochs": 1},
    "folds": 2,
    "baselines": "random-walk",
    "gate": True,
}


def spec(**changed):
    return BacktestSpec(**OPTIONS | changed)


@pytest.fixture
def short(monkeypatch):
    """Days instead of months."""
    monkeypatch.setattr("tasks.judging.paired.MIN_DAYS", {3600: 20, 900: 20})


def backtest(**changed):
    said = []
    return run_backtest(spec(**changed), said.append), said


def test_the_recipe_planned_is_the_recipe_trained(trainer):
    (btc, _) = champions(open_store(), market="sim")
    assert planned_recipe(spec().fleets[0], "1h") == registered_model(btc).recipe


def test_a_recipe_that_loses_stays_on_the_register_and_moves_nothing(trainer, short, monkeypatch):
    monkeypatch.setattr(
        by_backtest, "failed", lambda *_: "it is not significantly better after the correction"
    )
    answer, said = backtest()
    (submission,) = submissions(home_folder(), "sim", "1h")
    assert (submission.count, submission.folds, len(submission.recipes)) == (1, 2, 1)
    assert submission.recipes[0].startswith("har/smoke/")
    assert answer["gate"]["passed"] is None
    assert answer["gate"]["named"] == submission.digest
    assert answer["gate"]["recipes"][0]["submitted"] == 1
    assert any(f"submitted to the gate as {submission.digest}" in line for line in said)
    assert any(
        "does not replace linear/smoke/" in line and "of 1 submitted for this span" in line for line in said
    )
    assert switches(home_folder(), "sim", "1h") == []
    backtest()  # the same again is the same submission
    assert submissions(home_folder(), "sim", "1h") == [submission]
    answer, _ = backtest(architectures="linear,lstm", trials=3)
    assert answer["gate"]["recipes"][0]["submitted"] == 4  # with the one that lost
    assert list(verify(home_folder(), "sim")) == []


def test_recipes_are_named_before_anything_is_trained(trainer, short, monkeypatch):
    def killed(*_given):
        assert len(submissions(home_folder(), "sim", "1h")) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.backtest.train_fleets", killed)
    with pytest.raises(KeyboardInterrupt):
        backtest()
    path = next((home_folder() / "sim/ledger/gate").rglob("001~1.json"))
    path.write_text("{")
    other = submissions(home_folder(), "sim", "1h")
    assert other == []  # left out, and counted all the same
    with pytest.raises(KeyboardInterrupt):
        backtest(trials=2)
    (submission,) = submissions(home_folder(), "sim", "1h")
    assert (submission.count, counted_before(home_folder(), submission)) == (2, 1)


def test_a_recipe_that_passes_replaces_the_champions_at_the_next_night(trainer, short, monkeypatch):
    monkeypatch.setattr(by_backtest, "failed", lambda *_: "")
    answer, said = backtest()
    assert answer["gate"]["passed"].startswith("har/smoke/")
    assert any(line.startswith("passed the gate: backtest of har/smoke/") for line in said)
    assert aliases() == {"champion": "1"}
    (switch,) = switches(home_folder(), "sim", "1h")
    assert switch.coins_to_follow == ("BTCUSDT", "ETHUSDT")
    assert switch.fleet == FleetSpec(architecture="har", preset="smoke", overrides={"epochs": 1})
    night(SECOND, serving=True)  # it trains what serves, and what is about to
    assert (decided(BTC), decided(ETH)) == (("switched", "backtest"), ("switched", "backtest"))
    assert "of 1 submitted for this span" in newest().reason
    assert newest().backtest.named == submissions(home_folder(), "sim", "1h")[0].digest
    assert [submission.architecture for submission in champions(open_store(), market="sim")] == ["har", "har"]
    assert champions(open_store(), [BTC])[0].selected_on
    assert switches(home_folder(), "sim", "1h")[0].coins_to_follow == ()


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"timeframes": "1h,4h"}, "timeframes"),
        ({"gate": False, "trials": 2}, "trials"),
    ],
)
def test_options_that_the_gate_cannot_judge_are_refused(changed, field):
    with pytest.raises(UsageError) as error:
        spec(**changed)
    assert error.value.field == field


def test_what_cannot_be_submitted_is_refused_before_any_work(trainer, monkeypatch):
    with pytest.raises(UsageError, match="the only recipe is linear/smoke/"):
        backtest(architectures="linear")
    for series in (BTC, ETH):
        open_store().client.delete_model_version_tag(series.registered, "1", "cpb.fleet")
    with pytest.raises(
        UsageError, match=r"gate: the champion's recipe linear/smoke/.* cannot be trained again"
    ):
        backtest(architectures="har")
    with pytest.raises(UsageError, match="needs test spans of 547 days at 1h"):
        backtest()
    assert submissions(home_folder(), "sim", "1h") == []


def test_a_backtest_of_too_few_coins_is_refused_before_it_counts(trainer, short):
    with pytest.raises(
        UsageError, match=r"has 1 of the 2 coins that linear/smoke/.* --coins ETHUSDT"
    ) as error:
        backtest(coins="BTC")
    assert error.value.field == "coins"
    assert submissions(home_folder(), "sim", "1h") == []


def test_the_champions_recipe_is_trained_beside_where_the_options_train_another(trainer, short):
    """With the champions' own options: one epoch, which neither the preset has nor the backtest's options."""
    contest = by_backtest.open_contest(spec(architectures="linear", overrides={"epochs": 2}))
    (btc, _) = champions(open_store(), market="sim")
    assert (contest.incumbent, contest.name) == (registered_model(btc).recipe, by_backtest.CHAMPION)
    assert list(contest.recipes) == ["linear"]
    assert contest.incumbent_fleet == FleetSpec(
        architecture="linear", preset="smoke", overrides={"epochs": 1}
    )
    answer, _ = backtest(architectures="har", overrides={"epochs": 2})
    assert set(answer["pooled"]) == {"random-walk", "har", "champion"}
    assert len(answer["gate"]["recipes"]) == 1
