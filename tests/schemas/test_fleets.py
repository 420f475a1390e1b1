"""Which fleets the options of a run name."""

import shlex

import pytest

from flows.cli.presets import explained
from schemas.base import parse_value
from schemas.errors import UsageError
from schemas.presets import PRESET_ARCHITECTURES
from schemas.run import RunSpec, TrainSpec
from schemas.tuning import TuneSpec


def architectures(spec):
    return tuple(fleet.architecture for fleet in spec.fleets)


def copies(**options):
    return {fleet.architecture: fleet.seeds for fleet in RunSpec(**options).fleets}


def test_architectures_of_presets_exist():
    for preset, names in PRESET_ARCHITECTURES.items():
        assert architectures(RunSpec(preset=preset)) == names
    assert architectures(RunSpec(architectures="gru,har-universal,gru", preset="smoke")) == (
        "gru",
        "har-universal",
    )
    for options, field in (({"architectures": "arima"}, "architectures"), ({"preset": "huge"}, "preset")):
        with pytest.raises(UsageError) as refused:
            RunSpec(**options)
        assert refused.value.field == field


def keys(**options):
    return [(fleet.preset, fleet.architecture, fleet.overrides) for fleet in RunSpec(**options).fleets]


def test_each_of_several_presets_trains_its_own_architectures():
    assert keys(preset="seed-gru,default,seed-gru") == [
        ("seed-gru", "gru", {}),
        *(("default", name, {}) for name in PRESET_ARCHITECTURES["default"]),
    ]
    assert [fleet.seeds for fleet in RunSpec(preset="smoke,default").fleets][-4:] == [1, 3, 3, 3]
    # Of a list each trains what it has.
    assert keys(preset="default,smoke, seed-gru", architectures="gru,har") == [
        ("default", "har", {}),
        ("smoke", "gru", {}),
        ("smoke", "har", {}),
        ("seed-gru", "gru", {}),
    ]


@pytest.mark.parametrize(
    ("options", "field", "sentence"),
    [
        ({"preset": "seed-gru,nope"}, "preset", "preset 'nope' is unknown: choose from smoke, "),
        ({"preset": ","}, "preset", "preset ',' is unknown: choose from smoke, "),
        (
            {"preset": "seed-gru,default", "architectures": "gru,har,lstm"},
            "architectures",
            "none of the presets seed-gru,default trains lstm",
        ),
        (
            {"preset": "seed-gru,default", "architectures": "har"},
            "architectures",
            "preset seed-gru trains none of them; leave the preset out, or add one of gru",
        ),
        (
            {"preset": "seed-gru,seed-lstm", "architectures": "gru,arima"},
            "architectures",
            "unknown arima; choose from",
        ),
        (
            {"preset": "seed-gru,seed-gru-tuned", "overrides": {"n_heads": 2}},
            "overrides",
            "n_heads has no effect on",
        ),
        ({"preset": "default,seed-gru", "overrides": {"epoch": 2}}, "overrides", "epoch"),
        ({"preset": "default,seed-gru", "overrides": {"lr": 7}}, "overrides", "lr must be a number"),
    ],
)
def test_presets_that_do_not_fit_are_refused_by_name(options, field, sentence):
    with pytest.raises(UsageError, match=sentence) as refused:
        RunSpec(**options)
    assert refused.value.field == field


def test_an_override_goes_to_each_preset_that_reads_it():
    changed = {"n_heads": 2, "epochs": 5, "hidden_dim": 16}
    given = RunSpec(
        preset="seed-transformer,seed-gru,seed-lstm,smoke",
        architectures="transformer,gru,lstm,linear",
        overrides=changed,
    )
    by_preset = {fleet.preset: fleet.overrides for fleet in given.fleets}
    assert by_preset["seed-transformer"] == by_preset["seed-lstm"] == by_preset["smoke"] == changed
    assert by_preset["seed-gru"] == {"epochs": 5, "hidden_dim": 16}
    # To all architectures of a preset, as in a run of this preset alone: their recipes are the same.
    assert [f for f in given.fleets if f.preset == "smoke"] == [
        *RunSpec(preset="smoke", architectures="transformer,gru,lstm,linear", overrides=changed).fleets
    ]


def test_an_average_reads_what_its_members_read():
    """Not every size: else the notes' options would go to the default preset as well, and rename its models."""
    sizes = {"n_layers": 3, "n_heads": 4, "ff_dim": 64}
    by_preset = {f: overrides for f, _, overrides in keys(preset="seed-transformer,default", overrides=sizes)}
    assert by_preset == {"seed-transformer": sizes, "default": {}}
    with pytest.raises(UsageError, match="n_layers has no effect on robust-har"):
        RunSpec(preset="default", overrides={"n_layers": 3})
    with pytest.raises(
        UsageError, match="n_layers has no effect on average, which reads hidden_dim, dropout"
    ):
        RunSpec(architectures="average", overrides={"n_layers": 3})
    mixed = {"n_layers": 3, "members": "har,transformer"}
    assert keys(architectures="average", overrides=mixed) == [("default", "average", mixed)]


