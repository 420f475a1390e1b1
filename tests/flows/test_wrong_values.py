"""A wrong value is one sentence, the same from the command line, a flow's parameters and Python, before any request."""

import json
import socket
from datetime import UTC, datetime, timedelta

import pytest

from flows.cli.options import BY_SET
from flows.prefect import flow_parameters
from schemas import scope
from schemas.backtesting import BacktestSpec
from schemas.errors import UsageError
from schemas.run import RunSpec
from schemas.scope import IngestSpec, ScopeSpec

AHEAD = f"{datetime.now(UTC) + timedelta(days=2):%Y-%m-%d}"

WRONG = [
    ("train-all", {"device": "gpuu"}, "device"),
    ("train-all", {"preset": "nope"}, "preset"),
    ("train-all", {"profile": "zzz"}, "profile"),
    ("train-all", {"dtype": "float7"}, "dtype"),
    ("train-all", {"market": "options"}, "market"),
    ("train-all", {"timeframes": "7m"}, "timeframes"),
    ("train-all", {"timeframes": "1mo"}, "timeframes"),
    ("train-all", {"coins": ","}, "coins"),
    ("train-all", {"coins": "BTC,../etc"}, "coins"),
    ("train-all", {"as_of": "yesterday"}, "as_of"),
    ("train-all", {"since": "2024-13"}, "since"),
    ("train-all", {"since": "2024-03", "as_of": "2024-01"}, "as_of"),
    ("train-all", {"architectures": "arima"}, "architectures"),
    ("train-all", {"preset": "seed-lstm", "architectures": "gru"}, "preset"),
    ("train-all", {"seeds": 0}, "seeds"),
    ("train-all", {"seeds": "many"}, "seeds"),
    ("train-all", {"seed": -1}, "seed"),
    ("train-all", {"train_timeout_s": 0}, "train_timeout_s"),
    ("train-all", {"repo": "no-slash"}, "repo"),
    ("train-all", {"repo": "user/two..dots"}, "repo"),  # the Hub refuses it with a regular expression
    ("train-all", {"private": True}, "private"),
    ("train-all", {"overrides": {"epochs": 0}}, "overrides"),
    ("train-all", {"overrides": {"epoch": 5}}, "overrides"),
    ("train-all", {"architectures": "linear", "overrides": {"hidden_dim": 8}}, "overrides"),
    ("train-all", {"source": "sim", "market": "um"}, "market"),
    ("train-all", {"source": "/mirror", "market": "sim"}, "market"),
    ("train-all", {"source": "ftp://mirror"}, "source"),
    ("train-all", {"source": "http://user:hunter2@mirror:notaport"}, "source"),
    ("train-all", {"source": "https://user:hunt/er2@mirror:80/x"}, "source"),
    ("ingest", {"source": "http://:80/x"}, "source"),
    ("forecast", {"source": "http://[::1"}, "source"),
    ("train-all", {"as_of": AHEAD}, "as_of"),
    ("forecast", {"tail": True, "offline": True}, "tail"),
    ("ingest", {"as_of": AHEAD, "source": "sim"}, "as_of"),
    ("backtest", {"since": AHEAD}, "since"),
    ("forecast", {"as_of": "soon"}, "as_of"),
    ("ingest", {"since": "soon"}, "since"),
    ("backtest", {"folds": 25}, "folds"),
    ("backtest", {"preset": "seed-lstm", "architectures": "gru-universal"}, "preset"),
]
SPECS = {"train-all": RunSpec, "forecast": ScopeSpec, "ingest": IngestSpec, "backtest": BacktestSpec}


def words(values):
    for name, value in values.items():
        if name in BY_SET:
            yield f"--set={name}={value}"
        elif name == "overrides":
            yield from (f"--set={key}={json.dumps(setting)}" for key, setting in value.items())
        else:
            yield f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")


def sentence_of(call):
    with pytest.raises(UsageError) as error:
        call()
    assert error.value.exit_code == 2
    return str(error.value), error.value.code, error.value.field


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A machine on which any connection fails the test; the store does not exist and must not afterwards."""
    home = tmp_path / "home"
    monkeypatch.setenv("CPB_HOME", str(home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was opened"))
    yield
    assert not home.exists()
    assert not (tmp_path / "runs.db").exists()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("command", "values", "field"), WRONG, ids=lambda value: json.dumps(value))
def test_the_same_wrong_value_is_the_same_sentence_three_ways(command, values, field, monkeypatch, cpb_here):
    spec = SPECS[command]
    now = datetime.now(UTC)  # sentences name the minute
    monkeypatch.setattr(
        scope, "datetime", type("Clock", (datetime,), {"now": staticmethod(lambda _zone: now)})
    )
    from_python = sentence_of(lambda: spec(**values))
    assert from_python == sentence_of(lambda: flow_parameters(spec)(lambda spec: spec)(**values))
    assert from_python[2] == field

    exit_code, out, err = cpb_here(command, *words(values), "--json")
    sentence, code, _ = from_python
    assert err == f"cpb: {sentence}\n"
    assert json.loads(out) == {"error": sentence, "code": code, "field": field, "exit": exit_code}
    assert exit_code == 2
    assert "\n" not in sentence
    assert "--" not in sentence
    assert "hunt" not in out + err
    # It names what was typed: the value, of a list the wrong part, of a URL, which may hold a password, the scheme.
    typed = [part for v in values.values() for part in (str(v), *str(v).partition("://")[0].split(","))]
    is_text = isinstance(next(iter(values.values())), str)
    assert any(text in sentence for text in typed if text) or not is_text


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("seeds", "many", "a whole number"),
        ("seed", 2.5, "a whole number"),
        ("train_timeout_s", "much", "a number"),
        ("wandb", "perhaps", "true or false"),
    ],
)
def test_a_value_of_another_kind_is_told_what_was_wanted(field, value, wanted):
    with pytest.raises(UsageError, match=rf"^{field} {value!r} cannot be read: give {wanted}$"):
        RunSpec(coins="exchange", **{field: value})


def test_the_end_of_today_is_not_ahead_of_the_clock():
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}"
    assert ScopeSpec(as_of=tomorrow).scope.as_of is not None


def test_a_value_that_is_none_of_a_few_is_told_in_plain_words(cpb_here):
    code, _, said = cpb_here("deploy", "up", "--host", "example.com")
    assert code == 2
    assert said.startswith(
        "cpb: invalid value for '--host': 'example.com' is not one of '127.0.0.1', '0.0.0.0'; see"
    )
