"""Whether a cluster's head still answers, asked of a real socket."""

import socket
from types import SimpleNamespace

import pytest

from tasks.training import ray_address
from tasks.training.ray_address import ASK_S, SILENT_S, Head


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The clock that a head reads; it stands still unless a test moves it."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(ray_address, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def listening(port=0):
    return socket.create_server(("127.0.0.1", port), reuse_port=True)


def test_a_head_that_answers_is_not_lost(clock):
    with listening() as server:
        head = Head(f"127.0.0.1:{server.getsockname()[1]}")
        for _ in range(5):
            assert not head.is_lost()
            clock.now += SILENT_S


def test_a_head_counts_as_lost_when_it_has_been_silent_for_long_and_not_before(clock):
    with listening() as server:
        head = Head(f"127.0.0.1:{server.getsockname()[1]}")
        assert not head.is_lost()
    clock.now += ASK_S
    assert not head.is_lost()  # silent from here on
    clock.now += SILENT_S - 0.01
    assert not head.is_lost()
    clock.now += 0.01
    assert head.is_lost()


def test_time_in_which_nobody_asked_is_no_silence(clock):
    with listening() as server:
        head = Head(f"127.0.0.1:{server.getsockname()[1]}")
        assert not head.is_lost()
    clock.now += 2 * SILENT_S  # a laptop that slept
    assert not head.is_lost()


def test_a_head_that_comes_back_in_time_is_not_lost(clock):
    with listening() as server:
        port = server.getsockname()[1]
        head = Head(f"127.0.0.1:{port}")
    assert not head.is_lost()
    assert head._silent_since is not None
    clock.now += ASK_S
    with listening(port):
        assert not head.is_lost()
    assert head._silent_since is None


def test_an_address_of_ipv6_is_understood():
    assert Head("[::1]:6379")._place == ("::1", 6379)
