import re
from contextlib import nullcontext
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Running, Scheduled

from flows.deploy import runs
from flows.deploy.runs import parse_parameters, run
from flows.runner import run_name_of
from flows.train_all import train_all
from schemas.errors import UsageError
from tasks.running.progress import heard_by


def test_values_are_json_where_they_can_be_else_text():
    given = [
        "coins=BTC,ETH",
        "seeds=3",
        "tail=true",
        "repo=null",
        'overrides={"epochs": 2}',
        "since=2024-01",
        "url=a=b",
        "x=",
    ]
    assert parse_parameters(given) == {
        "coins": "BTC,ETH", "seeds": 3, "tail": True, "repo": None, "overrides": {"epochs": 2}, "since": "2024-01",
        "url": "a=b", "x": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("call", "code", "field"),
    [
        (lambda: parse_parameters(["coins"]), "parameter", "param"),
        (lambda: parse_parameters(["=3"]), "parameter", "param"),
        (lambda: run("nonsense"), "deployment", "name"),
    ],
)
def test_wrong_words_are_refused_before_a_server_is_asked(call, code, field):
    with pytest.raises(UsageError) as error:
        call()
    assert (error.value.code, error.value.field) == (code, field)


@pytest.mark.parametrize(
    ("flow", "parameters", "name"),
    [
        ("train-all", {"preset": "default", "as_of": "2025-06-06"}, r"train-all · default · 2025-06-06"),
        (
            "train-all",
            {"preset": "smoke", "as_of": "2025-06-06T12:30"},
            r"train-all · smoke · 2025-06-06T12:30",
        ),
        ("train-all", {"preset": "smoke", "as_of": "soon"}, r"train-all · smoke · soon"),
        ("train-all", {"preset": "default", "as_of": None}, r"train-all · default · \d{4}-\d\d-\d\d"),
        ("forecast", {"as_of": None}, r"forecast · \d{4}-\d\d-\d\dT\d\d:\d\d"),
    ],
)
def test_a_flow_run_is_named_as_in_mlflow(flow, parameters, name):
    assert re.fullmatch(name, run_name_of(flow, parameters))
    assert train_all.flow_run_name is not None


def test_a_watched_run_is_named_and_reports_its_state_and_log_until_it_ends(monkeypatch):
    """A listener prints what is reported every 30 s, or draws it (`tests/flows/test_progress.py`)."""
    first = FlowRun(id=uuid4(), flow_id=uuid4(), name="train-all · smoke · 2025-06-06", state=Scheduled())
    later = [
        first.model_copy(update={"state": state}) for state in (Running(), Completed(message="5 members"))
    ]
    client = SimpleNamespace(
        read_flow_run=lambda _id: later.pop(0),
        read_logs=lambda *_a, **_o: [SimpleNamespace(message="trained har: 4 members")],
    )
    asked, told = [], []
    monkeypatch.setattr(runs, "run_deployment", lambda name, **given: asked.append((name, given)) or first)
    monkeypatch.setattr(runs, "get_client", lambda **_: nullcontext(client))
    monkeypatch.setattr(runs, "_server", nullcontext)
    monkeypatch.setattr(runs, "_POLL_S", 0)

    with heard_by(SimpleNamespace(progress=told.append)):
        ended = run("train-all", ["preset=smoke", "as_of=2025-06-06"], watch=True)

    assert (ended.state, ended.message, ended.exit_code) == ("Completed", "5 members", 0)
    assert asked[0][1]["flow_run_name"] == ended.name == first.name
    assert [one.facts for one in told] == [
        (f"{first.name} is {state}", "trained har: 4 members") for state in ("Running", "Completed")
    ]
