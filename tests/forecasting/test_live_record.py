"""Daily sums and the record made of them: derived, small, and never mixing live with replayed, or versions."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from schemas.ledger import TOO_FEW
from tasks.forecasting import chain, months, score
from tasks.forecasting.daily_sums import DAILY, DAYS_SCHEMA, daily_sums, day_sums, read_sums, record_by_day
from tasks.forecasting.record import SUMMARY, ledger_rows, read_summary, score_due
from tasks.forecasting.score import newest_scored
from tests.tools.forecast_tools import BTC, PEPE, flip
from tests.tools.live_record import ledger, made_forecasts, write_walk
from tests.tools.verifying import verify_ledger

FIRST = datetime(2025, 1, 20, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def fill(home, days, series=PEPE, every=6, seed=0, **options):
    """Forecasts every few hours over so many days, and their candles; returns the last instant."""
    rows = 24 * days + 24
    close = write_walk(home, series, FIRST, rows, seed)
    made = made_forecasts(series, FIRST, close, np.arange(2, 24 * days, every), **options)
    assert chain.append(home, series.market, "forecasts", {series: made}) == {series: len(made)}
    return FIRST + rows * HOUR


def scored(home, now, *series):
    done = score_due(home, series or [PEPE], now)
    assert done.failures == ()
    return done.rows


def entry(home, kind="series", live=True, **wanted):
    """The one entry of the record with these fields."""
    entries = [
        shown
        for shown in read_summary(home, "spot").entries
        if (shown.kind, shown.live) == (kind, live) and all(getattr(shown, k) == v for k, v in wanted.items())
    ]
    (shown,) = entries
    return shown


def test_the_record_is_that_of_the_rows(tmp_path):
    now = fill(tmp_path, 40, width=1.0, reference=1.5)
    scored(tmp_path, now)
    rows = ledger(tmp_path, PEPE)

    shown = entry(tmp_path)

    assert (shown.rows, shown.forecasts) == (len(rows), rows["issued_at"].n_unique())
    assert (shown.first, shown.last) == (FIRST.date(), FIRST.date() + timedelta(days=39))
    assert shown.crps == pytest.approx(rows["crps"].mean())
    assert shown.crps_ratio == pytest.approx(rows["crps"].sum() / rows["ref_crps"].sum())
    assert shown.tail_ratio == pytest.approx(rows["tail"].sum() / rows["ref_tail"].sum())
    assert shown.coverage_80 == rows["covered_80"].mean()
    assert shown.ref_coverage_90 == rows["ref_covered_90"].mean()
    assert shown.crps_ratio_low < shown.crps_ratio < shown.crps_ratio_high


def test_few_days_are_too_few_to_tell_and_many_tell(tmp_path):
    now = fill(tmp_path, 60, reference=3.0)
    scored(tmp_path, FIRST + 8 * DAY)
    early = entry(tmp_path)
    assert (early.verdict, early.crps_ratio_low, early.crps_ratio_high) == (TOO_FEW, None, None)
    assert early.rows > 200

    scored(tmp_path, now)
    late = entry(tmp_path)
    assert late.days == 60
    assert (late.crps_ratio_high < 1, late.verdict) == (True, "better than the random walk")


def test_a_day_counts_when_its_last_step_is_scored(tmp_path):
    fill(tmp_path, 5)
    # One issued at the end of the third day would be settled ten hours later.
    scored(tmp_path, FIRST + 3 * DAY + 9 * HOUR)
    assert entry(tmp_path).days == 2
    scored(tmp_path, FIRST + 3 * DAY + 10 * HOUR)
    assert entry(tmp_path).days == 3


def test_replays_and_live_forecasts_are_never_added_up(tmp_path):
    close = write_walk(tmp_path, PEPE, FIRST, 200)
    parts = [
        made_forecasts(PEPE, FIRST, close, np.arange(20, 100), live=False, width=3.0),
        made_forecasts(PEPE, FIRST, close, np.arange(100, 130)),
    ]
    chain.append(tmp_path, "spot", "forecasts", {PEPE: pl.concat(parts)})
    scored(tmp_path, FIRST + 200 * HOUR)

    assert (entry(tmp_path).forecasts, entry(tmp_path, live=False).forecasts) == (30, 80)
    assert entry(tmp_path).crps < entry(tmp_path, live=False).crps


def test_a_versions_record_is_its_own(tmp_path):
    close = write_walk(tmp_path, PEPE, FIRST, 200)
    origins = np.arange(20, 120)
    parts = [
        made_forecasts(PEPE, FIRST, close, origins[:60], version=lambda _: 1),
        made_forecasts(PEPE, FIRST, close, origins[60:], version=lambda _: 3),
    ]
    chain.append(tmp_path, "spot", "forecasts", {PEPE: pl.concat(parts)})
    scored(tmp_path, FIRST + 200 * HOUR)
    rows = ledger(tmp_path, PEPE)

    assert entry(tmp_path).forecasts == 100
    for number, count in ((1, 60), (3, 40)):
        name = f"{PEPE.registered}/{number}"
        of_version = rows.filter(pl.col("model_version") == name)
        shown = entry(tmp_path, "version", model_version=name)
        assert (shown.forecasts, shown.crps) == (count, pytest.approx(of_version["crps"].mean()))
    assert entry(tmp_path, "pooled").forecasts == 100


def named_one(close, origins, digest):
    """Forecasts of version 1, made by these weights."""
    return made_forecasts(PEPE, FIRST, close, origins).with_columns(
        weights_sha256=pl.lit(digest, dtype=pl.String)
    )


def test_two_models_with_the_name_of_one_version_are_not_added_up(tmp_path):
    close, name = write_walk(tmp_path, PEPE, FIRST, 200), f"{PEPE.registered}/1"
    chain.append(tmp_path, "spot", "forecasts", {PEPE: named_one(close, np.arange(40, 70), "a" * 64)})
    chain.append(tmp_path, "spot", "forecasts", {PEPE: named_one(close, np.arange(70, 120), "b" * 64)})
    scored(tmp_path, FIRST + 200 * HOUR)
    rows = ledger(tmp_path, PEPE)
    assert entry(tmp_path).forecasts == 80
    for digest, count in (("a" * 64, 30), ("b" * 64, 50)):
        of_weights = rows.filter(pl.col("weights_sha256") == digest)
        shown = entry(tmp_path, "version", model_version=name, weights_sha256=digest)
        assert (shown.forecasts, shown.crps) == (count, pytest.approx(of_weights["crps"].mean()))
    versions = [row for row in ledger_rows(tmp_path, "spot") if row["kind"] == "version"]
    assert [row["forecasts"] for row in versions] == [50, 30]


def test_the_ledger_names_the_weights_where_a_versions_name_is_of_two_models(tmp_path, monkeypatch, cpb_here):
    close = write_walk(tmp_path, PEPE, FIRST, 200)
    for origins, digest in ((np.arange(20, 40), "a" * 64), (np.arange(40, 70), "b" * 64)):
        chain.append(tmp_path, "spot", "forecasts", {PEPE: named_one(close, origins, digest)})
    scored(tmp_path, FIRST + 200 * HOUR)
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = cpb_here("ledger")
    for digest in "ab":
        assert f"{PEPE.registered}/1 (champion, weights {digest * 8})" in out


def test_coins_are_pooled_in_units_of_what_was_known_at_the_origin(tmp_path):
    now = fill(tmp_path, 5, PEPE, reference=1.2)
    fill(tmp_path, 5, BTC, seed=1, reference=1.2, width=1.6)
    scored(tmp_path, now, PEPE, BTC)
    rows = pl.concat([ledger(tmp_path, series) for series in (PEPE, BTC)])

    model, other = ((rows[name] / rows["ref_width"]).sum() for name in ("crps", "ref_crps"))
    pooled = entry(tmp_path, "pooled")
    assert pooled.crps_ratio == pytest.approx(model / other)
    assert (pooled.rows, pooled.crps, pooled.symbol) == (len(rows), None, "")


def test_rows_without_a_reference_count_for_coverage_alone(tmp_path):
    close = write_walk(tmp_path, PEPE, FIRST, 200)
    rows = made_forecasts(PEPE, FIRST, close, np.arange(20, 60))
    names = [name for name in rows.columns if name.startswith("ref_")]
    old = rows.head(200).with_columns(pl.lit(None, pl.Float64).alias(name) for name in names)
    chain.append(tmp_path, "spot", "forecasts", {PEPE: pl.concat([old, rows.tail(200)])})
    scored(tmp_path, FIRST + 200 * HOUR)
    whole = ledger(tmp_path, PEPE)
    paired = whole.filter(pl.col("ref_crps").is_not_null())

    shown = entry(tmp_path)

    assert (shown.rows, len(paired)) == (400, 200)
    assert shown.coverage_80 == whole["covered_80"].mean()
    assert shown.crps_ratio == pytest.approx(paired["crps"].sum() / paired["ref_crps"].sum())
    assert shown.ref_coverage_80 == paired["ref_covered_80"].mean()


def test_scoring_reads_only_the_months_that_changed(tmp_path, monkeypatch):
    now = fill(tmp_path, 50)
    scored(tmp_path, FIRST + 45 * DAY)
    before = daily_sums(tmp_path, PEPE)
    seen = []
    read = months.read_month
    monkeypatch.setattr(
        "tasks.forecasting.daily_sums.read_month",
        lambda h, s, t, path: (seen.append(path.stem), read(h, s, t, path))[1],
    )

    scored(tmp_path, now)

    assert set(seen) == {"2025-03"}
    after = daily_sums(tmp_path, PEPE)
    early = pl.col("day") < datetime(2025, 3, 1).date()
    assert after.filter(early).equals(before.filter(early))
    assert after.drop("source").equals(day_sums(ledger(tmp_path, PEPE)), null_equal=True)


@pytest.mark.parametrize("place", [None, *(i / 8 for i in range(8))])
def test_damaged_or_missing_sums_are_named_and_made_again(tmp_path, place):
    scored(tmp_path, fill(tmp_path, 12))
    path = PEPE.folder(tmp_path, "ledger") / DAILY
    expected = daily_sums(tmp_path, PEPE)
    assert verify_ledger(tmp_path) == []
    if place is None:
        path.unlink()
    else:
        flip(path, place)
        (damage,) = verify_ledger(tmp_path)
        assert damage.path == path.relative_to(tmp_path).as_posix()

    assert daily_sums(tmp_path, PEPE).equals(expected)
    assert daily_sums(tmp_path, PEPE).equals(expected)
    assert verify_ledger(tmp_path) == []


def test_a_missing_or_damaged_record_is_made_again_by_the_command_and_not_by_the_page(tmp_path):
    scored(tmp_path, fill(tmp_path, 5))
    path = tmp_path / "ledger" / SUMMARY
    expected = ledger_rows(tmp_path)
    for damage in (path.unlink, lambda: path.write_text(path.read_text().replace("20", "21"))):
        damage()
        assert read_summary(tmp_path, "spot") is None
        assert ledger_rows(tmp_path) == expected
        assert read_summary(tmp_path, "spot") is not None


def test_the_newest_scored_rows_are_found_without_reading_every_month(tmp_path, monkeypatch):
    scored(tmp_path, fill(tmp_path, 60, every=1))
    everything = ledger(tmp_path, PEPE).drop("ref_width", "horizon").sort("target_time", "issued_at", "step")
    seen = []
    read = score.read_month
    monkeypatch.setattr(
        score, "read_month", lambda h, s, t, path: (seen.append(path.stem), read(h, s, t, path))[1]
    )

    for limit in (1, 200, 12_000):
        assert newest_scored(tmp_path, PEPE, limit).equals(everything.tail(limit))
    assert newest_scored(tmp_path, PEPE, 0).is_empty()
    seen.clear()
    newest_scored(tmp_path, PEPE, 50)
    assert set(seen) == {"2025-03"}


def by_day(home, now, live=True):
    return record_by_day(read_sums(home, PEPE), PEPE, now, live=live)


def test_its_last_day_is_the_summary(tmp_path):
    now = fill(tmp_path, 60, reference=3.0)
    scored(tmp_path, now)
    days = by_day(tmp_path, now)
    total, last = entry(tmp_path), days.row(-1, named=True)
    assert dict(days.schema) == DAYS_SCHEMA
    assert (len(days), last["day"]) == (total.days, total.last)
    assert last["ratio"] == pytest.approx(total.crps_ratio)
    assert (last["low"], last["high"]) == pytest.approx((total.crps_ratio_low, total.crps_ratio_high))
    assert days["low"].null_count() == 29  # too few days to tell
    assert last["rolling"] != pytest.approx(last["ratio"], rel=1e-6)
    assert days["rolling"][29] == pytest.approx(days["ratio"][29])
