"""The leaderboard on a terminal: columns leave from the right, a figure is never cut."""

import pytest

from flows.cli.models import BOARD
from flows.cli.train import _COLUMNS, _print_board
from flows.console import fitting
from schemas.errors import p_value

ROW = {
    "place": "15m",
    "architecture": "har-universal",
    "preset": "default",
    "trained": "20 coins",
    "crps_ratio": 0.993,
    "interval": "[0.9900, 0.9960]",
    "verdict": "better",
    "better_share": 1.0,
    "mae_ratio": 0.9993,
    "directional_accuracy": 0.5,
    "coverage_80": 0.8,
    "windows_per_s": 1234,
    "train_seconds": 3.1,
    "rss_peak_mb": 300,
}
BACKTEST = {
    "timeframe": "1h",
    "model": "har-universal",
    "crps_ratio": 0.9936,
    "interval": "[0.9890, 0.9983]",
    "finding": "no different",
    "p": "<.001",
}


def width_of(columns, row):
    return sum(max(len(column.title), len(column.cell(row))) + 3 for column in columns)


@pytest.mark.parametrize(("columns", "row", "least"), [(BOARD, ROW, 5), (_COLUMNS, BACKTEST, 6)])
def test_a_narrow_terminal_keeps_ratio_interval_and_verdict_and_a_wide_one_everything(columns, row, least):
    assert fitting(columns, [row], 200) == list(columns)
    for width in (20, 60, 80, 100):
        shown = fitting(columns, [row], width)
        assert {column for column in columns if column.stays} <= set(shown)
        assert len(shown) >= least
        if width >= 80:
            assert width_of(shown, row) <= width - 2


@pytest.mark.parametrize(
    ("p", "shown"),
    [(0.0, "<.001"), (0.0004, "<.001"), (0.0123, ".012"), (1.0, "1.000"), (None, "-"), (float("nan"), "-")],
)
def test_a_p_value_is_never_zero(p, shown):
    assert p_value(p) == shown


def test_people_see_a_backtest_as_a_table_with_the_best_first(capsys):
    row = {
        "crps_ratio": 1.0,
        "interval": [0.99, 1.01],
        "verdict": "no different from the random walk (x)",
        "p": 0.0,
        "coins": 2,
        "coins_below_one": 0.5,
        "mae_ratio": 1.0,
        "directional_accuracy": 0.5,
        "coverage_80": 0.8,
        "coverage_90": 0.9,
        "tail_pinball_ratio": 1.0,
        "n": 123456,
    }
    better = row | {"crps_ratio": 0.9, "verdict": "better than the random walk (x)"}
    _print_board({"random-walk": {"1h": row}, "har": {"1h": better}})
    out = capsys.readouterr().out
    assert out.index("har ") < out.index("random-walk ")
    for text in ("better", "no different", "<.001", "[0.9900, 1.0100]", "123,456", "95 % interval"):
        assert text in out
