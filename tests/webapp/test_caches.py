"""What the service keeps is bounded by what exists, and no answer waits for a store that is being written."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from schemas.errors import CpbError, MemberError
from tasks.tracking import leaderboard
from tasks.tracking.decisions import keep_decision
from tasks.tracking.store import open_store, read_store
from tasks.tracking.store_errors import UNUSABLE
from tests.tools.page_service import client_of
from tests.tools.webapp_store import BTC, decision, fill, small_home
from webapp import all_series, cache, figures, store_cache

QUIET = threading.Event()


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def counted(monkeypatch):
    """Count the calls of a function of a module."""
    calls = []

    def patch(module, name):
        original = getattr(module, name)

        def noted(*arguments, **options):
            calls.append(arguments)
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, noted)
        return calls

    return patch


def test_options_that_a_route_does_not_know_tell_no_answers_apart(tmp_path, monkeypatch, counted):
    monkeypatch.chdir(small_home(tmp_path, BTC))
    calls = counted(all_series, "health")
    with client_of(tmp_path) as client:
        client.get("/healthz")
        monkeypatch.setattr(cache, "_CHECK_S", 3600)
        calls.clear()
        first = client.get("/healthz").json()
        for number in range(20):
            assert client.get(f"/healthz?{'x' * 5000}{number}=1&limit={number}").json() == first
    assert len(calls) <= 1


def test_options_that_a_route_knows_are_told_apart_in_any_order(client, monkeypatch):
    monkeypatch.setattr(cache, "_CHECK_S", 3600)
    ask = {"limit": "2", "market": "spot"}
    one = client.get("/api/candles/BTC/1h", params=ask).json()
    assert client.get("/api/candles/BTC/1h", params=dict(reversed(ask.items()))).json() == one
    assert len(client.get("/api/candles/BTC/1h?limit=3").json()["candles"]) == 3
    prices = [client.get(f"/api/touch/BTC/1h?price={a}&price={b}") for a, b in ((1, 2), (2, 1), (1, 2))]
    assert prices[0].json() == prices[2].json()


def test_kept_answers_are_bounded_with_their_keys_and_objects(tmp_path, monkeypatch, counted):
    monkeypatch.chdir(small_home(tmp_path, BTC))
    monkeypatch.setattr(cache, "_ANSWER_BYTES", 6 * cache._RESPONSE_BYTES)
    calls = counted(figures, "compare")
    with client_of(tmp_path) as client:
        client.get("/healthz")
        monkeypatch.setattr(cache, "_CHECK_S", 3600)
        for _turn in range(2):
            for name in "abcdefgh":
                assert client.get(f"/api/figures/compare?models=har,{name * 100}").status_code == 200
    assert len(calls) == 16


def test_what_is_not_there_is_not_kept(client, monkeypatch):
    store_cache._results.clear()
    for number in range(5):
        run = f"{number:032x}"
        assert client.get(f"/api/figures/losses/{run}").status_code == 404
        assert "there is no run" in client.get(f"/api/leaderboard?run={run}").json()["note"]
        assert client.get(f"/api/models/NONE{number}/1h").status_code == 404
    assert {key[1:] for key in store_cache._results} <= {("members",), ("champions",), ("runs",)}


def test_results_of_files_are_forgotten_when_files_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rows in (200, 210, 220):
        fill(tmp_path / "data", BTC, rows=rows)
        cache.drop_changed(tmp_path / "data")
        all_series.health(tmp_path / "data")
        assert [
            len(function.cache) for function in cache._cached_functions if function.__name__ == "all_stored"
        ] == [1]


def test_the_number_of_results_is_bounded(own_folder, monkeypatch):
    monkeypatch.setattr(store_cache, "_MAX_RESULTS", 3)
    for number in range(9):
        assert store_cache.cached("number", lambda store, number: number, number)[0] == number
    assert len(store_cache._results) == 3


def test_an_answer_does_not_wait_while_the_store_is_read_anew(own_folder, monkeypatch):
    store, begun, go_on = open_store(), threading.Event(), threading.Event()
    keep_decision(store, decision(0))
    with client_of(own_folder) as client:

        def newest():
            return client.get("/api/decisions/BTC/1h").json()["decisions"][0]["outcome"]

        assert newest() == "kept"
        assert client.get("/api/leaderboard").json()["rows"]
        original = leaderboard.read_members

        def slow(*arguments):
            begun.set()
            assert go_on.wait(60)
            return original(*arguments)

        for result in [r for key, r in store_cache._results.items() if key[1] == "members"]:
            result.read = slow
        keep_decision(store, decision(2, "switched"))
        assert begun.wait(60)
        assert newest() == "kept"
        assert client.get("/api/leaderboard").json()["rows"]
        tokens = client.get("/api/changes").json()
        go_on.set()
        until(lambda: newest() == "switched")
        assert client.get("/api/changes").json()["board"] != tokens["board"]


def test_a_store_that_cannot_be_read_any_more_leaves_the_last_answer_with_its_age(
    own_folder,
    monkeypatch,
):
    with client_of(own_folder) as client:
        for path in ("/api/overview", "/api/runs"):
            assert client.get(path).json()["note"] is None
        before = client.get("/api/leaderboard").json()
        assert (len(before["rows"]) > 0, before["note"]) == (True, None)

        def broken(*_, **__):
            raise CpbError("the MLflow store x cannot be used: it is gone", code=UNUSABLE)

        monkeypatch.setattr(store_cache, "read_store", broken)
        for result in store_cache._results.values():
            result.token, result.read_at = "", datetime.now(UTC) - timedelta(minutes=7)
        until(lambda: client.get("/api/leaderboard").json()["note"])
        body = client.get("/api/leaderboard").json()
        assert body["rows"] == before["rows"]
        assert "UTC, 7 minutes ago: the MLflow store x cannot be used: it is gone" in body["note"]
        for path in ("/api/overview", "/api/runs"):
            assert "7 minutes ago" in client.get(path).json()["note"]
        monkeypatch.setattr(store_cache, "read_store", read_store)
        until(lambda: client.get("/api/leaderboard").json()["note"] is None)


def test_a_store_that_cannot_be_read_at_first_is_not_asked_by_every_request(own_folder, monkeypatch):
    asked = []

    def broken(*_, **__):
        asked.append(1)
        raise CpbError("the MLflow store x cannot be used: it is gone", code=UNUSABLE)

    monkeypatch.setattr(store_cache, "read_store", broken)
    for _ in range(5):
        with pytest.raises(CpbError, match="it is gone"):
            store_cache.cached("members", leaderboard.read_members)
    assert len(asked) == 1


def test_a_fault_of_ours_stops_no_refreshing(own_folder, monkeypatch):
    values = iter([1])
    store_cache.cached("broken", lambda store: next(values))
    store_cache._results[store_cache._address(), "broken"].token = ""
    store_cache.refresh(QUIET)
    value, note = store_cache.cached("broken", None)
    assert (value, "StopIteration" in note) == (1, True)


def test_one_request_of_many_reads_and_errors_about_arguments_are_its_answer(own_folder):
    reads, barrier = [], threading.Barrier(4)

    def slow(store):
        reads.append(1)
        time.sleep(0.1)
        return len(reads)

    def ask():
        barrier.wait()
        values.append(store_cache.cached("slow", slow)[0])

    values = []
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (values, len(reads)) == ([1] * 4, 1)

    def unknown(store, name):
        raise MemberError(f"{name} is unknown")

    with pytest.raises(MemberError, match="it is unknown"):
        store_cache.cached("unknown", unknown, "it")
    assert len(store_cache._results) == 1


def test_what_nobody_asks_for_is_read_no_more(own_folder, monkeypatch):
    store_cache.cached("number", lambda store: 1)
    store_cache.refresh(QUIET)
    assert len(store_cache._results) == 1
    monkeypatch.setattr(store_cache, "_UNUSED_S", -1)
    store_cache.refresh(QUIET)
    assert len(store_cache._results) == 0
