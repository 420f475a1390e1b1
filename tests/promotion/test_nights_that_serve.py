"""The night retrains what serves: `prefect.yaml` names no preset, and the versions say how they were made."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

import cpbmodels
import flows
from cpbmodels.arch.line import Walk
from schemas.backtesting import BacktestSpec
from schemas.decision import BacktestEvidence
from schemas.errors import CpbError, MemberError
from schemas.fleets import FleetSpec
from schemas.home import home_folder
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks import steps
from tasks.judging import gate
from tasks.promotion.by_backtest import CHAMPION, open_contest
from tasks.promotion.night_fleets import fleets_to_train
from tasks.promotion.switches import Switch, fleet_to_follow, save_switch
from tasks.steps import opened_engine
from tasks.tracking.calls import search
from tasks.tracking.champions import champions, training_command
from tasks.tracking.store import open_store
from tasks.training.plan import planned_recipe
from tasks.training.trainers import KERNELS
from tests.tools.promotion_tools import BTC, ETH, FIRST, SECOND, SPEC, decided, night

LONG = SeriesId("sim", "BTCUSDT", "2h")
GRU = {"epochs": 1, "max_train_rows": 100, "hidden_dim": 8, "context": 5}


@pytest.fixture(autouse=True)
def whatever_its_figures(monkeypatch):
    """Let each candidate pass: how good a model of a single epoch is, is chance."""
    monkeypatch.setattr(gate, "NOT_WORSE", 9.0)


@pytest.fixture
def free(trainer):
    """A home with candles and without champions."""
    for series in (BTC, ETH):
        open_store().client.delete_registered_model_alias(series.registered, "champion")


def nightly(as_of=SECOND, **options):
    """A night with the deployment's own parameters, which name neither a preset nor an architecture."""
    project = yaml.safe_load((Path(flows.__file__).parents[1] / "prefect.yaml").read_text())
    (deployment,) = [d for d in project["deployments"] if d["name"] == "nightly"]
    usual = {name: RunSpec.model_fields[name].get_default() for name in ("architectures", "preset", "seeds")}
    usual |= {"overrides": {}, "prune": False}
    return night(as_of, **usual | {"serving": deployment["parameters"]["serving"]} | options)


def trained():
    """The fleets of the newest flow's run: name of the architecture, label of the preset, number of members."""
    store = open_store()
    flow = next(search(store, "tags.`cpb.kind` = 'flow'", ["attributes.start_time DESC"]))
    fleets = search(store, f"tags.`mlflow.parentRunId` = '{flow.info.run_id}'")
    return {
        (
            fleet.data.tags["architecture"],
            fleet.data.tags["recipe"],
            len([*search(store, f"tags.`mlflow.parentRunId` = '{fleet.info.run_id}'")]),
        )
        for fleet in fleets
    }


def wanted(series=(BTC, ETH), **options):
    """What a night trains, by timeframe, and what it cannot."""
    spec = RunSpec(**SPEC.model_dump() | {"architectures": None, "overrides": {}, "serving": True} | options)
    fleets, failures = fleets_to_train(spec, series)
    made = {t: [(f.preset, f.architecture, f.overrides) for f in of] for t, of in fleets.items()}
    return made, [(failure.series, failure.reason) for failure in failures]


@pytest.mark.parametrize(
    "made",
    [
        {"preset": "seed-gru", "overrides": GRU},
        {"preset": "seed-gru", "overrides": GRU, "seeds": 2},
        {"preset": "seed-gru", "overrides": GRU, "dtype": "float64"},
        {
            "preset": "seed-gru",
            "overrides": {"epochs": 1, "max_train_rows": 100, "n_layers": 1},
            "profile": "gpu-6gb",
        },
        {"preset": "default", "architectures": "har-universal", "overrides": {"epochs": 1}},
        {"preset": "default", "architectures": "average-universal", "overrides": {"epochs": 1}, "seeds": 1},
        {"preset": "mine.toml", "overrides": {}},
    ],
)
def test_champions_of_any_recipe_are_refreshed_under_the_nightlys_parameters(
    free, made, tmp_path, monkeypatch
):
    """As `cpb train-all --preset seed-gru`, and then the deployment `nightly`."""
    monkeypatch.chdir(tmp_path)
    file = Path("mine.toml")
    file.write_text(
        'base = "seed-gru"\nseeds = 2\n[options]\nmax_epochs = 1\nhidden_dim = 8\nmax_train_rows = 100\n'
    )
    night(FIRST, **{"architectures": None} | made)
    file.unlink()  # the night needs no file
    before, (kind,) = champions(open_store(), market="sim"), trained()
    nightly()
    assert trained() == {kind}
    after = champions(open_store(), market="sim")
    for series, old, new in zip((BTC, ETH), before, after, strict=True):
        assert decided(series) == ("refreshed", "refresh")
        assert int(new.version) == int(old.version) + 1
        same = ("architecture", "preset", "recipe", "cpb.recipe", "cpb.fleet")
        assert {name: new.tags[name] for name in same} == {name: old.tags[name] for name in same}


