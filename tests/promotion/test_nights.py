"""Nights from candles to aliases: what moves, what does not, and what is on record."""

from datetime import UTC, datetime

import pytest

from schemas.decision import BacktestEvidence
from schemas.home import home_folder
from tasks.promotion import losses
from tasks.promotion.losses import registered_model
from tasks.promotion.switches import Switch, save_switch, switches
from tasks.storage import model_folder
from tasks.storage.model_folder import read_config
from tasks.storage.recipes import recipe_of
from tasks.tracking.champions import champions
from tasks.tracking.decisions import decision_in, decisions_on
from tasks.tracking.store import open_store
from tests.tools.promotion_tools import BTC, EARLIER, ETH, SECOND, aliases, decided, newest, night, widened


def test_the_first_night_makes_provisional_champions_and_says_so(trainer):
    assert aliases() == {"champion": "1"}
    assert decided() == ("first", "first")
    assert "provisional: a model of a different preset replaces it" in newest().reason
    (btc, eth) = champions(open_store(), market="sim")
    assert btc.tags["cpb.recipe"].startswith("linear/smoke/")
    assert newest(ETH).candidate.run_id == eth.run_id


def test_a_version_describes_its_verdict_its_test_span_and_the_decision(trainer):
    champion, _ = champions(open_store(), market="sim")
    model, decision = registered_model(champion), newest()
    said = open_store().client.get_model_version(champion.name, champion.version).description
    assert said == (
        f"On its test span from {model.tested_from:%Y-%m-%d} to {model.tested_until:%Y-%m-%d}, UTC: "
        f"{champion.verdict}. sim BTCUSDT {BTC.timeframe} has its first champion, linear "
        f"({decision.decided_at:%Y-%m-%d %H:%M} UTC): {decision.reason}"
    )
    assert "CRPS ratio" in champion.verdict


def test_the_same_night_again_moves_nothing(trainer):
    summary, said = night()
    assert (summary.champions, summary.forecast_rows, summary.exit_code) == (2, 20, 0)
    assert aliases() == {"champion": "1"}
    assert decided() == ("unchanged", "same-run")
    sentence = "2 coins have the same champions as before, linear: on the test span its bands were no different from a"
    assert any(line.startswith(sentence) for line in said), said


def test_the_same_candles_under_another_command_move_nothing(trainer):
    night(seed=2)
    assert (aliases(), decided(), decided(ETH)) == ({"champion": "1"}, *[("unchanged", "same-data")] * 2)
    assert [decision.rule for decision in decisions_on(open_store(), BTC, 9)] == ["same-data", "first"]


def test_the_same_candles_refresh_a_champion_whose_table_does_not_know_what_is_first(trainer, monkeypatch):
    assert {model_folder.knows_first(one.folder) for one in champions(open_store(), market="sim")} == {True}
    of_before = {one.folder for one in champions(open_store(), market="sim")}
    monkeypatch.setattr(losses, "knows_first", lambda folder: folder not in of_before)
    night(seed=2)
    assert decided() == ("refreshed", "refresh")
    assert aliases() == {"champion": "2", "previous": "1"}
    night(seed=3)
    assert (aliases(), decided()) == ({"champion": "2", "previous": "1"}, ("unchanged", "same-data"))


def test_newer_candles_refresh_and_keep_the_one_before(trainer):
    summary, _ = night(SECOND)
    assert decided() == ("refreshed", "refresh")
    assert aliases() == {"champion": "2", "previous": "1"}
    decision = newest()
    assert decision.version_number == "2"
    assert decision.compared.n > 300
    assert decision.compared.high < 1.005
    assert (decision.incumbent.version_number, decision.candidate.version_number) == ("1", "2")
    assert (summary.champions, summary.forecast_rows) == (2, 20)
    version = open_store().client.get_model_version(BTC.registered, "2")
    assert decision_in(version.tags) == decision


def test_a_night_with_a_worse_model_moves_nothing_and_says_why(trainer):
    trainer.after = widened(1.6)
    summary, said = night(SECOND)
    assert decided() == ("kept", "worse")
    assert aliases() == {"champion": "1"}
    decision = newest()
    assert decision.compared.low > 1
    assert any("is worse than the champion" in line for line in said)
    assert (summary.champions, summary.forecast_rows, summary.exit_code) == (2, 20, 0)


def test_older_candles_move_nothing_without_a_reason(trainer):
    night(EARLIER)
    assert (aliases(), decided()) == ({"champion": "1"}, ("kept", "older"))
    night(EARLIER, force="the feed was wrong on New Year's Eve")
    assert (aliases(), decided()) == ({"champion": "2", "previous": "1"}, ("forced", "older"))
    assert "the feed was wrong" in newest().reason


def test_fewer_candles_move_nothing(trainer):
    night(SECOND, since="2024-09-20")
    assert (aliases(), decided()) == ({"champion": "1"}, ("kept", "fewer-candles"))


DEFAULT = {"preset": "default", "overrides": {"epochs": 1, "steps_per_epoch": 5}}


def test_smoke_never_replaces_another_preset_which_replaces_smoke_unless_worse(trainer):
    trainer.after = widened(1.6)
    night(SECOND, **DEFAULT)
    assert (aliases(), decided()) == ({"champion": "1"}, ("kept", "worse"))
    trainer.after = lambda job, folder: None
    night(SECOND, **DEFAULT | {"seed": 2})
    assert (aliases(), decided()) == ({"champion": "2", "previous": "1"}, ("refreshed", "provisional"))
    night(SECOND)
    assert (aliases(), decided()) == ({"champion": "2", "previous": "1"}, ("kept", "smoke"))