def test_what_each_architecture_of_a_preset_fixes_is_left_to_the_other_presets():
    """The notes' models beside the default ones, which read the last candle alone."""
    presets = "seed-transformer,seed-gru,seed-lstm,default"
    by_preset = {
        preset: overrides for preset, _, overrides in keys(preset=presets, overrides={"context": 20})
    }
    seeds = {name: {"context": 20} for name in presets.split(",")[:-1]}
    assert by_preset == seeds | {"default": {}}
    # An option of which one architecture has a value of its own, and an impossible value, are refused as ever.
    for options in ({"preset": "default"}, {"preset": "default,smoke"}, {"preset": "default,mine.toml"}):
        files = {"mine.toml": {"base": "default", "options": {"epochs": 2}}}
        with pytest.raises(
            UsageError, match=r"context must be 1 for (robust-)?har: it reads the rolling columns"
        ):
            RunSpec(**options, preset_files=files, overrides={"context": 20})
    with pytest.raises(UsageError, match="context must be a whole number from 1"):
        RunSpec(preset="default,seed-gru", overrides={"context": 0})


@pytest.mark.parametrize(
    ("presets", "options", "twin"),
    [
        ("seed-gru,same.toml", {}, "same.toml trains the same models as seed-gru"),
        ("other.toml,same.toml", {"epochs": 3}, "same.toml trains the same models as other.toml"),
        ("five.toml,default", {"seeds": 5}, "default trains the same models as five.toml"),
        # A recipe is the same on any machine.
        ("seed-gru,precise.toml", {}, "precise.toml trains the same models as seed-gru"),
    ],
)
def test_a_preset_that_trains_what_others_do_is_refused_by_name(presets, options, twin):
    files = {
        "same.toml": {"base": "seed-gru", "options": {"lr": 1e-3}},
        "other.toml": {"base": "seed-gru", "options": {"epochs": 7}},
        "precise.toml": {"base": "seed-gru", "options": {"mixed_precision": "off"}},
        "five.toml": {"base": "default", "seeds": 5},
    }
    seeds = {"seeds": options.pop("seeds")} if "seeds" in options else {}
    with pytest.raises(UsageError, match=f"preset {twin} in this run; leave it out") as refused:
        RunSpec(preset=presets, preset_files=files, overrides=options, **seeds)
    assert refused.value.field == "preset"


def test_a_model_that_two_presets_have_in_common_is_trained_once():
    """A closed form has one copy, so that more copies of the others leave it as it is."""
    file = {"five.toml": {"base": "default", "seeds": 5}}
    fleets = RunSpec(preset="default,five.toml", preset_files=file).fleets
    assert [fleet.architecture for fleet in fleets].count("robust-har") == 1
    assert len(fleets) == 2 * len(PRESET_ARCHITECTURES["default"]) - 1


def test_presets_that_differ_at_one_timeframe_alone_are_two_where_the_run_has_it():
    file = {"plain.toml": {"architectures": ["average-universal"], "options": {"location_share": 0.0}}}
    given = {"preset": "default,plain.toml", "preset_files": file}
    for timeframes in ("15m", "15m,1h"):
        fleets = RunSpec(**given, timeframes=timeframes).fleets
        assert [f.overrides for f in fleets if f.architecture == "average-universal"] == [
            {},
            {"location_share": 0.0},
        ]
    with pytest.raises(UsageError, match=r"preset plain.toml trains the same models as default"):
        RunSpec(**given, timeframes="1h")


@pytest.mark.parametrize("preset", ["seed-gru,", " seed-gru", "seed-gru,seed-gru"])
def test_a_list_of_one_preset_is_that_preset(preset):
    for of in (RunSpec, TrainSpec, TuneSpec):
        assert of(coins="BTC", timeframes="1h", preset=preset).fleets == RunSpec(preset="seed-gru").fleets
    assert explained(preset, {}) == explained("seed-gru", {})


def test_each_option_needs_one_architecture_that_reads_it():
    """Two options, of which each architecture reads another."""
    both = {"hidden_dim": 8, "epochs": 2, "dropout": 0.1}
    assert keys(preset="smoke", architectures="linear,har", overrides=both)[0][2] == both
    with pytest.raises(UsageError, match="n_heads has no effect on linear"):
        RunSpec(preset="smoke", architectures="linear,har", overrides=both | {"n_heads": 2})


def test_the_options_of_a_fleet_train_it_and_no_other():
    overrides = {
        "epochs": 2,
        "features": ["log_sigma", "r_close"],
        "schedule": "step",
        "mixed_precision": False,
    }
    given = RunSpec(preset="smoke,seed-gru", seeds=2, dtype="float64", overrides=overrides)
    for fleet in given.fleets:
        words = shlex.split(fleet.options)
        options = dict(zip(words[::2], words[1::2], strict=True))
        settings = [words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--set"]
        overrides = {name: parse_value(value) for name, value in settings}
        again = RunSpec(
            architectures=options["--architectures"],
            preset=options["--preset"],
            seeds=options.get("--seeds"),
            dtype=overrides.pop("dtype"),
            overrides=overrides,
        )
        assert again.fleets == (fleet,)


def test_copies_are_the_presets_and_one_of_a_closed_form():
    assert copies() == {"robust-har": 1, "har": 3, "har-universal": 3, "average-universal": 3}
    assert copies(seeds=5)["har"] == 5
    assert copies(preset="smoke")["har"] == 1


def test_an_override_is_refused_only_where_no_architecture_reads_it():
    assert RunSpec(overrides={"epochs": 3}).overrides == {"epochs": 3}
    with pytest.raises(UsageError) as refused:
        RunSpec(architectures="robust-har", overrides={"epochs": 3})
    assert refused.value.code == "without-effect"