def test_timeframes_and_coins_keep_the_recipes_that_serve_them(free):
    options = {"preset": "smoke", "overrides": {"epochs": 1}}
    night(FIRST, coins="BTC", **options, architectures="linear")
    night(FIRST, coins="ETH", **options | {"overrides": {"epochs": 2}}, architectures="linear")
    night(FIRST, timeframes="2h", **options, architectures="har")
    linear = [("smoke", "linear", {"epochs": number}) for number in (1, 2)]
    assert wanted((BTC, ETH, LONG), preset="smoke") == (
        {"1h": linear, "2h": [("smoke", "har", {"epochs": 1})]},
        [],
    )
    # A coin alone: what serves it, and nothing that serves others.
    assert wanted((ETH,), preset="smoke") == ({"1h": linear[1:]}, [])
    nightly(preset="smoke", timeframes="1h,2h")
    assert {(architecture, members) for architecture, _, members in trained()} == {("linear", 2), ("har", 2)}
    assert len(trained()) == 3
    assert [decided(series)[0] for series in (BTC, ETH, LONG)] == ["refreshed"] * 3


def test_a_series_that_fails_is_lacking_only_where_its_timeframe_is_trained(free, monkeypatch):
    options = {"preset": "smoke", "overrides": {"epochs": 1}}
    night(FIRST, **options, architectures="linear")
    night(FIRST, timeframes="2h", **options, architectures="har")

    def load(home, record, bounds):
        if record.series == ETH:
            raise MemberError("no candles")
        return read(home, record, bounds)

    read = steps.load_series
    monkeypatch.setattr(steps, "load_series", load)
    summary, _ = nightly(preset="smoke", timeframes="1h,2h")
    assert [failure.series for failure in summary.failures] == [ETH]
    assert {(architecture, members) for architecture, _, members in trained()} == {("linear", 2), ("har", 2)}
    failed = [*search(open_store(), "tags.`cpb.kind` = 'member' and attributes.status = 'FAILED'")]
    assert [run.data.tags["timeframe"] for run in failed] == ["1h"]


@pytest.mark.slow  # three nights, one of them of the preset default
def test_options_that_count_for_nothing_are_named(free):
    options = {"preset": "smoke", "architectures": "linear"}
    _, said = night(FIRST, **options, overrides={"epochs": 1}, serving=True)
    aside = "counts? for nothing here"
    assert not any(re.search(aside, line) for line in said)  # nothing serves yet
    _, said = nightly(**options, overrides={"epochs": 2}, seeds=2)
    (line,) = [line for line in said if re.search(aside, line)]
    assert line.endswith(": architectures, preset, overrides, seeds count for nothing here")
    _, said = nightly(SECOND)
    assert not any(re.search(aside, line) for line in said)  # the deployment names none


def test_the_preset_counts_where_nothing_serves(free):
    own = [("smoke", "har", {})]
    assert wanted(preset="smoke", architectures="har") == ({"1h": own}, [])
    night(FIRST, preset="smoke", architectures="linear", overrides={})
    serving = [("smoke", "linear", {})]
    assert wanted((BTC, LONG), preset="smoke", architectures="har") == ({"1h": serving, "2h": own}, [])
    without = wanted((BTC, LONG), preset="smoke", architectures="har", serving=False)
    assert without == ({"1h": own, "2h": own}, [])


