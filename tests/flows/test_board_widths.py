"""The leaderboard on a terminal: columns leave from the right, a figure is never cut."""

from flows.cli.models import _fitting

HEAD = [
    "",
    "architecture",
    "preset",
    "coins",
    "CRPS ratio",
    "95 % interval",
    "verdict",
    "coins < 1",
    "MAE ratio",
    "train s",
]
ROW = [
    "15m",
    "har-universal",
    "default",
    "20 coins",
    "0.9930",
    "[0.990, 0.996]",
    "better",
    "100%",
    "0.9993",
    "34.7",
]


def test_a_wide_terminal_shows_everything():
    assert _fitting([HEAD, ROW], 160) == list(range(len(HEAD)))


def test_a_narrow_one_keeps_ratio_interval_and_verdict():
    for width in (20, 60, 80, 100):
        shown = [HEAD[i] for i in _fitting([HEAD, ROW], width)]
        assert {"", "architecture", "CRPS ratio", "95 % interval", "verdict"} <= set(shown)
        if width >= 100:
            assert "coins" in shown
        if width >= 80:
            assert sum(max(len(h), len(c)) + 3 for h, c in zip(HEAD, ROW, strict=True) if h in shown) <= width
