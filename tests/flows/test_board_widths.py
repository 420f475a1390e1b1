"""The leaderboard on a terminal: columns leave from the right, a figure is never cut."""

import pytest

from flows.cli.models import BOARD
from flows.cli.train import _COLUMNS, _print_board
from flows.console import fitting
from schemas.errors import p_value

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
    *["34.7"] * 5,
]


HEAD = [column.title for column in BOARD]


def test_a_wide_terminal_shows_everything():
    assert fitting(BOARD, [ROW], 200) == list(range(len(BOARD)))


def test_a_narrow_one_keeps_ratio_interval_and_verdict():
    for width in (20, 60, 80, 100):
        shown = [HEAD[i] for i in fitting(BOARD, [ROW], width)]
        assert {"", "architecture", "CRPS ratio", "95 % interval", "verdict"} <= set(shown)
        if width >= 100:
            assert "coins" in shown
        if width >= 80:
            assert sum(max(len(h), len(c)) + 3 for h, c in zip(HEAD, ROW, strict=True) if h in shown) <= width


BACKTEST = ["1h", "har-universal", "0.9936", "[0.9890, 0.9983]", "no different", "<.001", *["1.0000"] * 8]


def test_the_table_of_a_backtest_fits_80_columns_with_ratio_interval_verdict_and_p():
    for width, least in ((80, 6), (100, 8), (200, 14)):
        shown = fitting(_COLUMNS, [BACKTEST], width)
        assert len(shown) >= least
        assert shown[:6] == list(range(6))
        assert sum(max(len(_COLUMNS[i].title), len(BACKTEST[i])) + 3 for i in shown) <= width - 2


@pytest.mark.parametrize(
    ("p", "shown"),
    [(0.0, "<.001"), (0.0004, "<.001"), (0.0123, ".012"), (1.0, "1.000"), (None, "-"), (float("nan"), "-")],
)
def test_a_p_value_is_never_zero(p, shown):
    assert p_value(p) == shown


def test_people_see_a_backtest_as_a_table_with_the_best_first(capsys):
    row = {
        "crps_ratio": 1.0, "interval": [0.99, 1.01], "verdict": "no different from the random walk (x)", "p": 0.0,
        "coins": 2, "coins_below_one": 0.5, "mae_ratio": 1.0, "directional_accuracy": 0.5, "coverage_80": 0.8,
        "coverage_90": 0.9, "tail_pinball_ratio": 1.0, "n": 123456,
    }  # fmt: skip
    better = row | {"crps_ratio": 0.9, "verdict": "better than the random walk (x)"}
    _print_board({"random-walk": {"1h": row}, "har": {"1h": better}})
    out = capsys.readouterr().out
    assert out.index("har ") < out.index("random-walk ")
    for text in ("better", "no different", "<.001", "[0.9900, 1.0100]", "123,456", "95 % interval"):
        assert text in out
