"""The pictures of the page: a home that is served at an earlier time is not stale there."""

import importlib.util
import json
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.tools.webapp_store import BTC, small_home

SCREENS = Path(__file__).resolve().parents[2] / "docs/_site/screens.py"


@pytest.mark.parametrize(("at", "stale"), [("2025-06-09T13:00", False), ("2025-06-19T13:00", True)])
def test_a_home_is_served_as_it_was_at_a_time(tmp_path, monkeypatch, at, stale):
    spec = importlib.util.spec_from_file_location("screens", SCREENS)
    screens = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(screens)
    monkeypatch.setenv("CPB_HOME", "")
    monkeypatch.chdir(small_home(tmp_path, BTC))
    with (
        screens.served(tmp_path / "data", datetime.fromisoformat(at).replace(tzinfo=UTC)) as url,
        urllib.request.urlopen(f"{url}/api/overview") as answer,
    ):
        (row,) = json.load(answer)["rows"]
    assert (row["stale"] is not None) is stale
