"""The drift watch on real stores: rows taken once and in order, refreshes and states."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from schemas.identity import SeriesId
from schemas.ledger import BANDS, JudgedMetrics, Reference
from schemas.scope import ScopeSpec
from tasks.forecasting import chain
from tasks.forecasting.record import score_due
from tasks.forecasting.score import evidence_rows
from tasks.forecasting.watch import (
    FILE_NAME,
    SeriesWatch,
    check_drift,
    evidence_of,
    follow,
    judge,
    read_watch,
    save_watch,
    update,
)
from tasks.storage.model_folder import ModelConfig
from tests.tools.live_record import HORIZON, made_forecasts, write_walk
from tests.tools.packaged import weights_sha256, write_packaged

PEPE, BTC = SeriesId("spot", "PEPEUSDT", "1h"), SeriesId("spot", "BTCUSDT", "1h")
FIRST = datetime(2025, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PAST = 1300
"""Candles before the first forecast."""
PROMISE = JudgedMetrics(
    n=2000,
    crps_ratio=1.0,
    crps_ratio_low=0.99,
    crps_ratio_high=1.01,
    tail_ratio=1.0,
    coverage={band: band / 100 for band in BANDS},
    coverage_step_1={band: band / 100 for band in BANDS},
)


def reference(series=PEPE, promised=PROMISE):
    walk = np.sqrt(np.arange(1, HORIZON + 1))[:, None] * np.linspace(-1.6, 1.6, 19)
    return Reference(
        series=series,
        table=tuple(map(tuple, walk.tolist())),
        decay=0.96,
        origins=2000,
        span=(0, 1),
        promised=promised,
    )


@dataclass(frozen=True)
class Served:
    """A champion with a folder."""

    folder: Path
    series: SeriesId = PEPE
    number: int = 1

    @property
    def model_version(self):
        return f"{self.series.registered}/{self.number}"


def champion(home, number=1, series=PEPE, options=None, **promised):
    folder = home / f"model-{series.name}-{number}"
    folder.mkdir(exist_ok=True)
    options = {"preset": "default", "horizon": HORIZON, **(options or {})}
    write_packaged(folder, f"{series.registered}/{number}", reference(series, **promised), **options)
    return Served(folder, series, number)


def model(series=PEPE, number=1, weights=None):
    """What was read of a champion's folder."""
    name = f"{series.registered}/{number}"
    config = ModelConfig(architecture="har")
    return SimpleNamespace(
        series=series, model_version=name, config=config, weights_sha256=weights or weights_sha256(name)
    )


def scope(home, now):
    return ScopeSpec(coins="PEPE,BTC", timeframes="1h", as_of=f"{now:%Y-%m-%dT%H:%M}").scope.model_copy(
        update={"home": home}
    )


def filled(home, days, series=PEPE, **options):
    """Live forecasts of every hour of so many days, scored; returns the last candle's close."""
    rows = PAST + 24 * days + HORIZON
    close = write_walk(home, series, FIRST, rows, seed=4)
    made = made_forecasts(series, FIRST, close, np.arange(PAST, PAST + 24 * days), **options)
    assert chain.append(home, "spot", "forecasts", {series: made}) == {series: len(made)}
    now = FIRST + rows * HOUR
    assert score_due(home, [series], now).failures == ()
    return now


def looked(home, now, *champions):
    watching = check_drift(scope(home, now), champions or [champion(home)])
    assert watching.failures == ()
    return watching.alarms[0]


def frame(home, series=PEPE):
    return evidence_rows(home, series)


def test_bands_that_hold_are_fine_and_narrow_ones_drift(tmp_path):
    good = looked(tmp_path, filled(tmp_path, 20))
    assert (good.state, good.reason, good.forecasts) == ("fine", "", 480)

    other = tmp_path / "other"
    other.mkdir()
    now = filled(other, 20, width=0.7)
    bad = looked(other, now)
    assert (bad.state, bad.since) == ("drifted", now)
    assert bad.total >= bad.threshold
    assert "closes miss the bands more often" in bad.reason


def test_a_market_that_moves_is_no_fault_of_the_model(tmp_path):
    """Moves twice as large as on the test span: model and reference miss alike."""
    moving = PROMISE.model_copy(update={"coverage_step_1": {50: 0.8, 80: 0.97, 90: 0.99}})
    moving = moving.model_copy(update={"reference_coverage_step_1": moving.coverage_step_1})
    now = filled(tmp_path, 20)
    alarm = looked(tmp_path, now, champion(tmp_path, promised=moving))
    assert read_watch(tmp_path, "spot").series[PEPE.name].bands > alarm.threshold
    assert (alarm.state, alarm.forecasts) == ("fine", 480)