def test_provisional_champions_are_replaced_all_the_same(trainer):
    """The preset smoke serves until a model of another preset is not worse: the night trains that, too."""
    nightly(preset="default", architectures="robust-har")
    assert {architecture for architecture, *_ in trained()} == {"linear", "robust-har"}
    (btc, eth) = champions(open_store(), market="sim")
    assert (btc.preset, eth.preset) == ("default", "default")
    assert decided() == ("refreshed", "provisional")


def test_a_recipe_that_passed_the_gate_is_trained_until_every_coin_has_followed(trainer):
    har = FleetSpec(architecture="har", preset="smoke", overrides={"epochs": 2})
    recipe = champions(open_store())[0].tags["cpb.recipe"]
    switch = switched(recipe, har)
    save_switch(home_folder(), switch)
    linear = ("smoke", "linear", {"epochs": 1})
    assert wanted(preset="smoke") == ({"1h": [linear, ("smoke", "har", {"epochs": 2})]}, [])
    assert wanted((ETH,), preset="smoke") == ({"1h": [linear]}, [])  # BTC is behind, and not in this run
    # The winner has since lost to another: that is what the coin behind will follow.
    gru = FleetSpec(architecture="gru", preset="smoke")
    save_switch(home_folder(), switched(str(planned_recipe(har, "1h")), gru, coins_to_follow=(), days=1))
    assert wanted(preset="smoke") == ({"1h": [linear, ("smoke", "gru", {})]}, [])
    save_switch(home_folder(), switch.model_copy(update={"coins_to_follow": ()}))
    assert wanted(preset="smoke") == ({"1h": [linear]}, [])


def switched(incumbent, fleet, *, coins_to_follow=("BTCUSDT",), days=0, timeframe="1h"):
    day = SPEC.scope.as_of + timedelta(days=days)
    figures = BacktestEvidence(
        challenger=str(planned_recipe(fleet, timeframe)),
        incumbent=incumbent,
        first=day,
        last=day,
        days=60,
        submitted=1,
        named="abc",
        ratio=0.99,
        low=0.98,
        high=0.995,
        p=0.001,
        months=2,
        better=2,
        recent_p=1.0,
    )
    return Switch(
        market="sim",
        timeframe=timeframe,
        switched_at=day,
        coins_to_follow=coins_to_follow,
        fleet=fleet,
        backtest=figures,
    )


@pytest.mark.parametrize(
    ("fleet", "sentence"),
    [
        (None, "its switch does not say how"),
        (
            FleetSpec(architecture="har", preset="gone"),
            "this release refuses its options (preset 'gone' is unknown",
        ),
        (
            FleetSpec(architecture="har", preset="smoke", overrides={"epochs": 7}),
            "preset smoke gives har/smoke/",
        ),
    ],
)
def test_a_recipe_that_passed_the_gate_and_cannot_be_trained_is_told(trainer, fleet, sentence):
    """Otherwise the coins behind would wait for it for ever, and nobody would know."""
    recipe = champions(open_store())[0].tags["cpb.recipe"]
    switch = switched(recipe, FleetSpec(architecture="har", preset="smoke")).model_copy(
        update={"fleet": fleet}
    )
    save_switch(home_folder(), switch)
    planned, ((series, reason),) = wanted(preset="smoke")
    assert (planned, series) == ({"1h": [("smoke", "linear", {"epochs": 1})]}, BTC)
    assert reason.startswith(
        f"the recipe {switch.recipes[0]}, which has passed the gate at 1h, cannot be trained: "
    )
    assert sentence in reason
    assert reason.endswith("; repeat `cpb backtest --gate`")


def test_a_recipe_is_trained_once_however_its_versions_came_to_be(free):
    """A recipe is the same on any machine, and with an option set to the value that it has anyway."""
    preset = cpbmodels.preset("smoke", "linear")
    same = {"mixed_precision": "off", "lr": preset.lr}
    for coin, options in (("BTC", {}), ("ETH", same)):
        night(FIRST, coins=coin, preset="smoke", architectures="linear", overrides={"epochs": 1} | options)
    assert len({champion.tags["cpb.recipe"] for champion in champions(open_store(), market="sim")}) == 1
    assert wanted(preset="smoke") == ({"1h": [("smoke", "linear", {"epochs": 1})]}, [])
    nightly(preset="smoke")
    assert {(architecture, members) for architecture, _, members in trained()} == {("linear", 2)}
    assert [decided(series)[0] for series in (BTC, ETH)] == ["refreshed"] * 2


