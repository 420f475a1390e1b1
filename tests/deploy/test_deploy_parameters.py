import pytest

from flows.deploy.runs import parse_parameters, run
from schemas.errors import UsageError


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
