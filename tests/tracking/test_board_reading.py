"""The leaderboard reads the runs that it shows, and shows what it would if it read every run."""

import random

import pytest

from schemas.errors import CpbError
from tasks.tracking import leaderboard
from tasks.tracking.calls import search
from tasks.tracking.leaderboard import read_board
from tasks.tracking.runs import finish, log_members, start_fleet, start_parent
from tasks.tracking.tags import BOARD, KEY, KIND, MEMBER, PARENT, PRUNED
from tests.tools.tracked_members import flow, member


@pytest.fixture
def read(monkeypatch):
    """The ids of the runs that boards have read from the store."""
    ids = set()

    def noted(*arguments, **options):
        for run in search(*arguments, **options):
            ids.add(run.info.run_id)
            yield run

    monkeypatch.setattr(leaderboard, "search", noted)
    monkeypatch.setattr(leaderboard, "_FLEETS_READ", 3)
    return ids


def members_of(store, *flows):
    fleets = {f.info.run_id for flow in flows for f in search(store, f"tags.`{PARENT}` = '{flow}'")}
    return {m.info.run_id for fleet in fleets for m in search(store, f"tags.`{PARENT}` = '{fleet}'")}


def test_models_of_earlier_nights_are_not_read(store, read):
    other = flow("other", {"lstm": [1.1]})
    nights = [flow(f"night {i}", {"har": [0.9 + i / 100, 0.9], "gru": [1.0, 1.0]}) for i in range(5)]
    read.clear()

    rows = read_board()

    assert {row["flow_run"] for row in rows} == {other, nights[-1]}
    assert members_of(store, other, nights[-1]) <= read
    assert not members_of(store, *nights[:-1]) & read
    read.clear()
    assert len(read_board(nights[1])) == 2
    assert not members_of(store, nights[0], *nights[2:]) & read


def test_more_boards_than_one_filter_excludes_are_all_shown(store, read, monkeypatch):
    monkeypatch.setattr(leaderboard, "_MAX_EXCLUDED", 3)
    for turn in range(2):
        for i in range(7):
            flow(f"{turn} {i}", {f"line-{i}" if i % 2 else f"har-{i}": [0.9 + i / 100]})
    assert len(read_board()) == 7


def test_a_deleted_member_does_not_hide_the_whole_fleet_before_it(store, read):
    old, new = flow("old", {"har": [0.9, 0.8]}), flow("new", {"har": [0.7, 0.6]})
    deleted = next(m for m in search(store, f"tags.`{KIND}` = '{MEMBER}'") if m.data.tags[KEY] == "new/har/0")
    store.client.delete_run(deleted.info.run_id)
    assert {(row["flow_run"], row["coins"]) for row in read_board()} == {(old, "C0, C1"), (new, "C1")}


def history(store, seed):
    """Flows as a store may hold them: of several recipes, coins and ends of candles, failed, open, pruned."""
    choose = random.Random(seed)
    for number in range(9):
        as_of = choose.choice(["newest", None, *(f"2025-0{m}-01T00:00:00+00:00" for m in (1, 2, 3))])
        parent = start_parent(f"{seed} {number}", {}, {"as_of": as_of, "preset": "default"})
        for turn in range(choose.choice([1, 1, 2])):
            architecture = choose.choice(["har", "gru"])
            fleet = start_fleet(
                parent.run_id, architecture, f"{seed} {number} {turn}", {"recipe": choose.choice("ab")}
            )
            coins = choose.choice([["BTC"], ["BTC", "ETH"]])
            records = [
                member(
                    key=f"{seed} {number} {turn} {coin}",
                    symbol=f"{coin}USDT",
                    architecture=architecture,
                    **(
                        {"reason": "diverged", "metrics": {}}
                        if choose.random() < 0.2
                        else {"metrics": {"test_crps_ratio": choose.random()}}
                    ),
                )
                for coin in coins
            ]
            log_members(fleet.run_id, records)
            if choose.random() < 0.15:
                store.client.set_tag(fleet.run_id, PRUNED, "2025")
            if choose.random() < 0.15:
                store.client.delete_tag(fleet.run_id, BOARD)  # as logged by an earlier version
            finish(fleet.run_id)
        if choose.random() < 0.8:
            finish(parent.run_id)
        if choose.random() < 0.1:
            store.client.delete_run(parent.run_id)


def board(**filters):
    try:
        return read_board(**filters)
    except CpbError as error:
        return error.code


def every_fleet(store):
    """All that a store holds, as the reader of before."""
    flows = {}
    for run in search(store, leaderboard._FLEETS):
        if fleet := leaderboard._read_fleet(store, run, flows):
            yield fleet


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_it_is_the_board_of_all_runs(store, monkeypatch, read, seed):
    history(store, seed)
    filters = [{}, {"symbols": ["BTCUSDT"]}, {"symbols": ["ETHUSDT"], "timeframes": ["1h"]}]
    few = [board(**options) for options in filters]
    assert len(search_members(store) & read) < len(search_members(store))
    monkeypatch.setattr(leaderboard, "_newest_fleets", every_fleet)
    assert few == [board(**options) for options in filters]


def search_members(store):
    return {run.info.run_id for run in search(store, f"tags.`{KIND}` = '{MEMBER}'")}
