"""The whole job by both engines, small."""

import argparse
import os
from importlib.util import find_spec

import pytest

from benchmarks.engines import engines

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")]


def test_both_engines_do_the_job(monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED", "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # put back at the end
    asked = argparse.Namespace(
        source="sim",
        coins="BTC",
        timeframes="1h",
        since="2025-03",
        as_of="2025-06-06",
        preset="smoke",
        repeats=1,
    )
    told = engines(asked)
    assert told["ray / local"] == pytest.approx(told["ray_s"] / told["local_s"])
    assert told["local_s"] > 1
