"""Presets of one's own: files with the same checks and the same sentences as options on the command line."""

import json
from pathlib import Path

import pytest

import cpbmodels
from schemas.backtesting import BacktestSpec
from schemas.errors import UsageError
from schemas.presets import PRESET_ARCHITECTURES, with_preset_files
from schemas.run import RunSpec, TrainSpec

GOOD = """
about = "a small one"
base = "smoke"
architectures = ["gru", "gru-universal"]
seeds = 2
[options]
learning_rate = 0.004
hidden_dim = 24
features = ["close_return", "log_sigma"]
"""


@pytest.fixture
def write_preset(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home" / "presets").mkdir(parents=True)

    def write(text, name="mine.toml", folder=tmp_path):
        (folder / name).write_text(text)
        return str(folder / name)

    return write


def columns():
    names = cpbmodels.preset("smoke", "gru").features
    return f'["{names[0]}", "{names[1]}"]'


def good():
    return GOOD.replace('["close_return", "log_sigma"]', columns())


def test_a_file_becomes_the_base_with_overrides(write_preset):
    spec = RunSpec(coins="BTC", preset=write_preset(good()))
    fleet, universal = spec.fleets
    assert (fleet.architecture, universal.architecture) == ("gru", "gru-universal")
    assert (fleet.preset, fleet.seeds) == ("smoke", 2)
    options = cpbmodels.preset(fleet.preset, "gru", **fleet.overrides)
    assert (options.lr, options.hidden_dim, len(options.features)) == (0.004, 24, 2)


def test_options_beside_it_win(write_preset):
    path = write_preset(good())
    spec = BacktestSpec(preset=path, architectures="lstm", seeds=1, overrides={"hidden_dim": 8})
    (fleet,) = spec.fleets
    assert (fleet.architecture, fleet.seeds, fleet.overrides["hidden_dim"]) == ("lstm", 1, 8)
    assert fleet.overrides["lr"] == 0.004
    (fleet,) = RunSpec(preset=path, architectures="gru", overrides={"lr": 0.1}).fleets
    assert (fleet.overrides["lr"], "learning_rate" in fleet.overrides) == (0.1, False)


def test_the_same_options_are_the_same_run(write_preset):
    """The file's name and place decide nothing: a flow run elsewhere needs no file."""
    path = write_preset(good())
    from_file = RunSpec(preset=path)
    options = json.loads(json.dumps(with_preset_files({"preset": path})))  # as a server keeps them
    Path(path).unlink()
    assert RunSpec(**from_file.model_dump()) == from_file == RunSpec(**options)
    assert RunSpec(preset=write_preset(good(), "other.toml")).fleets == from_file.fleets


def test_a_bare_name_is_found_in_the_home(write_preset, tmp_path):
    write_preset(good(), "kept.toml", tmp_path / "home" / "presets")
    assert {fleet.preset for fleet in RunSpec(preset="kept.toml").fleets} == {"smoke"}
    with pytest.raises(UsageError) as error:
        RunSpec(preset="other.toml")
    assert (error.value.code, error.value.field) == ("preset", "preset")


@pytest.mark.parametrize(
    ("option", "value"),
    [("lr", 5.0), ("epoch", 5), ("hidden_dim", 0), ("head", "student"), ("dropout", "much"), ("epochs", 1.5)],
)
def test_wrong_options_get_the_sentence_of_the_command_line(write_preset, option, value):
    text = f'base = "smoke"\narchitectures = ["gru"]\n[options]\n{option} = {json.dumps(value)}\n'
    with pytest.raises(UsageError) as in_file:
        RunSpec(preset=write_preset(text))
    with pytest.raises(UsageError) as given:
        RunSpec(preset="smoke", architectures="gru", overrides={option: value})
    assert str(in_file.value) == str(given.value)
    assert (in_file.value.code, in_file.value.field) == (given.value.code, given.value.field)


def test_two_names_of_one_option_are_refused_wherever_they_stand(write_preset):
    twice = {"lr": 0.001, "learning_rate": 0.002}
    sentence = "lr is given twice, as lr and as learning_rate: leave one out."
    with pytest.raises(UsageError, match=sentence) as given:
        RunSpec(architectures="gru", overrides=twice)
    assert (given.value.code, given.value.field) == ("overrides", "overrides")
    path = write_preset("[options]\nlr = 0.001\nlearning_rate = 0.002\n")
    with pytest.raises(UsageError) as in_file:
        RunSpec(preset=path)
    assert str(in_file.value) == f"preset {path}: {sentence}"
    with pytest.raises(cpbmodels.ModelError, match=sentence):
        cpbmodels.preset("smoke", "gru", **twice)


def test_another_name_of_an_option_wins_over_the_file_as_the_option_does(write_preset):
    path = write_preset(good())
    for name in ("lr", "learning_rate"):
        spec = RunSpec(preset=path, overrides={name: 0.01})
        assert {fleet.overrides["lr"] for fleet in spec.fleets} == {0.01}
        assert RunSpec.model_validate(spec.model_dump()) == spec


@pytest.mark.parametrize(
    "text",
    ["base =", 'bas = "smoke"', "seeds = 0", "options = 3", "base = 7", "\xff\xfe"],
)
def test_what_is_no_preset_names_the_file(write_preset, text):
    path = write_preset(text)
    with pytest.raises(UsageError) as error:
        RunSpec(preset=path)
    assert error.value.code == "preset"
    assert path in str(error.value)


def test_train_takes_the_files_architecture(write_preset):
    path = write_preset('base = "smoke"\narchitectures = ["gru"]\n')
    scope = {"coins": "BTC", "timeframes": "1h", "source": "sim"}
    assert TrainSpec(**scope, preset=path).fleets[0].architecture == "gru"
    assert TrainSpec(**scope, preset=path, architectures="lstm").fleets[0].architecture == "lstm"
    (fleet,) = TrainSpec(**scope).fleets
    assert (fleet.architecture, fleet.preset) == ("har", "default")


def test_presets_are_listed_with_what_is_wrong(write_preset, tmp_path, cpb_here):
    folder = tmp_path / "home" / "presets"
    write_preset(good(), "good.toml", folder)
    write_preset("[options]\nlr = 7\n", "wrong.toml", folder)
    code, out, _ = cpb_here("train-all", "--presets")
    shown = " ".join(out.split())
    assert code == 0
    assert all(name in shown for name in (*PRESET_ARCHITECTURES, "gru, gru-universal", "lr must be"))


def test_a_profile_sizes_the_seeds_models_where_it_is_named_and_no_others():
    seed = RunSpec(preset="seed-gru", profile="gpu-6gb", overrides={"batch_size": 8})
    assert seed.fleets[0].overrides == {"batch_size": 8, "context": 20}
    assert RunSpec.model_validate(seed.model_dump()) == seed
    assert RunSpec(preset="seed-gru").fleets[0].overrides == {}
    assert RunSpec(preset="seed-gru", profile="gpu-16gb").fleets[0].overrides == {}
    assert all(fleet.overrides == {} for fleet in RunSpec(profile="gpu-6gb").fleets)