def tagged(series, **tags):
    for name, value in tags.items():
        open_store().client.set_model_version_tag(series.registered, "1", name.replace("_", "."), value)


@pytest.mark.parametrize(
    ("tags", "sentence"),
    [
        (
            {"cpb_fleet": "{}"},
            "does not say how it was trained; `cpb train-all` with its own options records it",
        ),
        ({"cpb_fleet": "[1"}, "does not say how it was trained"),
        (
            {"cpb_fleet": '{"architecture": "linear", "preset": "gone"}'},
            "this release refuses its options (preset 'gone' is unknown",
        ),
        ({"cpb_fleet": '{"architecture": "tcn", "preset": "smoke"}'}, "(architecture 'tcn' is unknown"),
        ({"cpb_recipe": "linear/smoke/0123456789ab"}, "this release's preset smoke gives linear/smoke/"),
    ],
)
def test_a_recipe_that_cannot_be_trained_again_is_told_and_the_others_are_trained(trainer, tags, sentence):
    recipe = champions(open_store(), [ETH])[0].tags["cpb.recipe"]
    tagged(ETH, **tags)
    summary, said = nightly(preset="smoke", architectures="har")
    (failure,) = summary.failures
    assert (failure.step, failure.code, failure.series, summary.exit_code) == (
        "plan",
        "unknown-recipe",
        ETH,
        3,
    )
    assert sentence in failure.reason
    assert f"the champion's recipe {tags.get('cpb_recipe', recipe)} cannot be trained again" in failure.reason
    assert any(line.startswith("FAILED sim ETHUSDT 1h in plan: the champion's recipe") for line in said)
    assert {(architecture, members) for architecture, _, members in trained()} == {("linear", 2)}
    assert decided(BTC) == ("refreshed", "refresh")


def test_the_same_reason_is_told_once_and_a_timeframe_without_another_recipe_ends_the_run(trainer):
    for series in (BTC, ETH):
        tagged(series, cpb_fleet="")
    (told,) = wanted(preset="smoke")[1]
    assert told[0] == BTC
    assert told[1].endswith("; so it is with 1 more series")
    with pytest.raises(CpbError, match=r"^nothing is trained \(.*does not say how it was trained") as ended:
        nightly(preset="smoke", architectures="har")
    assert ended.value.code == "unknown-recipe"
    assert "check coins" not in str(ended.value)  # nothing is wrong with them


def test_a_version_that_does_not_say_how_it_was_trained_learns_it_from_its_own_options(trainer):
    """As the sentence promises, also where the champion stays: its recipe is that of the training."""
    for series in (BTC, ETH):
        open_store().client.delete_model_version_tag(series.registered, "1", "cpb.fleet")
    night(FIRST)
    assert decided()[0] == "unchanged"
    assert wanted(preset="smoke") == ({"1h": [("smoke", "linear", {"epochs": 1})]}, [])


def test_the_command_that_trains_a_champion_again_has_its_options(free):
    night(FIRST, preset="seed-gru", architectures=None, overrides=GRU, seeds=2, dtype="float64")
    (btc, _) = champions(open_store(), market="sim")
    assert training_command(btc) == (
        "cpb train-all --coins BTCUSDT --timeframes 1h --source sim --architectures gru --preset seed-gru "
        "--set epochs=1 --set max_train_rows=100 --set hidden_dim=8 --set context=5 --set dtype=float64 --seeds 2"
    )


def test_a_gpus_kernels_are_compiled_ahead_for_what_the_night_trains(trainer):
    spec = RunSpec(**SPEC.model_dump() | {"architectures": "gru", "overrides": {}, "serving": True})
    with opened_engine(spec) as engine:
        (fleet,) = json.loads(engine._env[KERNELS])["fleets"]
    assert (fleet["architecture"], fleet["overrides"]) == ("linear", {"epochs": 1})


# ---- a night across the update by which the preset default has an option of 15m alone