def test_a_forecast_is_taken_once_and_in_order_however_often_one_looks(tmp_path):
    now = filled(tmp_path, 12, width=0.8)
    whole = looked(tmp_path, now)
    again = looked(tmp_path, now + HOUR)
    assert (again.evidence, again.forecasts) == (whole.evidence, whole.forecasts)

    watch, rows = follow(None, model(), reference()), frame(tmp_path)
    for first in range(0, len(rows), 7):
        watch = update(watch, rows[: first + 7].sample(fraction=1.0, shuffle=True, seed=first))
    assert evidence_of(watch) == pytest.approx(whole.evidence)
    assert watch.taken == whole.forecasts == len(rows)


def test_a_refresh_goes_on_by_its_own_promise_and_another_recipe_begins_anew(tmp_path):
    now = filled(tmp_path, 10, width=0.8, version=lambda t: 1 if t < FIRST + (PAST + 121) * HOUR else 2)
    early = looked(tmp_path, FIRST + (PAST + 130) * HOUR)
    assert 0 < early.forecasts < 125

    loose = PROMISE.model_copy(update={"coverage_step_1": {50: 0.3, 80: 0.5, 90: 0.6}})
    refreshed = looked(tmp_path, now, champion(tmp_path, 2, promised=loose))
    assert refreshed.forecasts == 240
    assert refreshed.evidence["bands"] < early.evidence["bands"]  # held to what it promised itself

    strict = update(
        follow(
            update(follow(None, model(), reference()), frame(tmp_path)),
            model(number=2),
            reference(),
        ),
        frame(tmp_path),
    )
    assert strict.taken == 240
    other = looked(tmp_path, now, champion(tmp_path, 2, options={"hidden_dim": 99, "context": 7}))
    assert other.forecasts == 120


def test_another_model_under_the_same_name_begins_anew_and_is_not_held_to_the_others_forecasts(tmp_path):
    filled(tmp_path, 10, width=0.8)
    old = update(follow(None, model(), reference()), frame(tmp_path))
    assert old.taken == 240

    new = follow(old, model(weights="e" * 64), reference())

    assert (new.taken, new.bands, new.taken_to) == (0, 0.0, None)
    assert update(new, frame(tmp_path)).taken == 0
    of_before = frame(tmp_path).with_columns(weights_sha256=pl.lit(None, pl.String))
    assert update(new, of_before).taken == 240  # whose weights nobody knows


def test_a_record_of_an_older_version_goes_on_and_learns_the_weights(tmp_path):
    filled(tmp_path, 10, width=0.8)
    whole = update(follow(None, model(), reference()), frame(tmp_path))
    body = whole.model_dump(mode="json", exclude={"weights"})
    before = SeriesWatch.model_validate(body)
    assert update(before, frame(tmp_path)) == before  # nothing is new to it

    after = follow(before, model(), reference())
    assert after == whole
    refreshed = follow(before, model(number=2), reference())
    assert (refreshed.taken, list(refreshed.weights)) == (240, [model(number=2).model_version])


def test_drifted_ends_only_when_the_evidence_has_gone(tmp_path):
    watch = follow(None, model(), reference())
    steps = (
        (1.5, "fine"),
        (2.5, "watch"),
        (11.0, "drifted"),
        (3.0, "drifted"),
        (0.9, "fine"),
        (3.0, "watch"),
    )
    for bands, state in steps:
        watch = judge(watch.model_copy(update={"bands": 99.0, "excess": bands}), FIRST)
        assert watch.state == state
        assert (watch.since is None) == (state != "drifted")


def test_one_champions_fault_stops_no_other(tmp_path):
    now = filled(tmp_path, 3)
    filled(tmp_path, 3, series=BTC)
    broken = champion(tmp_path, series=BTC)
    (broken.folder / "reference.json").unlink()
    (broken.folder / "config.json").write_text("{")
    watching = check_drift(scope(tmp_path, now), [broken, champion(tmp_path)])
    assert [(f.series, f.step) for f in watching.failures] == [(BTC, "watch")]
    assert [a.series for a in watching.alarms] == [PEPE]


def test_the_record_survives_damage_and_keeps_the_series_of_others(tmp_path):
    first, two = (follow(None, model(s), reference(s)) for s in (PEPE, BTC))
    save_watch(tmp_path, "spot", [first])
    save_watch(tmp_path, "spot", [two])
    assert set(read_watch(tmp_path, "spot").series) == {PEPE.name, BTC.name}
    behind = first.model_copy(update={"taken": 5})
    save_watch(tmp_path, "spot", [behind])
    save_watch(tmp_path, "spot", [first])  # a slower run, which knows less
    assert read_watch(tmp_path, "spot").series[PEPE.name].taken == 5
    path = tmp_path / "ledger" / FILE_NAME
    path.write_bytes(path.read_bytes()[:-20])
    assert read_watch(tmp_path, "spot").series == {}