def test_another_horizon_is_refused(trainer):
    night(SECOND, overrides={"epochs": 1, "horizon": 5})
    assert (aliases(), decided()) == ({"champion": "1"}, ("kept", "horizon"))


@pytest.mark.parametrize("removed", ["version", "alias"])
def test_a_champion_without_its_version_or_alias_is_replaced_like_a_first_one(trainer, removed):
    client = open_store().client
    if removed == "version":
        client.delete_model_version(BTC.registered, "1")
    else:
        client.delete_registered_model_alias(BTC.registered, "champion")
    night(SECOND)
    assert decided() == ("first", "first")
    assert decided(ETH) == ("refreshed", "refresh")
    assert "champion" in aliases()


def test_a_damaged_champion_is_replaced_uncompared(trainer):
    (btc, _) = champions(open_store(), market="sim")
    (btc.folder / "model.safetensors").write_bytes(b"damaged")
    night(SECOND)
    assert decided() == ("refreshed", "damaged-incumbent")
    assert aliases()["champion"] == "2"


def test_a_store_of_an_older_release_has_no_decisions_and_its_champions_are_compared(trainer):
    store = open_store()
    for series in (BTC, ETH):
        store.client.delete_registered_model_tag(series.registered, "decision")
        for tag in ("decision", "cpb.recipe"):
            store.client.delete_model_version_tag(series.registered, "1", tag)
    night(SECOND)
    assert decided() == ("refreshed", "refresh")


def test_a_run_that_is_killed_between_two_moves_is_finished_by_the_next(trainer, monkeypatch):
    from tasks.promotion import night as module

    promote, calls = module.promote_candidate, []

    def once(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return promote(*arguments)

    monkeypatch.setattr(module, "promote_candidate", once)
    with pytest.raises(KeyboardInterrupt):
        night(SECOND)
    assert (aliases(BTC)["champion"], aliases(ETH)["champion"]) == ("2", "1")
    monkeypatch.setattr(module, "promote_candidate", promote)
    night(SECOND)
    assert (aliases(BTC)["champion"], aliases(ETH)["champion"]) == ("2", "2")
    assert (decided(BTC)[0], decided(ETH)[0]) == ("unchanged", "refreshed")


# --- Another recipe


def better_recipe(trainer, **options):
    """A second night on which `har` validates better than the champions' recipe `linear`."""
    trainer.after = lambda job, folder: (
        widened(2.0, "validation")(job, folder) if job.architecture == "linear" else None
    )
    return night(**{"as_of": SECOND, "architectures": "linear,har"} | options)


def test_a_recipe_that_validates_better_replaces_nothing_by_itself_and_the_decision_says_so(trainer):
    summary, _ = better_recipe(trainer)
    assert decided() == ("refreshed", "refresh")
    assert set(aliases()) == {"champion", "previous"}
    assert "har/smoke/" in newest().reason
    assert "validates better" in newest().reason
    assert "cpb backtest --gate" in newest().reason
    assert summary.forecast_rows == 20
    assert [c.architecture for c in champions(open_store(), market="sim")] == ["linear", "linear"]


def test_a_recipe_that_validates_worse_is_not_mentioned(trainer):
    trainer.after = lambda job, folder: (
        widened(2.0, "validation")(job, folder) if job.architecture == "har" else None
    )
    night(SECOND, architectures="linear,har")
    assert "har/smoke/" not in newest().reason


def test_a_passed_backtest_lets_every_coin_follow_at_the_next_night_and_the_decision_names_it(trainer):
    better_recipe(trainer)
    har = next(m for m in recipes_of_last_run() if m.architecture == "har")
    linear = registered_model(champions(open_store(), market="sim")[0]).recipe
    figures = BacktestEvidence(
        challenger=str(har),
        incumbent=str(linear),
        first=datetime(2024, 11, 1, tzinfo=UTC),
        last=datetime(2024, 12, 30, tzinfo=UTC),
        days=60,
        submitted=3,
        named="abc",
        ratio=0.99,
        low=0.98,
        high=0.995,
        p=0.001,
        months=2,
        better=2,
        recent_p=1.0,
    )
    save_switch(
        home_folder(),
        Switch(
            market="sim",
            timeframe="1h",
            backtest=figures,
            switched_at=figures.last,
            coins_to_follow=("BTCUSDT", "ETHUSDT"),
        ),
    )
    better_recipe(trainer, seed=2, as_of="2025-01-02T05:00")
    assert (decided(BTC), decided(ETH)) == (("switched", "backtest"), ("switched", "backtest"))
    assert newest().backtest == figures
    assert "from 2024-11-01 to 2024-12-30, 60 days, of 3 submitted" in newest().reason
    (btc, _) = champions(open_store(), market="sim")
    assert (btc.architecture, btc.selected_on) == ("har", "2024-11-01/2024-12-30")
    assert [switch.coins_to_follow for switch in switches(home_folder(), "sim", "1h")] == [()]


def recipes_of_last_run():
    """The recipes of the newest fleets in the home."""
    folders = (home_folder() / "sim/fleets").glob("*/members/*/model")
    return {recipe_of(read_config(folder)) for folder in folders}


def test_a_night_of_what_serves_trains_nothing_else(trainer):
    night(SECOND, architectures="har", serving=True, overrides={"epochs": 2})
    assert decided() == ("refreshed", "refresh")
    assert {recipe.architecture for recipe in recipes_of_last_run()} == {"linear"}
