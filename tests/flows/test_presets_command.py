"""`cpb presets` lists the presets; `cpb presets NAME` shows what one resolves to, as a run would train it."""

import json
import re

import pytest

import cpbmodels
from cpbmodels.arch.options import ALIASES, CHOICES, RANGES, SWITCHES
from flows.cli.options import BY_SET
from schemas.errors import UsageError
from schemas.presets import PRESET_ARCHITECTURES
from schemas.run import RunSpec

OWN = """
about = "a small one"
base = "smoke"
architectures = ["gru"]
seeds = 2
[options]
learning_rate = 0.004
hidden_dim = 24
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """HOME/presets, for presets of one's own."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    folder = tmp_path / "presets"
    folder.mkdir()
    return folder


@pytest.fixture
def shown(folder, cpb_here):
    """Run `cpb presets WORDS --json`."""

    def run(*words):
        code, out, err = cpb_here("presets", *words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


def test_the_presets_are_listed_as_train_all_lists_them(folder, cpb_here, shown):
    (folder / "mine.toml").write_text(OWN)
    (folder / "wrong.toml").write_text("[options]\nlr = 7\n")
    code, out, err = cpb_here("presets")
    assert (code, out) == (0, cpb_here("train-all", "--presets")[1])
    assert "`cpb presets NAME`" in err
    listed = {one["name"]: one for one in shown()["presets"]}
    assert listed.keys() == {*PRESET_ARCHITECTURES, str(folder / "mine.toml"), str(folder / "wrong.toml")}
    assert listed["smoke"]["trains"] == [*PRESET_ARCHITECTURES["smoke"]]
    assert listed["smoke"]["problem"] is None
    assert listed[str(folder / "mine.toml")]["about"] == "a small one"
    assert "lr must be" in listed[str(folder / "wrong.toml")]["problem"]


@pytest.mark.parametrize("name", PRESET_ARCHITECTURES)
def test_a_preset_is_shown_as_a_run_would_train_it(shown, name):
    told = shown(name)
    spec = RunSpec(preset=name)
    copies = {fleet.architecture: fleet.seeds for fleet in spec.fleets}
    assert [*told["resolved"]] == [*copies]
    assert told["copies"] == copies
    for architecture, values in told["resolved"].items():
        preset = cpbmodels.preset(name, architecture.removesuffix("-universal")).as_dict()
        assert values == json.loads(json.dumps(preset))
        assert {*told["differs"][architecture]} == {
            option for option, value in values.items() if value != told["built_in"][option]
        }
    assert told["built_in"].keys() == told["allowed"].keys() == {*cpbmodels.Preset.__dataclass_fields__}
    assert {n: one["range"] for n, one in told["allowed"].items() if "range" in one} == {
        option: [*limits] for option, limits in RANGES.items()
    }
    choices = {option: one["choices"] for option, one in told["allowed"].items() if "choices" in one}
    assert choices == {n: [*c] for n, c in CHOICES.items()} | {name: [True, False] for name in SWITCHES}
    assert told["aliases"] == ALIASES
    assert told["run"].keys() == {*BY_SET}
    assert told["run"]["dtype"] == {"default": "float32", "allowed": {"choices": ["float32", "float64"]}}
    assert told["run"]["kernels"] == {"default": True, "allowed": {"choices": [True, False]}}
    assert told["run"]["seed"] == {"default": 1, "allowed": {"at_least": 0}}
    assert told["run"]["train_timeout_s"]["allowed"] == {"above": 0}


def test_what_an_architecture_does_not_read_is_said(shown):
    told = shown("smoke")
    assert {"n_heads", "ff_dim"} <= {*told["without_effect"]["gru"]}
    assert "hidden_dim" not in told["without_effect"]["gru"]
    assert {"hidden_dim", "n_layers"} <= {*told["without_effect"]["linear"]}


def test_a_file_of_ones_own_is_shown_with_what_it_changes(shown, folder):
    (folder / "mine.toml").write_text(OWN)
    told = shown("mine.toml")
    assert (told["about"], told["base"], told["copies"]) == ("a small one", "smoke", {"gru": 2})
    assert (told["resolved"]["gru"]["lr"], told["resolved"]["gru"]["hidden_dim"]) == (0.004, 24)
    assert {"lr", "hidden_dim"} <= {*told["differs"]["gru"]}


def test_an_option_that_a_preset_has_at_one_timeframe_alone_is_shown(shown, folder, cpb_here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    told = shown("default")
    assert told["by_timeframe"] == {
        "robust-har": {},
        "har": {},
        "har-universal": {},
        "average-universal": {"15m": {"location_share": 0.5}},
    }
    assert re.search(
        r"location_share +average-universal 0 \(at 15m 0\.5\)", cpb_here("presets", "default")[1]
    )
    (folder / "plain.toml").write_text('architectures = ["average"]\n[options]\nlocation_share = 0.0\n')
    assert shown("plain.toml")["by_timeframe"] == {"average": {}}


def test_a_profile_is_shown_with_the_sizes_that_it_sets(shown):
    plain, small = shown("seed-gru"), shown("seed-gru", "--profile", "gpu-6gb")
    values = small["resolved"]["gru"]
    assert (values["batch_size"], values["context"], values["fleet_size"]) == (16, 20, 20)
    assert (plain["profile"], small["profile"]) == (None, "gpu-6gb")
    assert plain["resolved"]["gru"]["batch_size"] == 64
    assert shown("default", "--arch", "gru")["resolved"].keys() == {"gru"}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["nope"], {"preset": "nope"}),
        (["none.toml"], {"preset": "none.toml"}),
        (["seed-gru", "--arch", "lstm"], {"preset": "seed-gru", "architectures": "lstm"}),
        (["default", "--profile", "tpu"], {"preset": "default", "profile": "tpu"}),
        (["default", "--arch", "nope"], {"preset": "default", "architectures": "nope"}),
    ],
)
def test_what_a_run_refuses_gets_its_sentence(folder, cpb_here, words, values):
    with pytest.raises(UsageError) as error:
        RunSpec(**values)
    code, out, err = cpb_here("presets", *words)
    assert (code, out, err) == (2, "", f"cpb: {error.value}\n")


