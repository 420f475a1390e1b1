"""A lease of the Prefect server as its holder sees it: until when it surely holds, and what tells that it was lost."""

import threading
from types import SimpleNamespace

import httpx
import pytest

from flows import prefect_server
from schemas.errors import CpbError


@pytest.fixture
def now(monkeypatch):
    clock = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(prefect_server, "clock", lambda: clock.s)
    return clock


def lease():
    return prefect_server.PrefectLease("cpb-registry-1", "id", 1000.0, "http://cpb:hunter2@head:4200/api")


def test_a_lease_that_was_not_renewed_in_time_stops_its_holder(now):
    one = lease()
    now.s += prefect_server.LEASE_S - prefect_server._MARGIN_S
    one.check()
    now.s += 1
    with pytest.raises(CpbError) as caught:  # also of a process that slept: nothing had to run meanwhile
        one.check()
    assert caught.value.code == "lease-lost"
    assert "hunter2" not in str(caught.value)
    one.until = now.s + prefect_server.LEASE_S
    one.check()


def answering(monkeypatch, *statuses):
    """Let renewals meet these statuses, 0 for a server that is away; then the holder ends."""
    left, ended = list(statuses), threading.Event()

    def renew(_id, _seconds):
        status = left.pop(0)
        if not left:
            ended.set()
        if status == 0:
            raise httpx.ConnectError("away")
        request = httpx.Request("POST", "http://head/api")
        httpx.Response(status, request=request).raise_for_status()

    class Settings:
        def __enter__(self):
            self.errors = prefect_server.api_errors("http://head:4200/api")
            self.errors.__enter__()
            return SimpleNamespace(renew_concurrency_lease=renew)

        def __exit__(self, *error):
            return self.errors.__exit__(*error)

    monkeypatch.setattr(prefect_server, "client_of_settings", lambda *_: Settings())
    monkeypatch.setattr(prefect_server, "_RENEW_S", 0.01)
    monkeypatch.setattr(prefect_server, "_POLL_S", 0.01)
    return ended, left


def test_renewals_move_the_end_and_a_server_that_is_away_for_a_moment_is_asked_again(now, monkeypatch):
    one = lease()
    ended, left = answering(monkeypatch, 0, 503, 200)
    now.s += 30
    prefect_server._renew(one, ended)
    assert left == []
    now.s += prefect_server.LEASE_S - prefect_server._MARGIN_S
    one.check()


@pytest.mark.parametrize("status", [404, 410])
def test_a_lease_that_the_server_does_not_know_any_more_is_lost_at_once(now, monkeypatch, status):
    one = lease()
    ended, left = answering(monkeypatch, status, 200)
    prefect_server._renew(one, ended)
    assert left == [200]
    with pytest.raises(CpbError):
        one.check()
