"""Options of a command follow from its specification; the command gets the specification they make."""

import json

import pytest
import typer
from typer.testing import CliRunner

from flows.cli.app import _app
from flows.cli.options import BY_SET, FILES, cli_options
from schemas.backtesting import BacktestSpec
from schemas.base import parse_value
from schemas.board import BoardSpec
from schemas.errors import UsageError
from schemas.forecasting import ForecastSpec
from schemas.run import RunSpec, TrainSpec
from schemas.scope import ScopeSpec
from tests.tools.flow_options import BACKTEST, CASES, command_of


def typed(values):
    for name, value in values.items():
        dashed = name.replace("_", "-")
        if name in BY_SET:
            yield from ("--set", f"{name}={json.dumps(value)}")
        elif name == "overrides":
            for key, command in value.items():
                yield from ("--set", f"{key}={command}")
        elif isinstance(value, bool):
            yield f"--{dashed}" if value else f"--no-{dashed}"
        else:
            yield from (f"--{dashed}", str(value))


@pytest.mark.parametrize(("spec", "values", "cannot"), CASES)
def test_every_field_can_be_typed_and_arrives(spec, values, cannot):
    call = command_of(spec)
    if FILES in values:  # read from the files that `preset` names: tests/flows/test_preset_files.py
        values = {name: value for name, value in values.items() if name != FILES} | {"preset": "smoke"}
    assert call(*typed(values)) == spec(**values)
    assert call() == spec()


def test_a_command_can_leave_a_field_out():
    with pytest.raises(AssertionError, match="No such option"):
        command_of(BacktestSpec, without=("tail",))("--tail")
    assert command_of(RunSpec, only=("market",))("--market", "um") == RunSpec(market="um")


@pytest.mark.parametrize("spec", [ScopeSpec, BoardSpec, ForecastSpec])
def test_coin_and_timeframe_can_be_given_by_position_or_by_option(spec):
    call = command_of(spec)
    assert call("ETH") == call("--coins", "ETH") == spec(coins="ETH")
    assert call("ETH", "4h") == call("ETH", "--timeframes", "4h") == spec(coins="ETH", timeframes="4h")
    for words in (("ETH", "--coins", "BTC"), ("ETH", "4h", "--timeframes", "1h")):
        with pytest.raises(UsageError, match="is given twice") as caught:
            call(*words)
        assert caught.value.field in ("coins", "timeframes")


def test_every_command_with_a_scope_takes_both_by_position():
    commands = typer.main.get_command(_app()).commands
    scoped = {name for name, command in commands.items() if "coins" in {p.name for p in command.params}}
    assert {"train-all", "train", "backtest", "tune", "forecast", "ledger", "champions", "ingest"} <= scoped
    for name in scoped:
        arguments = [p.name for p in commands[name].params if p.param_type_name == "argument"]
        assert arguments == ["coin", "timeframe"], name


def test_help_says_what_the_specification_says():
    app = typer.Typer(rich_markup_mode="rich")
    app.command()(cli_options(BacktestSpec)(lambda spec: None))
    shown = "".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "400"}).stdout.split())
    for name, field in BacktestSpec.model_fields.items():
        if name not in ("overrides", FILES, *BY_SET):
            assert f"--{name.replace('_', '-')}" in shown
            assert "".join(field.description.split()) in shown


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("0.1", 0.1),
        ("true", True),
        (".1", 0.1),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("+1.5e-3", 0.0015),
        (".", "."),
        ("1.2.3", "1.2.3"),
        ("٣.٤", "٣.٤"),
        ("[1, 2]", [1, 2]),
        ("quantile", "quantile"),
        ("", ""),
        ('"5"', "5"),
        ("9" * 5000, "9" * 5000),
        ("[" * 60_000, "[" * 60_000),
    ],
    ids=lambda value: str(value)[:9],
)
def test_values_are_json_or_plain_text(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize("text", ["epochs", "=5", " =5"])
def test_a_setting_without_a_name_or_a_value_is_named(text):
    with pytest.raises(UsageError, match="NAME=VALUE") as error:
        command_of(RunSpec)("--set", text)
    assert (error.value.code, error.value.field) == ("overrides", "overrides")


def test_a_settings_name_may_have_dashes_and_its_value_anything():
    call = command_of(RunSpec)
    words = ["--architectures", "gru", "--set", "batch-size=64", "--set", "calendar=a=b"]
    assert call(*words).overrides == {"batch_size": 64, "calendar": "a=b"}


@pytest.mark.parametrize(
    "words", [["--set", "epochs"], ["--set", "=5"], ["--set", "lr=1", "--set", "learning_rate=2"]]
)
def test_the_sentence_of_a_wrong_setting_names_the_option_that_was_typed(words):
    with pytest.raises(UsageError, match=r"^--set "):
        command_of(RunSpec)(*words)


@pytest.mark.parametrize("repo", ["models", "a b/c", "me/", "https://hub/me/models"])
def test_the_sentence_of_a_wrong_repository_shows_no_regular_expression(repo):
    with pytest.raises(UsageError) as caught:
        RunSpec(repo=repo)
    assert str(caught.value) == f"repo {repo!r} cannot be used: give USER/NAME of a Hub repository"


@pytest.mark.parametrize("device", ["gpu", "cuda:x"])
def test_the_sentence_of_a_wrong_device_names_those_that_are(device):
    with pytest.raises(
        UsageError, match=r"^device .* cannot be used: give auto, cpu, cuda or a GPU as in cuda:1$"
    ):
        RunSpec(device=device)


def test_settings_become_overrides_by_the_presets_names():
    call = command_of(RunSpec)
    words = (
        "--arch",
        "gru",
        "--max-epochs",
        "3",
        "--set",
        "learning_rate=0.01",
        "--set",
        "mixed_precision=false",
    )
    assert call(*words).overrides == {"epochs": 3, "lr": 0.01, "mixed_precision": False}
    assert call().overrides == {}
    for twice in (
        ["--max-epochs", "3", "--set", "epochs=3"],
        ["--set", "epochs=5", "--set", "epochs=7"],
        ["--set", "batch-size=5", "--set", "batch=5"],
    ):
        with pytest.raises(UsageError, match="given twice"):
            call("--architectures", "gru", *twice)


def test_a_wrong_name_in_a_setting_gets_the_nearest_names():
    with pytest.raises(
        UsageError, match=r"^option 'learning_rat' is unknown: choose one of learning_rate\.$"
    ):
        command_of(RunSpec)("--set", "learning_rat=1")
    with pytest.raises(UsageError, match=r"unknown: choose one of .*dropout.*horizon"):
        command_of(RunSpec)("--set", "zzz=1")


def test_the_commands_leave_out_only_what_they_cannot_use():
    commands = typer.main.get_command(_app()).commands
    for name, spec, hidden in [
        ("ingest", ScopeSpec, {"offline"}),
        ("forecast", ScopeSpec, set()),
        ("train-all", RunSpec, set()),
        ("train", TrainSpec, {"repo", "space", "private", "tail", "force", "prune", "serving"}),
        (
            "backtest",
            BacktestSpec,
            {"repo", "space", "private", "tail", "force", "prune", "wandb", "serving"},
        ),
    ]:
        assert (
            set(spec.model_fields) - {p.name for p in commands[name].params} - {*BY_SET, FILES} == hidden
        ), name
    assert BACKTEST.keys() - {p.name for p in commands["backtest"].params} - {*BY_SET, FILES} == {"tail"}
