"""An option of a model is given by its name: `--NAME VALUE` is `--set NAME=VALUE`, on each command that trains."""

import json
import sys

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cpbmodels import preset
from cpbmodels.arch.options import ALIASES, Preset
from flows.cli.app import _app
from flows.cli.options import BY_SET, COMMONEST, ON_OFF, Command, cli_options
from schemas.backtesting import BacktestSpec
from schemas.base import Spec
from schemas.errors import UsageError
from schemas.run import RunSpec, TrainSpec
from schemas.tuning import TuneSpec
from tests.tools.flow_options import command_of

FIELDS = (*Preset.__dataclass_fields__,)
NAMES = (*FIELDS, *ALIASES, *BY_SET)
TRAINING = ("train", "train-all", "backtest", "tune")


class Taken(Spec):
    """A specification that takes any value, to see what the command line makes of one."""

    coins: str = "all"
    timeframes: str = "15m,1h"
    preset: str = "default"
    out: str | None = None
    offline: bool = False
    seed: object = 1
    dtype: object = "float32"
    kernels: object = True
    train_timeout_s: object = 1.0
    overrides: dict[str, object] = {}  # noqa: RUF012 - pydantic copies it


@pytest.fixture(scope="module")
def taken():
    """Return what gives the specification that the command line of these words makes; built once, since many ask."""
    seen = []
    app = typer.Typer()
    app.command(cls=Command)(cli_options(Taken)(lambda spec: seen.append(spec)))
    command = typer.main.get_command(app)

    def call(*words):
        command.main([*words], "cpb", standalone_mode=False)
        return seen.pop()

    return call


def dashed(name):
    return name.replace("_", "-")


def commands():
    return typer.main.get_command(_app()).commands


def texts(param):
    return [*param.opts, *param.secondary_opts]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_an_option_with_the_meaning_of_set(name, taken):
    for value in ("5", "-0.5", ".1", "cosine", "", "--json", "-x", "a=b", "[1, 2]", "--", "true"):
        by_set = taken("--set", f"{name}={value}")
        assert taken(f"--{dashed(name)}={value}") == by_set
        if name not in ON_OFF or value == "true":
            assert taken(f"--{dashed(name)}", value) == by_set
    assert taken(f"--{dashed(name)}=7") != Taken()


@pytest.mark.parametrize("name", ON_OFF)
def test_a_switch_needs_no_value_wherever_it_stands(name, taken):
    on, off = (taken("BTC", "1h", "--set", f"{name}={value}") for value in ("true", "false"))
    yes, no = f"--{dashed(name)}", f"--no-{dashed(name)}"
    assert (
        on
        == taken("BTC", "1h", yes)
        == taken(yes, "BTC", "1h")
        == taken("BTC", yes, "1h")
        == taken(yes, "--", "BTC", "1h")
    )
    assert on == taken(yes, "--coins", "BTC", "--timeframes=1h") == taken("BTC", "1h", f"{yes}=true")
    assert off == taken("BTC", "1h", no) == taken(no, "BTC", "1h") == taken(f"{yes}=false", "BTC", "1h")
    for value in ON_OFF[name]:
        assert taken(yes, value, "BTC", "1h") == taken("BTC", "1h", "--set", f"{name}={value}")
    assert taken("--out", yes, "BTC").out == yes  # the value of another option


def test_a_word_that_differs_from_a_switchs_value_by_case_is_refused_not_taken_for_a_coin():
    with pytest.raises(UsageError, match=r"^mixed_precision 'AUTO' is unknown: choose one of auto, off"):
        command_of(TrainSpec)("--mixed-precision", "AUTO", "1h", "--arch", "gru", "--source", "sim")
    with pytest.raises(UsageError, match=r"^checkpoint_gradients must be true or false, not 'True'"):
        command_of(TrainSpec)("BTC", "1h", "--checkpoint-gradients", "True", "--arch", "gru")


@pytest.mark.parametrize("name", ON_OFF)
@pytest.mark.parametrize("word", ["on", "off", "Yes", "0"])
def test_a_word_of_yes_or_no_behind_a_switch_is_no_coin(name, word, taken):
    assert taken(f"--{dashed(name)}", word, "BTC", "1h") == taken("BTC", "1h", "--set", f"{name}={word}")


