"""`cpb champions` and `cpb promote` as people call them."""

import json

import pytest

from schemas.home import home_folder
from schemas.identity import SeriesId
from tasks.hub.card import model_card
from tasks.promotion import by_hand
from tasks.storage.urls import local_path
from tasks.storage.wheel import Wheel
from tasks.tracking.champions import champions
from tasks.tracking.decisions import decisions_on
from tasks.tracking.registry import register
from tasks.tracking.registry_copy import read_registry
from tasks.tracking.store import open_store
from tests.tools.promotion_tools import BTC, ETH, SECOND, aliases, decided, newest, night
from webapp import all_series, runs, store_cache

WHEEL = Wheel("cpbmodels-0-py3-none-any.whl", b"")


@pytest.fixture
def cpb(trainer, cpb_here):
    """Run a command on the home after one night; give its exit code and the last line of stdout."""

    def run(*words):
        code, out, _ = cpb_here(*words)
        return code, json.loads(out.splitlines()[-1]) if "--json" in words else out

    return run


def test_champions_are_listed_for_programs(cpb):
    code, answer = cpb("champions", "--json")
    assert (code, answer["exit"]) == (0, 0)
    assert [set(row) for row in answer["champions"]] == [
        {
            "market",
            "symbol",
            "timeframe",
            "version",
            "architecture",
            "preset",
            "verdict",
            "damage",
            "decision",
            "simulated",
            "crps_ratio",
            "crps_ratio_low",
            "crps_ratio_high",
        }
    ] * 2
    btc = answer["champions"][0]
    assert (btc["market"], btc["symbol"], btc["timeframe"], btc["version"]) == ("sim", "BTCUSDT", "1h", "1")
    assert (btc["architecture"], btc["preset"]) == ("linear", "smoke")
    assert (btc["decision"]["outcome"], btc["decision"]["rule"]) == ("first", "first")
    assert cpb("champions", "--coins", "ETH", "--json")[1]["champions"][0]["symbol"] == "ETHUSDT"
    assert cpb("champions", "--market", "um", "--json")[1]["code"] == "no-champion"


def test_a_misspelt_coin_is_named_with_the_champions_that_there_are(cpb):
    code, told = cpb("champions", "--coins", "BTX", "--json")
    assert (code, told["code"]) == (2, "coins")
    assert "has nothing of BTX (did you mean BTC?), only of BTC, ETH; check the name" in told["error"]


