"""Any part of the home may be a link to a folder on another disk, across which nothing can be renamed."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from stored_home import LATER, MARKET, hour, spec

from flows.forecast import run_forecast
from flows.runner import Runner
from flows.train_all import run_train_all
from tasks.steps import publish
from tasks.verify import verify_all

SHM = Path("/dev/shm")
LINKED = [
    ("klines", "features", "forecasts", "hub"), ("fleets", "ledger"), ("quarantine",), (".",),
]  # fmt: skip
"""Parts that exchange files are never linked together: a rename between them would then cross no disk."""


@pytest.fixture
def other_disk(tmp_path):
    """A folder on another file system, where this machine has one that can be written to."""
    if not os.access(SHM, os.W_OK) or SHM.stat().st_dev == tmp_path.stat().st_dev:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=SHM) as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    "parts",
    [parts if parts is LINKED[0] else pytest.param(parts, marks=pytest.mark.slow) for parts in LINKED],
    ids=",".join,
)
def test_parts_of_the_home_lie_on_another_disk(stored, other_disk, parts):
    places = {stored / MARKET / part: other_disk / f"elsewhere-{part.strip('.')}" for part in parts}
    for place, target in places.items():
        if place.exists():
            shutil.move(place, target)
        else:
            target.mkdir()
        place.symlink_to(target)
    assert run_train_all(spec(LATER), Runner(), lambda _: None).exit_code == 0
    assert run_forecast(hour(LATER), Runner(), lambda _: None)["exit"] == 0
    publish(MARKET)
    assert verify_all(stored, (MARKET,)).is_good
    for place, target in places.items():
        assert place.is_symlink()
        assert place.resolve() == target
        assert not [
            path for path in (*place.parent.iterdir(), *other_disk.iterdir()) if path.name.startswith(".hub")
        ]
        place.unlink()  # so that the next test's home can be put in place of this one
