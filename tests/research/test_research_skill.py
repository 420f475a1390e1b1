"""The table of what `average` gains: its goals, the coins that count, and what more frequent refits bring."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from cpbmodels import Series
from cpbmodels.data.figures import EMBARGO
from research import skill
from tasks.storage.records import write_npz

DAY_US = 86_400_000_000
MODELS = ("har", "line", "walk", "har + line", "har + walk", "B1")


def write_months(folder, months, gains, coins=("AUSDT", "BUSDT"), inside=(0.8, 0.9), seed=0):
    """Losses at every hour of so many months from June 2022; `gains`: of a model over `har`, by coin."""
    random = np.random.default_rng(seed)
    for start, end in list(skill.months(skill.PLANS["1h"]))[:months]:
        hours = np.arange(round((end - start).total_seconds() / 3600)) * 3_600_000_000 + round(
            start.timestamp() * 1e6
        )
        time = np.tile(hours, len(coins))
        coin = np.repeat(np.arange(len(coins)), len(hours))
        level = np.array([0.001, 1.0])[coin] * random.lognormal(0, 0.2, len(time))
        rows = {"coin": coin, "time": time}
        for name in MODELS:
            noise = 1 + 0.001 * random.standard_normal(len(time)) * (name != "har")
            rows[name] = level * (1 - np.asarray(gains.get(name, (0, 0)))[coin]) * noise
            rows[f"{name} inside"] = np.tile(inside, (len(time), 1))
        write_npz(folder / f"1h-{start:%Y-%m}.npz", {"coins": np.array(coins), **rows})


def test_a_table_says_which_goals_are_met(tmp_path, capsys):
    write_months(
        tmp_path / "skill",
        7,
        {"har + walk": (0.002, 0.004), "har + line": (0.01, -0.005)},
        inside=(0.784, 0.9),
    )
    skill.table(tmp_path, "1h")
    told = capsys.readouterr().out
    assert "har + walk, goal: ratio 0.9970, at most 0.999: met" in told  # coins alike, whatever their level
    assert "har + walk, goal: bands off by 1.6 points, at most 1.5: NOT MET" in told
    assert "har + walk, goal: lower end of the worst coin, AUSDT" in told
    line = next(row for row in told.splitlines() if "har + line, goal: lower end" in row)
    assert ("BUSDT" in line, line.endswith("NOT MET")) == (True, True)
    assert "lower in 7 of 7 months" in told


def test_coins_with_fewer_than_six_whole_months_are_no_coins_to_judge(tmp_path):
    write_months(tmp_path / "skill", 6, {})
    rows = skill.Rows.read(tmp_path, "1h")
    assert rows.whole() == [0, 1]
    last = rows.month == rows.month.max()
    kept = ~(
        last & (rows.arrays["coin"] == 1) & (rows.arrays["time"] > rows.arrays["time"].max() - 5 * DAY_US)
    )
    part = skill.Rows(rows.coins, {name: values[kept] for name, values in rows.arrays.items()})
    assert part.whole() == [0]


def test_refits_are_compared_on_the_rows_of_both(tmp_path, capsys):
    write_months(tmp_path / "skill", 3, {})
    write_months(tmp_path / "skill-1", 2, {"walk": (0.01, 0.01)})
    skill.refits(tmp_path, "1h", 1)
    rows = capsys.readouterr().out.splitlines()
    walk = next(row for row in rows if row.startswith("  walk,"))
    assert "refitted every 1 months against every 4: 0.9900" in walk
    assert f"on {2 * 24 * (30 + 31):,} origins" in walk
    with pytest.raises(SystemExit, match="no month at 15m"):
        skill.table(tmp_path, "15m")


def hours(count, first):
    close = 100 * np.exp(np.cumsum(np.random.default_rng(0).standard_normal(count) * 0.01))
    time = [first + timedelta(hours=n) for n in range(count)]
    return pl.DataFrame(
        {
            "open_time": time,
            "open": close,
            "high": close * 1.01,
            "low": close * 0.99,
            "close": close,
            "volume": 1.0,
        }
    )


def test_spans_end_before_the_month_and_its_origins_are_every_hour_unless_one_is_missing():
    start, end = datetime(2024, 2, 1, tzinfo=UTC), datetime(2024, 3, 1, tzinfo=UTC)
    frame = hours(24 * 200, start - timedelta(days=150))
    one = replace(Series.from_frame(frame, "BTCUSDT"), spans={})
    plan = replace(skill.PLANS["1h"], training=timedelta(days=120))
    (found,) = skill.spanned([one], plan, start, plan.training)
    times = found.times.astype("datetime64[us]")
    first, last = found.spans["validation"]
    assert times[last - 1] < np.datetime64(start.replace(tzinfo=None)) - np.timedelta64(EMBARGO - 1, "h")
    assert found.spans["train"][1] < first
    rows = skill.origins_of(one, start, end)
    assert len(rows) == 29 * 24
    assert times[rows[0]] == np.datetime64("2024-02-01T00:00")
    holed = Series.from_frame(frame.filter(pl.col("open_time") != start + timedelta(days=3)), "BTCUSDT")
    assert len(skill.origins_of(holed, start, end)) == 0