@pytest.mark.parametrize(
    "dash", ["\u2014", "\u2013", "\u2013-", "\u2212\u2212", "\u2014\u2014", "\uff0d\uff0d"]
)
@pytest.mark.parametrize("command", TRAINING)
def test_a_dash_that_is_no_hyphen_is_refused_with_what_to_type(dash, command, cpb_here):
    """As copied from a page: it would be read as a coin."""
    for words in (
        [f"{dash}batch-size", "8"],
        ["BTC", f"{dash}batch_size=8"],
        ["BTC", "1h", f"{dash}batch-size"],
    ):
        code, out, err = cpb_here(command, *words, "--json")
        told = json.loads(out)
        assert (code, told["code"]) == (2, "usage")
        assert err == f"cpb: {told['error']}\n"
        assert "begins with a dash that is no hyphen" in err
        assert "; type --batch-size" in err


def test_the_value_of_an_option_may_begin_with_any_dash(taken):
    assert taken("--out", "\u2014epochs").out == "\u2014epochs"


@pytest.mark.parametrize("words", [["--lr"], ["--no-mixed-precision=true"], ["--out"], ["--preset"]])
def test_an_option_without_its_value_names_the_commands_help(words, cpb_here):
    code, _, err = cpb_here("backtest", "BTC", *words)
    assert code == 2
    assert err.endswith("see `cpb backtest --help`\n")


CHARACTERS = st.characters(exclude_categories=("Cs",), exclude_characters="\0")


@st.composite
def command_lines(draw):
    """A command line with options by their names in any order, and the same line with `--set`, in another."""
    fields = draw(st.lists(st.sampled_from((*FIELDS, *BY_SET)), unique=True, max_size=6))
    by_name, by_set = [], []
    for field in fields:
        name = draw(st.sampled_from([field, *(alias for alias, real in ALIASES.items() if real == field)]))
        spelt = f"--{dashed(name)}"
        forms = st.text(CHARACTERS, max_size=8).map(lambda value, s=spelt: (value, [f"{s}={value}"]))
        if field in ON_OFF:
            forms |= st.sampled_from(ON_OFF[field]).map(lambda value, s=spelt: (value, [s, value]))
            forms |= st.just(("true", [spelt])) | st.just(("false", [f"--no-{dashed(name)}"]))
        else:
            forms |= st.text(CHARACTERS, max_size=8).map(lambda value, s=spelt: (value, [s, value]))
            forms |= st.floats(allow_nan=False).map(lambda value, s=spelt: (str(value), [s, str(value)]))
        value, words = draw(forms)
        by_name.append(words)
        by_set.append(["--set", f"{field}={value}"])
    others = [["--offline"], ["--out", "--epochs"], ["--preset=smoke"]]
    others = draw(st.lists(st.sampled_from(others), unique_by=tuple, max_size=3))
    positional = draw(st.sampled_from([[], [["BTC"]], [["BTC"], ["1h"]]]))

    def line(options):
        places = draw(st.permutations([*options, *others, *(["coin"] for _ in positional)]))
        left = iter(positional)
        return [word for words in places for word in (next(left) if words == ["coin"] else words)]

    return line(by_name), line(by_set)


@settings(deadline=None)
@given(command_lines())
def test_any_order_of_options_by_their_names_is_what_set_makes_of_them(taken, lines):
    by_name, by_set = (taken(*words) for words in lines)
    assert json.dumps(by_name.model_dump(), sort_keys=True) == json.dumps(by_set.model_dump(), sort_keys=True)


@pytest.mark.parametrize(
    ("words", "both"),
    [
        (["--epochs", "5", "--epochs", "5"], "--epochs 5 and --epochs 5"),
        (["--epochs", "5", "--max-epochs=7"], "--epochs 5 and --max-epochs 7"),
        (["--max-epochs", "5", "--set", "epochs=5"], "--set epochs=5 and --max-epochs 5"),
        (["--set", "max_epochs=5", "--epochs", "7"], "--set max_epochs=5 and --epochs 7"),
        (["--batch", "8", "--batch-size", "8"], "--batch-size 8 and --batch 8"),
        (["--sequence-length", "8", "--context", "8"], "--context 8 and --sequence-length 8"),
        (["--kernels", "--no-kernels"], "--kernels true and --no-kernels"),
        (["--no-cuda-graph", "--no-cuda-graph"], "--no-cuda-graph and --no-cuda-graph"),
        (["--set", "kernels=true", "--no-kernels"], "--set kernels=true and --no-kernels"),
        (["--seed", "1", "--set", "seed=1"], "--set seed=1 and --seed 1"),
    ],
)
def test_an_option_given_twice_is_refused_with_both(words, both, taken):
    with pytest.raises(UsageError, match="is given twice") as caught:
        taken(*words)
    assert str(caught.value).endswith(f" is given twice: {both}; leave one out")
    assert (caught.value.code, caught.value.field) == ("overrides", "overrides")
    for order in (words, [*words[2:], *words[:2]]):
        with pytest.raises(UsageError, match="is given twice"):
            command_of(RunSpec)("--architectures", "gru", *order)


