"""Each rule of the gate, on plain values."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cpbmodels.arch.options import Preset
from schemas.decision import Compared
from schemas.errors import UsageError
from schemas.identity import Recipe, SeriesId
from tasks.judging import gate
from tasks.judging.gate import GateModel, gate_model
from tasks.storage.model_folder import ModelConfig, read_config
from tasks.storage.recipes import recipe_of

BTC, ETH, SOL = (SeriesId("spot", f"{coin}USDT", "1h") for coin in ("BTC", "ETH", "SOL"))
HAR, GRU, LSTM = (Recipe(name, "default", "0") for name in ("har", "gru", "lstm"))
NIGHT = datetime(2025, 6, 6, tzinfo=UTC)
FIGURES = Compared(first=NIGHT, last=NIGHT, n=2851, ratio=0.999, low=0.996, high=1.002)


def model(recipe=HAR, run_id="old", night=NIGHT, **changed):
    fields = {
        "series": BTC,
        "recipe": recipe,
        "folder": Path("m"),
        "run_id": run_id,
        "market": "spot",
        "horizon": 10,
        "candles": 9000,
        "data_digest": run_id,
        "learnt_until": night - timedelta(days=130),
        "tested_from": night - timedelta(days=120),
        "tested_until": night,
        "validation": 0.95,
        "stopped": "early_stop",
    }
    return GateModel(**fields | changed)


def tonight(recipe=HAR, **changed):
    return model(recipe, "new", NIGHT + timedelta(days=1), **{"candles": 9024} | changed)


# --- Recipe


def config(**changed):
    options = json.loads(json.dumps(Preset().as_dict()))
    return ModelConfig(
        **{"architecture": "har", "preset": "default", "scope": "per-series"} | options | changed
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"preset": "smoke"},
        {"lr": 0.5},
        {"features": ["r_close"]},
        {"context": 60},
        {"horizon": 5},
        {"seeds": [1, 2, 3]},
        {"dtype": "float64"},
        {"scope": "universal"},
        {"architecture": "gru"},
    ],
)
def test_another_architecture_preset_column_or_option_is_another_recipe(changed):
    assert recipe_of(config(**changed)) != recipe_of(config())


@pytest.mark.parametrize(
    "changed",
    [
        {"fleet_size": 160},
        {"mixed_precision": "bf16"},
        {"cuda_graph": False},
        {"workers": 3},
        {"accumulate": 4},
        {"seed": 7},
        {"seeds": [9]},
        {"data_digest": "x"},
        {"rows": 3},
        {"symbol": "ETHUSDT"},
    ],
)
def test_what_follows_from_machine_candles_or_seed_is_the_same_recipe(changed):
    assert recipe_of(config(**changed)) == recipe_of(config())


def test_an_option_that_a_folder_does_not_know_yet_is_at_its_default():
    values = config().model_dump(mode="json")
    values.pop("candle_weight")
    assert recipe_of(ModelConfig(**values)) == recipe_of(config())


def test_a_changed_preset_definition_is_another_recipe_of_the_same_name():
    before, after = recipe_of(config(epochs=12)), recipe_of(config(epochs=20))
    assert before != after
    assert (before.architecture, before.preset) == (after.architecture, after.preset)


def test_a_recipe_is_formatted_and_parsed():
    recipe = recipe_of(config(scope="universal"))
    assert recipe.architecture == "har-universal"
    assert Recipe.parse(str(recipe)) == recipe
    with pytest.raises(UsageError) as caught:
        Recipe.parse("har")
    assert caught.value.code == "recipe"


def test_a_contender_is_read_from_its_folder(tmp_path):
    values = config(
        market="um",
        rows=500,
        data_digest="d",
        weights_sha256="a1" * 32,
        report={"stopped": "max_epochs", "diverged": False},
        bounds={
            "validation": ["2025-01-01T00:00:00Z", "2025-02-01T00:00:00Z"],
            "test": ["2025-02-08T00:00:00Z", "2025-06-06T00:00:00Z"],
        },
    )
    (tmp_path / "config.json").write_text(values.model_dump_json())
    read = gate_model(BTC, tmp_path, read_config(tmp_path), run_id="r", validation=0.9)
    assert (read.market, read.candles, read.stopped, read.horizon) == ("um", 500, "max_epochs", 10)
    assert read.learnt_until == datetime(2025, 2, 1, tzinfo=UTC)
    assert read.tested_until == NIGHT
    old = gate_model(BTC, tmp_path, ModelConfig(architecture="har"))
    assert (old.learnt_until, old.tested_from, old.recipe.architecture) == (None, None, "har")


# --- Never


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"diverged": True}, "diverged"),
        ({"stopped": "nan"}, "aborted"),
        ({"stopped": "pruned"}, "aborted"),
        ({"market": "sim"}, "market"),
        ({"damage": "config.json is missing"}, "damaged"),
        ({"validation": float("nan")}, "unscored"),
        ({"validation": float("inf")}, "unscored"),
    ],
)
def test_what_can_serve_no_series(changed, rule):
    ruling = gate.ineligible(tonight(**changed))
    assert (ruling.outcome, ruling.rule) == ("kept", rule)
    assert gate.ineligible(tonight()) is None


SMOKE = Recipe("har", "smoke", "0")


@pytest.mark.parametrize(
    ("candidate", "rule"),
    [
        (tonight(tested_until=NIGHT - timedelta(days=1)), "older"),
        (tonight(candles=8999), "fewer-candles"),
        (tonight(horizon=5), "horizon"),
        (tonight(SMOKE), "smoke"),
    ],
)
def test_what_never_replaces_a_champion(candidate, rule):
    ruling = gate.refused(candidate, model())
    assert (ruling.outcome, ruling.rule) == ("kept", rule)
    assert gate.refused(tonight(), model()) is None


def test_smoke_may_refresh_smoke():
    assert gate.refused(tonight(SMOKE), model(SMOKE)) is None


def test_a_reason_lets_older_candles_back_and_nothing_else():
    older = {"tested_until": NIGHT - timedelta(days=1), "candles": 8000}
    assert gate.refused(tonight(**older, forced="the feed was wrong"), model()) is None
    assert gate.refused(tonight(candles=8000, forced="why not"), model()).rule == "fewer-candles"
    assert gate.refused(tonight(SMOKE, **older, forced="why not"), model()).rule == "smoke"
    assert gate.refused(tonight(horizon=5, **older, forced="why not"), model()).rule == "horizon"


def test_a_champion_whose_folder_does_not_say_its_span_or_horizon_is_compared_all_the_same():
    old = model(tested_from=None, tested_until=None, horizon=0, candles=0)
    assert gate.refused(tonight(), old) is None


# --- Refresh


def test_the_same_run_or_the_same_candles_again_change_nothing():
    assert gate.unchanged(tonight(), replace(model(), run_id="new")).rule == "same-run"
    assert gate.unchanged(tonight(data_digest="old"), model()).rule == "same-data"
    assert gate.unchanged(tonight(GRU, data_digest="old"), model()) is None
    anew = tonight(data_digest="old", knows_first=True)
    assert gate.unchanged(anew, model()) is None
    assert gate.unchanged(anew, model(knows_first=True)).rule == "same-data"
    assert gate.unchanged(tonight(data_digest="old"), model(knows_first=True)).rule == "same-data"
    assert gate.unchanged(tonight(), model()) is None


@pytest.mark.parametrize(
    ("high", "low", "outcome", "rule"),
    [
        (1.0049, 0.99, "refreshed", "refresh"),
        (1.005, 0.99, "kept", "worse"),
        (1.05, 1.02, "kept", "worse"),
        (0.99, 0.98, "refreshed", "refresh"),
    ],
)
def test_a_refresh_passes_unless_it_may_be_worse(high, low, outcome, rule):
    figures = FIGURES.model_copy(update={"low": low, "high": high})
    ruling = gate.refresh(tonight(), model(), figures)
    assert (ruling.outcome, ruling.rule, ruling.compared) == (outcome, rule, figures)


@pytest.mark.parametrize("rows", [None, 0, gate.MIN_ROWS - 1])
def test_too_few_common_rows_keep_the_champion(rows):
    few = FIGURES.model_copy(update={"n": rows}) if rows is not None else None
    ruling = gate.refresh(tonight(), model(), few)
    assert (ruling.outcome, ruling.rule) == ("kept", "too-few-rows")


def test_a_provisional_champion_is_refreshed_by_the_best_of_another_preset():
    fielded = {SMOKE: tonight(SMOKE), GRU: tonight(GRU), HAR: tonight(HAR)}
    assert gate.choose_successor(model(SMOKE), fielded, [SMOKE, GRU, HAR]).recipe == GRU
    assert gate.choose_successor(model(SMOKE), {SMOKE: tonight(SMOKE)}, [SMOKE]).recipe == SMOKE
    assert gate.refresh(tonight(GRU), model(SMOKE), FIGURES).rule == "provisional"
    assert (
        gate.refresh(tonight(GRU), model(SMOKE), FIGURES.model_copy(update={"high": 1.01})).outcome == "kept"
    )


def test_a_champion_is_refreshed_by_its_own_recipe_alone():
    fielded = {GRU: tonight(GRU), HAR: tonight(HAR)}
    assert gate.choose_successor(model(), fielded, [GRU, HAR]).recipe == HAR
    assert gate.choose_successor(model(), {GRU: tonight(GRU)}, [GRU]) is None


# --- First


def test_recipes_are_ranked_by_validation_with_equal_weight_per_coin():
    ranked = gate.rank({HAR: {BTC: 0.9, ETH: 1.0}, GRU: {BTC: 0.96, ETH: 0.96}, LSTM: {BTC: 0.8, ETH: 0.95}})
    assert list(ranked) == [LSTM, HAR, GRU]
    assert ranked[HAR] == pytest.approx(0.95)


def test_leaving_out_a_hard_coin_does_not_win():
    assert list(gate.rank({HAR: {BTC: 0.9, ETH: 1.1}, GRU: {BTC: 0.91}})) == [HAR, GRU]


def test_ties_are_settled_by_name():
    assert list(gate.rank({HAR: {BTC: 0.9}, GRU: {BTC: 0.9}})) == [GRU, HAR]


def test_the_first_champion_is_of_the_best_recipe_or_of_the_next_that_has_the_coin():
    both = {GRU: tonight(GRU), HAR: tonight(HAR)}
    assert gate.choose_first(both, [HAR, GRU]).recipe == HAR
    assert gate.choose_first({GRU: tonight(GRU)}, [HAR, GRU]).recipe == GRU
    assert gate.choose_first({}, [HAR, GRU]) is None


def test_a_new_coin_gets_the_recipe_that_serves_most_others():
    both = {GRU: tonight(GRU), HAR: tonight(HAR)}
    assert gate.choose_first(both, [HAR, GRU], [GRU, HAR, GRU]).recipe == GRU
    assert gate.choose_first(both, [HAR, GRU], [LSTM]).recipe == HAR