def test_it_shows_one_preset(folder, cpb_here):
    code, _, err = cpb_here("presets", "seed-gru,seed-lstm")
    assert (code, err) == (2, "cpb: preset 'seed-gru,seed-lstm': name one, as in `cpb presets seed-gru`\n")


def test_an_architecture_without_a_preset_is_refused(folder, cpb_here):
    code, _, err = cpb_here("presets", "--arch", "gru")
    assert (code, err) == (2, "cpb: architectures: of which preset? Name it, as in `cpb presets default`\n")


def test_the_table_has_every_option_with_what_is_allowed(folder, cpb_here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = cpb_here("presets", "smoke")
    rows = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line.strip()}
    assert code == 0
    assert {*cpbmodels.Preset.__dataclass_fields__, *BY_SET} <= rows.keys()
    assert rows["epochs"] == "epochs 3 * 1 to 100,000 40 max_epochs"
    assert rows["schedule"] == "schedule cosine cosine, step, constant cosine"
    assert rows["hidden_dim"] == "hidden_dim linear not read; others 16 * 1 to 4,096 64 d_model"
    assert rows["checkpoint_gradients"] == "checkpoint_gradients false true, false false"
    assert rows["features"].endswith("1 to 1,024 names 6 names")


def test_a_narrow_terminal_keeps_values_and_what_is_allowed(folder, cpb_here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, err = cpb_here("presets", "smoke")
    table = out.splitlines()[3:-1]
    assert len(table) > 44
    assert max(map(len, table)) <= 80
    assert "3 *" in out
    assert "1 to 100,000" in out
    assert "max_epochs" not in out
    assert err.startswith("left out at 80 columns: also called; ")
