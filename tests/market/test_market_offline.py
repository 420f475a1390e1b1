"""Without a network: known within seconds, and the stored candles are used where there are any."""

import logging
import re
import socket
from datetime import timedelta

import pytest

from schemas.errors import CpbError, UsageError
from schemas.scope import ScopeSpec, parse_instant
from tasks.market.ingest import update_store
from tasks.market.listing import with_listed_pairs
from tasks.steps import ingest as step
from tests.tools.market_tools import build, scope

AWAY = "http://mirror.example.org"


@pytest.fixture
def filled(tmp_path):
    """A home with the candles of a mirror folder."""
    update_store(scope(tmp_path / "home", build(tmp_path / "mirror", ["BTCUSDT"]), "BTC"))
    return tmp_path / "home"


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_args, **_options):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_offline_a_damaged_manifest_is_named_and_left_as_it_is(filled):
    manifest = filled / "manifest.db"
    manifest.write_bytes(b"no database" * 500)
    with pytest.raises(CpbError, match="manifest"):
        update_store(scope(filled, filled.parent / "mirror", "BTC").model_copy(update={"offline": True}))
    assert manifest.read_bytes() == b"no database" * 500


def test_offline_a_series_with_a_deleted_month_fails_and_the_others_go_on(tmp_path):
    online = scope(tmp_path / "home", build(tmp_path / "mirror", ["BTCUSDT", "ETHUSDT"]), "BTC,ETH")
    update_store(online)
    months = sorted(tmp_path.glob("home/klines/interval=1h/symbol=ETHUSDT/*.parquet"))
    months[len(months) // 2].unlink()
    report = update_store(online.model_copy(update={"offline": True}))
    status = {series.series.symbol: (series.status, series.reason) for series in report.series}
    assert status["BTCUSDT"] == ("complete", "")
    assert status["ETHUSDT"][0] == "failed"
    assert f"{months[len(months) // 2].name} is damaged (it is missing)" in status["ETHUSDT"][1]
    alone = scope(tmp_path / "home", tmp_path / "mirror", "ETH").model_copy(update={"offline": True})
    assert [series.status for series in update_store(alone).series] == ["failed"]
    assert update_store(online).exit == 0
    assert months[len(months) // 2].exists()


def test_a_folder_says_that_it_has_no_tail(filled):
    report = update_store(scope(filled, filled.parent / "mirror", "BTC"), tail=True)
    assert report.notes == [f"no tail: {filled.parent / 'mirror'} has no REST API"]


def test_offline_gives_the_stored_series_and_asks_nobody(filled, no_network):
    online = scope(filled, filled.parent / "mirror", "BTC")
    before = update_store(online)
    report = update_store(online.model_copy(update={"offline": True, "source": AWAY}))
    assert (report.requests, report.exit) == (0, before.exit)
    assert [(s.rows, s.digest, s.status) for s in report.series] == [
        (s.rows, s.digest, s.status) for s in before.series
    ]
    assert report.notes[0].startswith("stored candles are used, the newest closed 20")


def test_offline_and_as_of_give_the_age_at_that_time(filled, no_network):
    newest = update_store(scope(filled, AWAY, "BTC").model_copy(update={"offline": True})).notes[0]
    closed = parse_instant(re.search(r"closed (\S+) ", newest)[1].removesuffix("Z")[:16], "as_of")
    then = {"offline": True, "as_of": closed + timedelta(hours=3)}
    said = update_store(scope(filled, AWAY, "BTC").model_copy(update=then)).notes[0]
    assert said.endswith("(3 h before as_of)")


def test_a_series_without_candles_fails_alone_offline(filled):
    report = update_store(scope(filled, AWAY, "BTC,ETH").model_copy(update={"offline": True}))
    assert [s.status == "failed" for s in report.series] == [False, True]
    assert "offline no source is read" in report.series[1].reason


def test_where_the_source_is_away_the_step_uses_what_is_stored_and_says_its_age(filled, no_network, caplog):
    with caplog.at_level(logging.WARNING, "cpb"):
        ingested = step.fn(scope(filled, AWAY, "BTC"))
    assert [str(series) for series in ingested.series] == ["BTCUSDT 1h"]
    assert "cannot be reached" in caplog.text
    assert "the newest closed" in caplog.text
    assert " before as_of)" in caplog.text


def test_the_error_without_candles_says_so(filled, no_network):
    with pytest.raises(CpbError, match="no candle of ETH at 1h is stored") as away:
        step.fn(scope(filled, AWAY, "ETH"))
    assert away.value.code == "unreachable"
    with pytest.raises(CpbError, match="no candle of ETH at 1h is stored") as offline:
        step.fn(scope(filled, AWAY, "ETH").model_copy(update={"offline": True}))
    assert offline.value.code == "not-stored"


def test_offline_reads_no_listing():
    with pytest.raises(UsageError, match="listing") as caught:
        with_listed_pairs(ScopeSpec(coins="exchange", offline=True), print)
    assert caught.value.field == "offline"