def test_no_name_of_a_model_collides_with_an_option_of_any_command():
    for name, command in commands().items():
        params = [param for param in getattr(command, "params", ()) if param.param_type_name == "option"]
        typed = [text for param in params for text in texts(param)]
        assert len(typed) == len(set(typed)), name
        hidden = {text for param in params if param.hidden for text in texts(param)}
        assert hidden <= {f"--{no}{dashed(one)}" for one in NAMES for no in ("", "no-")}, name
        if name in TRAINING:
            missing = {f"--{dashed(one)}" for one in NAMES} - hidden
            assert missing == ({"--train-timeout-s"} if name == "tune" else set()), name
        else:
            assert not hidden, name


def test_the_specifications_of_training_have_no_field_of_a_models_name():
    """Else `--NAME` would have two meanings, or the parser would keep one of them silently."""
    for spec in (RunSpec, TrainSpec, BacktestSpec, TuneSpec):
        fields = {*spec.model_fields, "json", "help", "set", "resume", "presets", "arch", "use_wandb"}
        assert fields & {*FIELDS, *ALIASES} == set(), spec


def test_every_switch_among_the_fields_is_known_as_one():
    switches = {name for name in FIELDS if isinstance(getattr(Preset(), name), bool)}
    switches |= {name for name in BY_SET if RunSpec.model_fields[name].annotation is bool}
    assert switches == {*ON_OFF} - {"mixed_precision"}


def test_a_copy_of_a_name_is_no_abbreviation():
    call = command_of(RunSpec)
    spec = call("--seed", "7", "--seeds", "2")
    assert (spec.seed, spec.seeds) == (7, 2)
    for word in (
        "--see",
        "--epoch",
        "--batch-siz",
        "--n-layer",
        "--mixed",
        "--no-mixed",
        "--num_layers",
        "-epochs",
    ):
        with pytest.raises(AssertionError, match="No such option"):
            command_of(RunSpec)(word, "1")


NOTES = """
    --batch-size 16 --hidden-dim 256 --n-layers 3 --no-mixed-precision --epochs 5 --lr 1e-3 --schedule cosine
    --accumulate 2 --checkpoint-gradients --dropout .1 --context 20 --patience 10 --seed 1 --dtype float64
"""


def test_the_notes_own_options_train_what_they_say():
    spec = command_of(TrainSpec)(
        *NOTES.split(), "BTCUSDT", "1h", "--arch", "lstm", "--source", "sim", "--use-wandb"
    )
    assert spec.overrides == {
        "batch_size": 16,
        "hidden_dim": 256,
        "n_layers": 3,
        "mixed_precision": False,
        "epochs": 5,
        "lr": 1e-3,
        "schedule": "cosine",
        "accumulate": 2,
        "checkpoint_gradients": True,
        "dropout": 0.1,
        "context": 20,
        "patience": 10,
    }
    assert (spec.seed, spec.dtype, spec.coins, spec.timeframes, spec.wandb) == (
        1,
        "float64",
        "BTCUSDT",
        "1h",
        True,
    )
    other = (
        "--num-layers",
        "3",
        "--sequence-length",
        "20",
        "--accumulation-steps",
        "2",
        "--max-epochs",
        "50",
    )
    assert command_of(RunSpec)("--arch", "gru", *other).overrides == {
        "n_layers": 3,
        "context": 20,
        "accumulate": 2,
        "epochs": 50,
    }


@pytest.mark.parametrize(
    ("name", "value"), [("lr", "-1"), ("epochs", "-5"), ("batch_size", "-.5"), ("context", "x")]
)
def test_a_wrong_value_gets_the_sentence_of_set(name, value):
    sentences = set()
    for words in (("--set", f"{name}={value}"), (f"--{dashed(name)}", value), (f"--{dashed(name)}={value}",)):
        with pytest.raises(UsageError) as caught:
            command_of(RunSpec)("--architectures", "gru", *words)
        sentences.add(str(caught.value))
    assert len(sentences) == 1