QUARTERS = tuple(SeriesId("sim", symbol, "15m") for symbol in ("BTCUSDT", "ETHUSDT"))
AVERAGE = {
    "timeframes": "15m",
    "since": "2024-11",
    "preset": "default",
    "architectures": "average-universal",
    "overrides": {"epochs": 1},
    "seeds": 1,
}


@pytest.fixture
def before_the_update(free, monkeypatch):
    """Champions at 15m of the preset default as it was: without an option of that timeframe."""
    with monkeypatch.context() as patch:
        patch.setattr(Walk, "spec", replace(Walk.spec, by_timeframe={}))
        night(FIRST, **AVERAGE)
    return champions(open_store(), QUARTERS)


def shares(found):
    """The `location_share` of each champion's walk, as its folder says."""
    parts = [json.loads((champion.folder / "config.json").read_text())["parts"] for champion in found]
    return [part["location_share"] for of in parts for part in of if part["architecture"] == "walk"]


@pytest.mark.slow  # a training of 15m, and three nights
def test_a_night_across_the_update_trains_the_recipe_that_serves(before_the_update):
    recipes = {champion.tags["cpb.recipe"] for champion in before_the_update}
    assert shares(before_the_update) == [0.0, 0.0]
    nightly(SECOND, timeframes="15m", since="2024-11")
    assert {(architecture, members) for architecture, _, members in trained()} == {("average-universal", 2)}
    assert [decided(series) for series in QUARTERS] == [("refreshed", "refresh")] * 2
    after = champions(open_store(), QUARTERS)
    assert {champion.tags["cpb.recipe"] for champion in after} == recipes
    assert [champion.version for champion in after] == ["2", "2"]
    assert shares(after) == [0.0, 0.0]
    fleet = FleetSpec.model_validate_json(after[0].tags["cpb.fleet"])
    assert (fleet.preset, fleet.overrides) == ("default", {"epochs": 1, "location_share": 0.0})

    # The preset's own recipe of today is another one: it replaces nothing by being trained.
    night("2025-01-03", **AVERAGE)
    assert [decided(series) for series in QUARTERS] == [("kept", "no-candidate")] * 2
    assert [champion.version for champion in champions(open_store(), QUARTERS)] == ["2", "2"]

    # By a backtest it does.
    switch = switched(
        recipes.pop(),
        FleetSpec(
            **{n: AVERAGE[n] for n in ("preset", "overrides", "seeds")}, architecture="average-universal"
        ),
        coins_to_follow=("BTCUSDT", "ETHUSDT"),
        timeframe="15m",
    )
    save_switch(home_folder(), switch)
    nightly("2025-01-04", timeframes="15m", since="2024-11")
    assert [decided(series) for series in QUARTERS] == [("switched", "backtest")] * 2
    assert shares(champions(open_store(), QUARTERS)) == [0.5, 0.5]


def test_what_serves_since_before_the_update_is_named_as_it_is_trained_again(before_the_update):
    (bitcoin, _), average = before_the_update, FleetSpec(architecture="average-universal", preset="default")
    recipe = bitcoin.tags["cpb.recipe"]
    assert training_command(bitcoin) == (
        "cpb train-all --coins BTCUSDT --timeframes 15m --source sim --architectures average-universal "
        "--preset default --set location_share=0.0 --set epochs=1 --seeds 1"
    )
    # The gate trains it beside the preset's own, and coins that were about to follow it still do.
    spec = BacktestSpec(
        coins="BTC,ETH",
        source="sim",
        since="2024-11",
        gate=True,
        timeframes="15m",
        architectures="average-universal",
        overrides={"epochs": 1},
        seeds=1,
    )
    contest = open_contest(spec)
    assert (str(contest.incumbent), contest.name) == (recipe, CHAMPION)
    assert contest.incumbent_fleet.overrides == {"epochs": 1, "location_share": 0.0}
    before = average.model_copy(update={"overrides": {"epochs": 1}, "seeds": 1})
    switch = switched("har/default/0123456789ab", before, timeframe="15m")
    won = switch.backtest.model_copy(update={"challenger": recipe})
    assert fleet_to_follow(switch.model_copy(update={"backtest": won})) == contest.incumbent_fleet
    assert fleet_to_follow(switch) == before  # of the preset as it is today
