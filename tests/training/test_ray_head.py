"""Whether a cluster's head still answers, asked of a real socket."""

import socket
import time

import pytest

from tasks.training import ray_head
from tasks.training.ray_head import Head


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(ray_head, "ASK_S", 0.01)
    monkeypatch.setattr(ray_head, "SILENT_S", 0.2)


def listening(port=0):
    return socket.create_server(("127.0.0.1", port), reuse_port=True)


def lost_within(head, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if head.is_lost():
            return True
        time.sleep(0.02)
    return False


def test_a_head_that_answers_is_not_lost():
    with listening() as server:
        assert not lost_within(Head(f"127.0.0.1:{server.getsockname()[1]}"), 0.5)


def test_a_head_counts_as_lost_when_it_has_been_silent_for_long_and_not_before():
    with listening() as server:
        port = server.getsockname()[1]
        head = Head(f"127.0.0.1:{port}")
        assert not head.is_lost()
    time.sleep(0.05)
    began = time.monotonic()
    assert not head.is_lost()
    assert lost_within(head, 30)
    assert time.monotonic() - began >= 0.2


def test_time_in_which_nobody_asked_is_no_silence():
    with listening() as server:
        head = Head(f"127.0.0.1:{server.getsockname()[1]}")
        assert not head.is_lost()
    time.sleep(0.4)  # a laptop that slept
    assert not head.is_lost()


def test_a_head_that_comes_back_in_time_is_not_lost(monkeypatch):
    monkeypatch.setattr(ray_head, "SILENT_S", 60)
    with listening() as server:
        port = server.getsockname()[1]
        head = Head(f"127.0.0.1:{port}")
    assert not head.is_lost()
    assert head._silent_since is not None
    time.sleep(0.05)
    with listening(port):
        assert not head.is_lost()
    assert head._silent_since is None


def test_an_address_of_ipv6_is_understood():
    assert Head("[::1]:6379")._place == ("::1", 6379)
