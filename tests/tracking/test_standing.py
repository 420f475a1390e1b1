"""Which model stands for a series, an architecture and a recipe: the same one in figures and lists."""

import pytest

from tasks.tracking.judged_models import judged_models
from tasks.tracking.leaderboard import coin_ratios, read_board, read_members
from tasks.tracking.runs import finish, log_members, log_metrics, start_fleet, start_parent
from tests.tools.tracked_members import member

SPANS = {year: [f"{year}-01-01T00:00:00Z", f"{year}-06-01T00:00:00Z"] for year in ("2024", "2025")}


def trained(key, ratios, as_of, recipe="default", span="2025"):
    """A run of gru on the first coins; returns the models' series."""
    parent = start_parent(key, {"market": "spot"}, {"preset": "default", "as_of": as_of})
    fleet = start_fleet(parent.run_id, "gru", f"{key}/gru", {"recipe": recipe})
    records = [
        member(
            key=f"{key}/{i}",
            symbol=f"C{i}USDT",
            as_of=as_of,
            metrics={"test_crps_ratio": v},
            preset="default",
            config={"bounds": {"test": SPANS[span]}},
        )
        for i, v in enumerate(ratios)
    ]
    log_members(fleet.run_id, records)
    log_metrics(fleet.run_id, {"pooled_crps_ratio_1h": sum(ratios) / len(ratios)})
    finish(fleet.run_id)
    finish(parent.run_id)
    return [record.model.series for record in records]


@pytest.fixture
def several(store):
    """All coins on old candles; one coin on newer ones; another recipe; then a run on candles of long ago."""
    series = trained("whole", [0.9, 0.91], "2025-06-01T00:00:00+00:00")
    trained("part", [0.8], "2025-06-05T00:00:00+00:00")
    trained("changed", [2.0, 2.1], "2025-06-03T00:00:00+00:00", recipe="default+0a1b2c3d")
    trained("past", [1.5, 1.5], "2024-06-01T00:00:00+00:00", span="2024")
    return store, series


def test_figures_and_the_list_of_a_series_have_the_same_models(several):
    store, series = several
    rows = coin_ratios(read_members(store), read_board())
    for listed_series in series:
        listed = {
            (m.preset, m.metrics["test_crps_ratio"], m.test_span)
            for m in judged_models(store, listed_series, read_members(store))
        }
        drawn = {
            (r["preset"], r["crps_ratio"], r["test_span"])
            for r in rows
            if r["symbol"] == listed_series.symbol
        }
        assert listed == drawn
    assert {(r["symbol"], r["preset"], r["crps_ratio"]) for r in rows} == {
        ("C0USDT", "default", 0.8),
        ("C1USDT", "default", 0.91),
        ("C0USDT", "default+0a1b2c3d", 2.0),
        ("C1USDT", "default+0a1b2c3d", 2.1),
    }
    assert {r["test_span"] for r in rows} == {"/".join(SPANS["2025"])}
