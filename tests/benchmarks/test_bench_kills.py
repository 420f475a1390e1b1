import time
from types import SimpleNamespace

import pytest

from benchmarks import kills

pytestmark = pytest.mark.slow


def kill_late_after(patch, reached):
    """Let the later moments of killing come once `reached()` holds, however slow the machine is."""

    def sleep(seconds):
        end = time.monotonic() + 60
        while seconds == kills.SPAN_S and not reached() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.1 if seconds else 0)

    patch.setattr(kills, "SPAN_S", 1.0)
    patch.setattr(kills, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))


def test_no_trainer_outlives_its_run(tmp_path, monkeypatch):
    kill_late_after(monkeypatch, lambda: kills.trainers_in(tmp_path))
    monkeypatch.setattr(kills, "LIMIT_S", 4.0)
    killed = kills.slow(tmp_path, 2)
    assert [k.moment_s for k in killed] == [0.0, 1.0]
    assert killed[1].trainer_seen
    assert all(k.gone_after_s is not None for k in killed)


def test_a_trainer_that_is_left_is_found_and_ended(tmp_path, monkeypatch):
    kill_late_after(monkeypatch, (tmp_path / "deaf").exists)
    monkeypatch.setattr(kills, "LIMIT_S", 0.8)
    deaf = (  # what watches its parent cannot end it
        f"import os, pathlib\nos._exit = lambda code: None\npathlib.Path({str(tmp_path)!r}, 'deaf').touch()\n"
    )
    monkeypatch.setattr(kills, "SLOW_TRAINER", deaf + kills.SLOW_TRAINER)
    assert kills.slow(tmp_path, 2)[1].gone_after_s is None
    end = time.monotonic() + 60
    while kills.trainers_in(tmp_path):
        assert time.monotonic() < end
        time.sleep(0.05)
