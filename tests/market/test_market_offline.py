"""Without a network: known within seconds, and the stored candles are used where there are any."""

import logging
import re
import socket
import threading
import time
from datetime import timedelta

import pytest
from market_tools import build, scope

from schemas.errors import CpbError, UsageError
from schemas.scope import ScopeSpec, parse_instant
from tasks.ingest import ingest as step
from tasks.market import reach
from tasks.market.client import HttpSource, Limits
from tasks.market.faults import Unreachable
from tasks.market.ingest import ingest
from tasks.market.pairs import with_listed_pairs

AWAY = "http://mirror.example.org"


@pytest.fixture
def filled(tmp_path):
    """A home with the candles of a mirror folder."""
    ingest(scope(tmp_path / "home", build(tmp_path / "mirror", ["BTCUSDT"]), "BTC"))
    return tmp_path / "home"


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_args, **_options):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(reach.socket, "getaddrinfo", refuse)
    monkeypatch.setattr(reach, "_PAUSE_S", 0)


def test_offline_gives_the_stored_series_and_asks_nobody(filled, no_network):
    online = scope(filled, filled.parent / "mirror", "BTC")
    known = ingest(online)
    found = ingest(online.model_copy(update={"offline": True, "source": AWAY}))
    assert (found.requests, found.exit) == (0, known.exit)
    assert [(s.rows, s.digest, s.status) for s in found.series] == [
        (s.rows, s.digest, s.status) for s in known.series
    ]
    assert found.notes[0].startswith("stored candles are used, the newest closed 20")


def test_offline_and_as_of_give_the_age_at_that_time(filled, no_network):
    newest = ingest(scope(filled, AWAY, "BTC").model_copy(update={"offline": True})).notes[0]
    closed = parse_instant(re.search(r"closed (\S+) ", newest)[1].removesuffix("Z")[:16], "as_of")
    then = {"offline": True, "as_of": closed + timedelta(hours=3)}
    said = ingest(scope(filled, AWAY, "BTC").model_copy(update=then)).notes[0]
    assert said.endswith("(3 h before as_of)")


def test_a_series_without_candles_fails_alone_offline(filled):
    found = ingest(scope(filled, AWAY, "BTC,ETH").model_copy(update={"offline": True}))
    assert [s.status == "failed" for s in found.series] == [False, True]
    assert "offline no source is read" in found.series[1].reason


def test_where_the_source_is_away_the_step_uses_what_is_stored_and_says_its_age(filled, no_network, caplog):
    with caplog.at_level(logging.WARNING, "cpb"):
        found = step.fn(scope(filled, AWAY, "BTC"))
    assert [str(one) for one in found.series] == ["BTCUSDT 1h"]
    assert "cannot be reached" in caplog.text
    assert "the newest closed" in caplog.text
    assert " before as_of)" in caplog.text


def test_the_error_without_candles_says_what_is_stored(filled, no_network):
    with pytest.raises(CpbError, match="holds BTC at 1h") as away:
        step.fn(scope(filled, AWAY, "ETH"))
    assert away.value.code == "unreachable"
    with pytest.raises(CpbError, match="holds BTC at 1h") as offline:
        step.fn(scope(filled, AWAY, "ETH").model_copy(update={"offline": True}))
    assert offline.value.code == "not-stored"


def test_offline_reads_no_listing():
    with pytest.raises(UsageError, match="listing") as caught:
        with_listed_pairs(ScopeSpec(coins="exchange", offline=True))
    assert caught.value.field == "offline"


def test_a_lookup_that_hangs_is_waited_for_once(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(reach.socket, "getaddrinfo", lambda *_a, **_o: [] if released.wait(60) else None)
    source = HttpSource(AWAY, "http://bucket.example.org", limits=Limits(reach=0.05))
    began = threading.active_count()
    for _ in range(50):  # every later request knows it
        with pytest.raises(Unreachable, match=r"no connection within 0\.05 s"):
            source.get("x")
    assert source.requests == 0
    assert threading.active_count() - began == 2  # a thread per host, for the first request alone
    released.set()


def test_one_address_that_answers_is_enough(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port)) for name in ("192.0.2.1", "127.0.0.1")
        ]
        monkeypatch.setattr(reach.socket, "getaddrinfo", lambda *_a, **_o: addresses)
        monkeypatch.setattr(
            reach.socket, "create_connection", _blackhole_but_loopback(socket.create_connection)
        )
        assert reach.no_connection([("host.example.org", port), ("192.0.2.9", port)], 30) == ""


def _blackhole_but_loopback(connect):
    def connected(address, timeout):
        if not address[0].startswith("127."):
            time.sleep(timeout)  # longer than the test: its thread is not waited for
            raise TimeoutError
        return connect(address, timeout)

    return connected


def test_a_refusal_is_tried_twice(monkeypatch):
    monkeypatch.setattr(reach, "_PAUSE_S", 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = free.getsockname()
    assert "refused after 2 tries" in reach.no_connection([place], 30)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://a.example", ("a.example", 443)),
        ("http://user:secret@a.example:8080/x", ("a.example", 8080)),
        ("socks5://b.example", ("b.example", 1080)),
        ("b.example:3128", ("b.example", 3128)),
        ("http://a.example:x", None),
    ],
)
def test_the_place_of_a_server_or_proxy(url, place):
    assert reach.place_of(url) == place