def test_simulated_champions_are_listed_where_asked_for_or_where_no_others_are(cpb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    registry = read_registry(open_store)
    simulated = registry.champions[0]
    series = SeriesId("spot", simulated.series.symbol, simulated.series.timeframe)
    real = simulated.model_copy(update={"series": series})
    both = registry.model_copy(update={"champions": (*registry.champions, real)})
    monkeypatch.setattr(by_hand, "read_registry", lambda opened: both)
    assert [row["market"] for row in cpb("champions", "--json")[1]["champions"]] == ["spot"]
    shown = cpb("champions", "--market", "sim", "--json")[1]["champions"]
    assert [(row["market"], row["simulated"]) for row in shown] == [("sim", True)] * 2
    assert "simulated market" in cpb("champions", "--market", "sim")[1]
    real_table = cpb("champions")[1]
    assert "simulated" not in real_table
    row = cpb("champions", "--json")[1]["champions"][0]
    low, ratio, high = (row[name] for name in ("crps_ratio_low", "crps_ratio", "crps_ratio_high"))
    assert 0 < low < ratio < high
    assert f"{ratio:.4f} [{low:.4f}, {high:.4f}]" in " ".join(real_table.split())


def test_champions_are_explained_to_people(cpb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    night(SECOND)
    _, told = cpb("champions", "--why", "--coins", "BTC")
    assert "sim BTCUSDT 1h: version 2, linear of preset smoke" in told
    assert "refreshed (refresh): linear/smoke/" in told
    assert "CRPS ratio" in told
    _, table = cpb("champions")
    assert "newer model" in table
    store = open_store()
    store.client.delete_registered_model_tag(BTC.registered, "decision")
    store.client.delete_model_version_tag(BTC.registered, "2", "decision")
    assert "it was made champion in MLflow" in cpb("champions", "--why", "--coins", "BTC")[1]


SIM = ("--market", "sim", "--json")


def test_a_version_is_promoted_by_hand_and_taken_back(cpb):
    night(SECOND)
    code, answer = cpb("promote", "BTC", "1h", "--version", "1", "--force", "version 2 is too wide", *SIM)
    assert (code, answer["decision"]["outcome"], answer["decision"]["version_number"]) == (0, "forced", "1")
    assert aliases() == {"champion": "1", "previous": "2"}
    assert newest().reason == "version 2 is too wide"
    assert champions(open_store(), [BTC])[0].tags["reason"] == "version 2 is too wide"
    client = open_store().client
    said = client.get_model_version(BTC.registered, "1").description
    assert said.startswith("On its test span from ")
    assert said.endswith("version 2 is too wide")
    assert "has a champion that a person forced" in said
    client.update_model_version(BTC.registered, "2", "my own words")
    assert cpb("promote", "BTC", "1h", "--version", "previous", "--force", "it was not", *SIM)[0] == 0
    assert client.get_model_version(BTC.registered, "2").description == "my own words"
    assert aliases() == {"champion": "2", "previous": "1"}
    cpb("promote", "BTC", "1h", "--version", "2", "--force", "again", *SIM)
    assert decided() == ("unchanged", "by-hand")
    assert aliases() == {"champion": "2", "previous": "1"}


@pytest.mark.parametrize(
    ("words", "code", "field"),
    [
        (["BTC", "1h", "--version", "7", "--force", "x"], "no-version", "version"),
        (["BTC", "1h", "--version", "one", "--force", "x"], "no-version", "version"),
        (["BTC", "1h", "--version", "previous", "--force", "x"], "no-version", "version"),
        (["BTC", "1h", "--force", "x"], "usage", "version"),
        (["BTC", "1h", "--version", "1"], "usage", "force"),
        (["BTC", "1h", "--version", "1", "--force", " "], "reason", "force"),
        (["SOL", "1h", "--version", "1", "--force", "x"], "unknown-series", "coin"),
        (["BTC", "15m", "--version", "1", "--force", "x"], "unknown-series", "coin"),
        (["BTC,ETH", "1h", "--version", "1", "--force", "x"], "one-series", "coin"),
        (["BTC", "1x", "--version", "1", "--force", "x"], "timeframes", "timeframes"),
    ],
)
def test_what_cannot_be_promoted(cpb, words, code, field):
    exit_code, answer = cpb("promote", *words, *SIM)
    assert exit_code == 2
    assert (answer["code"], answer["field"]) == (code, field)
    assert aliases() == {"champion": "1"}


def test_an_alias_that_is_moved_in_mlflow_is_a_decision_by_hand_and_named_as_such(cpb):
    night(SECOND)
    open_store().client.set_registered_model_alias(BTC.registered, "champion", "1")
    answer = cpb("champions", "--coins", "BTC", "--json")[1]["champions"][0]
    assert (answer["version"], answer["decision"]["version_number"]) == ("1", "1")
    assert (answer["decision"]["outcome"], answer["decision"]["rule"]) == ("forced", "by-hand")
    assert "moved by hand" in answer["decision"]["reason"]
    assert (
        "forced (by-hand): it was made champion in MLflow" in cpb("champions", "--why", "--coins", "BTC")[1]
    )
    assert decided(ETH) == ("refreshed", "refresh")
    assert [d.rule for d in decisions_on(open_store(), BTC, 9)] == ["by-hand", "refresh", "first"]


def test_a_kill_between_alias_and_record_is_no_decision_by_hand(cpb, monkeypatch):
    def killed(*_given):
        raise KeyboardInterrupt

    monkeypatch.setattr("tasks.promotion.moves.keep_decision", killed)
    with pytest.raises(KeyboardInterrupt):
        night(SECOND)
    assert (aliases(), decided()) == ({"champion": "2", "previous": "1"}, ("refreshed", "refresh"))


def test_a_damaged_version_is_not_promoted(cpb):
    night(SECOND)
    before = aliases()
    store = open_store()
    folder = local_path(store.client.get_model_version(BTC.registered, "1").source)
    (folder / "config.json").write_text("{}")
    exit_code, answer = cpb("promote", "BTC", "1h", "--version", "1", "--force", "x", *SIM)
    assert (exit_code, answer["code"]) == (1, "damaged")
    assert aliases() == before


def test_a_registered_version_without_an_alias_can_be_promoted(cpb):
    store = open_store()
    (btc, eth) = champions(store, market="sim")
    register(store, BTC, eth.run_id)  # anything that is registered
    assert cpb("promote", "BTC", "1h", "--version", "2", "--force", "try it", *SIM)[0] == 0
    assert aliases() == {"champion": "2", "previous": btc.version}


def test_page_and_card_say_why(cpb):
    store_cache._results.clear()
    (btc, _) = runs.leaderboard("sim").champions
    assert (btc.preset, btc.decision.outcome, btc.selected_on) == ("smoke", "first", None)
    store = open_store()
    assert ", selected on this span |" not in model_card(
        champions(store, market="sim"), "alice/cpb-models", WHEEL
    )
    store.client.set_model_version_tag(BTC.registered, "1", "cpb.selected_on", "2024-12-20/2024-12-31")
    store_cache._results.clear()
    assert runs.leaderboard("sim").champions[0].selected_on == "2024-12-20/2024-12-31"
    shown = {row.symbol: row.selected_on for row in all_series.overview(home_folder(), "sim").rows}
    assert shown == {"BTCUSDT": "2024-12-20/2024-12-31", "ETHUSDT": None}
    assert ", selected on this span |" in model_card(
        champions(open_store(), market="sim"), "alice/cpb-models", WHEEL
    )