def test_columns_are_named_as_members_are():
    assert preset("smoke", "gru", features="r_close,log_sigma").features == ("r_close", "log_sigma")
    with pytest.raises(UsageError, match="features must be"):
        command_of(RunSpec)("--arch", "gru", "--features", "r_close,r_close")


def test_wandb_has_the_notes_name_wherever_it_is():
    with_wandb = {
        name
        for name, command in commands().items()
        for p in getattr(command, "params", ())
        if p.name == "wandb"
    }
    assert with_wandb == {"train", "train-all"}
    for name in with_wandb:
        assert ["--wandb", "--use-wandb"] in [param.opts for param in commands()[name].params]


@pytest.mark.parametrize("command", TRAINING)
def test_help_names_the_commonest_and_where_all_are(command):
    shown = CliRunner().invoke(_app(), [command, "--help"], env={"COLUMNS": "900"}).stdout
    assert ", ".join(COMMONEST) in " ".join(shown.split())
    assert "`cpb presets NAME` lists all" in shown
    known = {text for param in commands()[command].params for text in texts(param)}
    assert known >= {*COMMONEST}
    assert "--weight-decay" not in shown
    assert len(COMMONEST) == 8


@pytest.mark.parametrize(
    ("command", "word", "nearest"),
    [
        ("train", "--hidden-dims", "--hidden-dim"),
        ("train-all", "--batchsize=4", "--batch-size"),
        ("backtest", "--no-mixed-precisions", "--no-mixed-precision"),
        ("tune", "--learning-rates", "--learning-rate"),
        ("train", "--zzz", ""),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_and_with_set(command, word, nearest, cpb_here):
    code, out, err = cpb_here(command, "BTC", "1h", word, "1", "--json")
    assert code == 2
    told = json.loads(out)
    assert (told["code"], told["exit"], told["field"]) == ("usage", 2, word.partition("=")[0])
    assert err == f"cpb: {told['error']}\n"
    assert nearest in told["error"]
    assert "--set NAME=VALUE" in told["error"]
    assert "`cpb presets default` lists the names" in told["error"]


def test_a_command_that_trains_nothing_names_no_set(cpb_here):
    code, _, err = cpb_here("forecast", "--batch-size", "4")
    assert code == 2
    assert "--set" not in err


def test_an_option_given_by_its_name_is_not_searched():
    words = ("--arch", "gru", "--coins", "BTC", "--preset", "smoke")
    assert {"lr", "dropout"} <= {*command_of(TuneSpec)(*words, "--n-layers", "2").ranges}
    space = command_of(TuneSpec)(
        *words, "--n-layers", "2", "--learning-rate", "1e-3", "--dropout", ".2"
    ).ranges
    assert not {"lr", "dropout"} & {*space}


def completed(monkeypatch, capsys, words):
    monkeypatch.setenv("_CPB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setattr(sys, "argv", ["cpb"])
    with pytest.raises(SystemExit):
        _app()(prog_name="cpb")
    return capsys.readouterr().out.split()


def test_the_shell_completes_a_models_options_once_a_letter_is_typed(monkeypatch, capsys):
    assert completed(monkeypatch, capsys, "cpb train --bat") == ["--batch-size", "--batch"]
    assert completed(monkeypatch, capsys, "cpb train --mixed-precision --no-mi") == ["--no-mixed-precision"]
    every = completed(monkeypatch, capsys, "cpb train --")
    assert "--preset" in every
    assert "--batch-size" not in every


def test_the_shell_completes_questions_about_prices(monkeypatch, capsys):
    assert completed(monkeypatch, capsys, "cpb forecast BTC 1h --stop") == ["--stop", "--stop-chance"]
    assert completed(monkeypatch, capsys, "cpb forecast BTC 1h --ta") == ["--tail", "--target"]


def test_two_commands_share_no_values():
    seen = []
    app = typer.Typer()
    app.command()(cli_options(Taken)(lambda spec: seen.append(spec.overrides)))
    for words in (["--lr", "1"], []):
        CliRunner().invoke(app, words)
    assert seen == [{"lr": 1}, {}]
