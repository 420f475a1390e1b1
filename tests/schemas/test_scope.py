import shlex
from datetime import UTC, datetime

import pytest

from schemas.board import BoardSpec
from schemas.errors import UsageError
from schemas.forecasting import ForecastSpec
from schemas.scope import ScopeSpec, parse_instant


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01", datetime(2024, 1, 1, tzinfo=UTC)),
        ("2024-01-31", datetime(2024, 1, 31, tzinfo=UTC)),
        ("2024-01-31T12:30", datetime(2024, 1, 31, 12, 30, tzinfo=UTC)),
        ("2024-01-31T12:30:05Z", datetime(2024, 1, 31, 12, 30, 5, tzinfo=UTC)),
    ],
)
def test_instants_are_utc(text, expected):
    assert parse_instant(text, "--since") == expected


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"as_of": "2024-13-01"}, "as_of"),
        ({"as_of": "0999-01-01"}, "as_of"),
        ({"since": "2024-02", "as_of": "2024-01"}, "as_of"),
        ({"market": "moon"}, "market"),
        ({"market": "um", "source": "sim"}, "market"),
        ({"market": "sim", "source": "a/folder"}, "market"),
    ],
)
def test_what_cannot_be_names_its_option(options, field):
    with pytest.raises(UsageError) as refused:
        ScopeSpec(**options)
    assert refused.value.field == field
    assert field in str(refused.value)


def test_the_simulator_is_a_market_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    for spec in (ScopeSpec(source="sim"), ScopeSpec(market="sim")):
        assert (spec.source, spec.market) == ("sim", "sim")
        assert (spec.scope.home, spec.scope.root) == (tmp_path, tmp_path / "sim")
        assert {series.market for series in spec.scope.series} == {"sim"}
    assert ScopeSpec(market="um").scope.root == tmp_path


def test_a_title_names_coins_and_timeframes_but_not_all_fifteen():
    assert ScopeSpec(coins="BTC,ETH", timeframes="1h,15m").scope.title == "BTC, ETH 1h,15m"
    assert ForecastSpec().scope.title == "all coins"
    assert ForecastSpec(timeframes="1h").scope.title == "all coins 1h"


def test_the_options_that_a_message_names_ask_for_the_same_as_they_are_typed():
    scope = ScopeSpec(coins="BTC,ETH", timeframes="1h", market="um").scope
    assert scope.options == " --coins BTC,ETH --timeframes 1h --market um"
    assert (
        scope.model_copy(update={"market": "sim"}).options == " --coins BTC,ETH --timeframes 1h --source sim"
    )
    board = BoardSpec(coins="BTC, ETH", market="um")
    assert shlex.split(board.options) == ["--coins", "BTC, ETH", "--market", "um"]
    assert BoardSpec().options == ""
