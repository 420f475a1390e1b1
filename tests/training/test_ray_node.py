"""What a node refuses, and what the board keeps; without a cluster."""

import logging

import pytest

from schemas.errors import CpbError
from tasks.training import ray_node
from tasks.training.ray_board import Board
from tasks.training.ray_node import Order, difference, train_on_node, versions


class Sent:
    """A board whose methods note what they are called with."""

    def __init__(self):
        self.said = []
        for name in ("start", "progress", "line"):
            setattr(self, name, self)

    def remote(self, *given):
        self.said.append(given)


def order(home, **changes):
    values = {
        "key": "sim/fleets/0123456789abcdef", "home": str(home), "store": None, "versions": versions(), "threads": 1,
        "gpu": False, "timeout_s": 60.0, "again": True,
    }  # fmt: skip
    return Order(**values | changes)


def test_a_node_that_does_not_see_the_home_says_what_to_do(tmp_path):
    board = Sent()
    with pytest.raises(CpbError, match=r"does not see CPB_HOME .*: set CPB_STORE") as caught:
        train_on_node(order(tmp_path / "elsewhere"), board)
    assert (caught.value.code, caught.value.field) == ("home-not-seen", "CPB_STORE")
    assert board.said == [("sim/fleets/0123456789abcdef",)]
    assert not (tmp_path / "elsewhere").exists()


def test_a_node_with_other_versions_trains_nothing(tmp_path):
    board = Sent()
    others = versions() | {"torch": "1.0", "python": "2.7"}
    with pytest.raises(CpbError, match=r"has torch .* instead of 1\.0; python .* instead of 2\.7") as caught:
        train_on_node(order(tmp_path, versions=others), board)
    assert caught.value.code == "versions"
    assert not board.said
    assert difference(versions(), versions()) == ""


def test_builds_of_one_torch_for_cpu_and_gpu_are_equal(monkeypatch):
    found = {}
    for build in ("2.9.1+cpu", "2.9.1+cu130"):
        monkeypatch.setattr(ray_node, "version", lambda name, build=build: build if name == "torch" else "1")
        found[build] = versions()
    assert found["2.9.1+cpu"] == found["2.9.1+cu130"]


def test_what_cpb_logs_on_a_node_reaches_the_board(tmp_path):
    board = Sent()
    reports = ray_node._Reports(board, "k")
    with reports.hearing_log():
        logging.getLogger("cpb").info("waiting for %s", "a GPU")
    logging.getLogger("cpb").info("not of this shard")
    ((key, level, text),) = board.said
    assert (key, level) == ("k", logging.INFO)
    assert text.endswith(": waiting for a GPU")


def test_the_board_keeps_every_line_and_the_newest_progress():
    board = Board()
    board.start("a")
    for share in (0.1, 0.2):
        board.progress("a", {"share": share})
        board.line("a", logging.WARNING, f"{share}")
    board.start("b")
    found = board.take()
    assert found["b"] == [("start", None)]
    assert found["a"][0] == ("start", None)
    assert [value for kind, value in found["a"] if kind == "progress"] == [{"share": 0.2}]
    assert [value[1] for kind, value in found["a"] if kind == "line"] == ["0.1", "0.2"]
    assert board.take() == {}
