"""The leaderboard on a terminal: columns leave from the right, a figure is never cut."""

import pytest

from flows.cli.models import _TABLE, BOARD
from flows.cli.train import _COLUMNS, _print_board
from flows.console import Column, fitting, print_table
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
    return sum(max(len(column.title), len(column.cell(row))) + 1 for column in columns) - 1


@pytest.mark.parametrize(("columns", "row", "least"), [(BOARD, ROW, 5), (_COLUMNS, BACKTEST, 6)])
def test_a_narrow_terminal_keeps_ratio_interval_and_verdict_and_a_wide_one_everything(columns, row, least):
    assert fitting(columns, [row], 250)[:2] == (list(columns), 3)
    for width in (20, 60, 80, 100):
        shown, gap, needed = fitting(columns, [row], width)
        assert needed == width_of(shown, row) + (gap - 1) * (len(shown) - 1)
        assert {column for column in columns if column.stays} <= set(shown)
        assert len(shown) >= least
        if width >= 80:
            assert needed <= width


@pytest.mark.parametrize(
    ("p", "shown"),
    [(0.0, "<.001"), (0.0004, "<.001"), (0.0123, ".012"), (1.0, "1.000"), (None, "-"), (float("nan"), "-")],
)
def test_a_p_value_is_never_zero(p, shown):
    assert p_value(p) == shown


TEN = [Column(f"{n} %", f"q{n}", ">", stays=n == 0) for n in range(10)]
PRICES = {f"q{n}": f"{n}04,321.5" for n in range(10)}


@pytest.mark.parametrize(("columns", "width"), [("", 80), ("200", 200), ("0", 80), ("wide", 80)])
def test_a_pipe_is_as_wide_as_columns_says_or_80(columns, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    print_table("", [Column(f"{n} %", f"q{n % 10}", ">") for n in range(40)], [PRICES])
    out, err = capsys.readouterr()
    assert width - 12 < max(map(len, out.splitlines())) <= width
    assert f"left out at {width} columns: " in err


def test_a_table_that_continues_shows_every_value_once_beside_the_columns_that_stay(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    print_table("", TEN, [PRICES], continued=True)
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 40
    assert (out.count("004,321.5"), err) == (3, "")
    assert [out.count(price) for price in PRICES.values()] == [3, *[1] * 9]


def test_no_figure_is_cut_where_even_the_columns_that_stay_are_too_wide(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    print_table("", [Column(f"{n} %", f"q{n}", ">", stays=True) for n in range(10)], [PRICES])
    assert capsys.readouterr().out.splitlines()[-2].split() == list(PRICES.values())


def test_the_champions_of_a_market_that_is_named_fit_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    row = {"series": "sim DOGEUSDT 15m", "architecture": "average-universal", "crps_ratio": 0.9936}
    row |= {"interval": "[0.9890, 0.9983]", "finding": "no different", "live": "drifted", "version": 12}
    print_table("", _TABLE, [row])
    out, err = capsys.readouterr()
    for column in _TABLE[:5]:
        assert column.cell(row) in out
    assert err.startswith("left out at 80 columns: live, version, preset, decision; ")


def test_people_see_a_backtest_as_a_table_with_the_best_first(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
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
