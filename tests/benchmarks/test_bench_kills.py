import time
from pathlib import Path

from benchmarks import kills


def test_no_trainer_outlives_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "SPAN_S", 1.0)
    found = kills.slow(tmp_path, 2)
    assert [k.moment_s for k in found] == [0.0, 1.0]
    assert found[1].trainer_seen
    assert all(k.gone_after_s is not None for k in found)


def test_a_trainer_that_is_left_is_found_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "SPAN_S", 1.0)
    monkeypatch.setattr(kills, "LIMIT_S", 0.8)
    deaf = "import os\nos._exit = lambda code: None\n"  # what watches its parent cannot end it
    monkeypatch.setattr(kills, "SLOW_TRAINER", deaf + kills.SLOW_TRAINER)
    assert kills.slow(Path(tmp_path), 2)[1].gone_after_s is None
    time.sleep(0.1)
    assert not kills.trainers_in(tmp_path)
