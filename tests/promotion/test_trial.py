"""Shadow forecasts of a challenger: evidence after each scoring, switch and drop, on real stores."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from promotion_tools import BTC, EARLIER, ETH, SECOND, THIRD, aliases, decided, newest, night

import cpbmodels
from schemas.identity import Recipe
from schemas.scope import ScopeSpec, home
from tasks.forecasting import chain
from tasks.forecasting.daily import note_version
from tasks.forecasting.issue import forecast_with, reference_of
from tasks.forecasting.ledger import score_due
from tasks.forecasting.losses import evidence_rows
from tasks.ingest import ingest
from tasks.judging import gate
from tasks.promotion import recipe_pairs, trial
from tasks.promotion.trial import live_differences, on_trial, update_trials
from tasks.storage.records import write_record
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.registry import challengers, champions

FROM = datetime(2025, 1, 2, 1, tzinfo=UTC)
"""The first hour after the origin at which the night itself has forecast: that is a replay, which does not count."""
HOUR = timedelta(hours=1)


LIVE = {"coins": "BTC,ETH", "timeframes": "1h", "source": "sim", "since": "2024-09"}


def scope(as_of=THIRD):
    return ScopeSpec(**LIVE, as_of=as_of).scope


def issue(hours, coins=(BTC, ETH), roles=("champion", "challenger")):
    """Let champions and challengers forecast live at these hours after FROM."""
    models = [(one, "champion") for one in champions(list(coins))]
    models += [(one, "challenger") for one in challengers(list(coins))]
    for model, role in models:
        if role not in roles:
            continue
        loaded, reference = cpbmodels.load(model.folder), reference_of(model.series, model.folder)
        parts = []
        for hour in hours:
            at = scope(f"{FROM + hour * HOUR:%Y-%m-%dT%H:%M}")
            rows = forecast_with(
                loaded, model.series, model.model_version, at, reference=reference, role=role
            )
            parts.append(rows.with_columns(made_at=pl.col("issued_at")))
        assert chain.append(home(), "sim", "forecasts", {model.series: pl.concat(parts)})[model.series] > 0
        note_version(home(), model.series, model.model_version, model.tags["cpb.recipe"])


@pytest.fixture
def pair(appointed, monkeypatch):
    """The open pair, appointed an hour before FROM, so that forecasts of `issue` are later; a trial without an end."""
    recipe_pairs.save(home(), appointed().model_copy(update={"appointed_at": FROM - HOUR}))
    monkeypatch.setattr("tasks.judging.gate.MAX_TRIAL", timedelta(days=36_500))
    return appointed


def score(as_of=THIRD):
    assert score_due(home(), [BTC, ETH], scope(as_of).as_of).failures == ()


def test_scored_shadow_forecasts_are_taken_once_in_order_and_pooled(pair):
    before = pair()
    issue(range(4))
    assert update_trials(scope()) == update_trials(scope("2025-01-02T13:00"))  # nothing is scored yet
    assert pair() == before
    score("2025-01-02T13:00")  # the first three have come due
    for _ in range(2):
        assert update_trials(scope()).decisions == ()
    assert [(row[0], row[1], row[3]) for row in pair().rows] == [
        (FROM + hour * HOUR, 2, 0) for hour in range(3)
    ]
    score()
    update_trials(scope())
    assert len(pair().rows) == 4
    assert aliases() == {"champion": "3", "previous": "1", "challenger": "2"}


def test_an_origin_waits_a_day_for_all_coins_and_then_goes_with_those_there_are(pair):
    issue([0, 2])
    issue([1], [BTC])
    issue([1], [ETH], ["challenger"])
    score()
    update_trials(scope())
    assert [row[:2] for row in pair().rows] == [(FROM, 2)]  # the later origin waits, too
    update_trials(scope("2025-01-03T12:00"))
    assert [row[1] for row in pair().rows] == [2, 1, 2]


def test_forecasts_from_before_the_appointment_are_no_evidence(appointed):
    recipe_pairs.save(home(), appointed().model_copy(update={"appointed_at": FROM + HOUR}))
    issue(range(4))
    score()
    update_trials(scope())
    assert [row[0] for row in appointed().rows] == [FROM + 2 * HOUR, FROM + 3 * HOUR]


def test_a_forecast_that_only_the_champion_has_counts_as_the_worst_of_ninety_days(pair):
    issue([0, 1, 2, 4])
    issue([3], [BTC])
    issue([3], [ETH], ["champion"])
    issue([6], roles=["challenger"])
    issue([7])
    score()
    update_trials(scope())
    found = live_differences(
        home(), [BTC, ETH], before := pair().model_copy(update={"rows": ()}), scope().as_of
    )
    assert [row[:2] + row[3:] for row in pair().rows] == [
        (FROM + hour * HOUR, 2, int(hour == 3)) for hour in (0, 1, 2, 3, 4, 7)
    ]
    value, missing = found[FROM + 3 * HOUR][ETH.symbol]
    known = [found[FROM + hour * HOUR][ETH.symbol] for hour in (0, 1, 2)]
    assert missing
    assert not any(flag for _, flag in known)
    assert value >= max(difference for difference, _ in known)
    own = losses_of_champion(ETH)[FROM + 3 * HOUR]
    assert value == pytest.approx(max(own, *(difference for difference, _ in known)))
    evidence = pair().evidence(FROM)
    assert (evidence.missing, evidence.empty) == (pytest.approx(1 / 12), pytest.approx(2 / 8))
    assert "8.3% of the champions' forecasts" in str(evidence)
    assert "25.0% of the origins have neither" in str(evidence)
    assert before.evidence(FROM).empty == 0


def losses_of_champion(series):
    """CRPS over the reference's width of each live forecast of a series' champion, by origin."""
    rows = evidence_rows(home(), [series], roles=("champion",))
    return {row["issued_at"]: row["crps"] / row["ref_width"] for row in rows.iter_rows(named=True)}


def test_a_trial_of_the_version_that_counted_public_rows_is_closed_with_a_sentence(pair, caplog):
    path = next((home() / "sim" / "ledger").rglob("001~*.json"))
    older = type("Pair", (recipe_pairs.Pair,), {"__module__": __name__})
    older.version = 1
    write_record(path, older(**pair().model_dump()), of=recipe_pairs.about(path), compact=True)
    known = recipe_pairs.tried(home(), "sim", "1h")
    assert "its trial is closed, and its evidence counts no more" in caplog.text
    assert recipe_pairs.pairs(home(), "sim", "1h") == []
    assert len(known) == 1
    assert update_trials(scope()).failures == ()


def test_enough_evidence_switches_the_timeframe_at_once(pair, monkeypatch):
    issue(range(2))
    score()
    monkeypatch.setattr(recipe_pairs, "e_process", lambda differences, lag: differences * 0 + 33.0)
    found = update_trials(scope()).decisions
    assert {(d.series, d.outcome, d.rule, d.version_number) for d in found} == {
        (BTC, "switched", "evidence", "2"), (ETH, "switched", "evidence", "2"),
    }  # fmt: skip
    assert aliases() == {"champion": "2", "previous": "3"}
    assert decided() == ("switched", "evidence")
    assert newest().evidence.e == 33.0
    assert champions([BTC])[0].selected_on == ""
    assert pair().state == "switched"
    assert update_trials(scope()).decisions == ()


def evidence_of(value):
    """The property of a pair whose rows have this e-value."""
    return property(lambda _pair: value)


def cut_short(model):
    """Damage a registered model's weights."""
    weights = model.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])


def test_a_damaged_challenger_never_wins(pair, monkeypatch):
    cut_short(challengers([ETH])[0])
    monkeypatch.setattr(recipe_pairs.Pair, "e_value", evidence_of(33.0))
    found = update_trials(scope()).decisions
    assert {(d.series, d.outcome, d.rule, d.version_number) for d in found} == {
        (BTC, "switched", "evidence", "2"), (ETH, "kept", "damaged", "3"),
    }  # fmt: skip
    assert aliases(ETH) == {"champion": "3", "previous": "1"}
    assert decided(ETH) == ("kept", "damaged")
    assert newest(ETH).evidence.e == 33.0


def test_a_challenger_of_older_candles_than_the_champions_does_not_win(pair, monkeypatch):
    monkeypatch.setattr(gate, "NOT_WORSE", 3.0)
    night(THIRD, architectures="linear")  # the champions are trained on, the challenger is not
    before = aliases()
    monkeypatch.setattr(recipe_pairs.Pair, "e_value", evidence_of(33.0))
    found = update_trials(scope()).decisions
    assert {(d.outcome, d.rule) for d in found} == {("kept", "older")}
    assert aliases() == {alias: before[alias] for alias in ("champion", "previous")}


def test_evidence_of_one_recipe_switches_no_other_in(pair, monkeypatch):
    path = next((home() / "sim" / "ledger").rglob("001~*.json"))
    path.write_bytes(b"{}")  # the trial of `har` is lost
    assert on_trial(home(), challengers([ETH])) == []
    monkeypatch.setattr(gate, "MIN_COVER", 0.5)
    night(THIRD, coins="BTC", architectures="linear,lstm")
    monkeypatch.setattr(recipe_pairs.Pair, "e_value", evidence_of(200.0))
    assert {d.series for d in update_trials(scope()).decisions if d.moved} == {BTC}
    assert champions([BTC])[0].architecture == "lstm"
    assert champions([ETH])[0].architecture == "linear"
    assert decided(ETH) == ("kept", "no-challenger")
    assert "challenger" not in aliases(ETH)


def test_a_challenger_forecasts_only_while_its_recipe_is_on_trial(pair):
    from tasks.forecast import forecast

    assert len(on_trial(home(), challengers())) == 2
    assert forecast(scope()).shadow == 20
    recipe_pairs.save(home(), recipe_pairs.end(pair(), "dropped", FROM))  # and killed before the aliases went
    assert on_trial(home(), challengers()) == []
    ingest(scope("2025-01-04"))
    assert forecast(scope("2025-01-04")).shadow == 0
    night(THIRD, architectures="linear,har")
    assert "challenger" not in aliases()


def test_too_little_evidence_switches_nothing(pair, monkeypatch):
    monkeypatch.setattr(recipe_pairs.Pair, "e_value", evidence_of(32.0))  # of 32.9
    assert update_trials(scope()).decisions == ()
    assert pair().state == "open"


def test_a_trial_ends_after_180_days_and_is_never_repeated(appointed):
    def appoint(ago):
        recipe_pairs.save(home(), appointed().model_copy(update={"appointed_at": datetime.now(UTC) - ago}))

    appoint(timedelta(days=179, hours=23))
    update_trials(scope())
    assert appointed().state == "open"
    appoint(timedelta(days=180))
    update_trials(scope())
    assert appointed().state == "dropped"
    assert "challenger" not in aliases()
    night(SECOND, architectures="linear,har", seed=2)
    assert "challenger" not in aliases()
    assert "has had its trial" in newest().reason


def test_a_damaged_pair_is_set_aside_and_not_tried_again(pair):
    known = pair()
    path = next((home() / "sim" / "ledger").rglob("001~*.json"))
    path.write_bytes(path.read_bytes()[:-30])
    assert recipe_pairs.pairs(home(), "sim", "1h") == []
    assert recipe_pairs.tried(home(), "sim", "1h") == {known.recipes}
    fresh = recipe_pairs.open_pair(home(), "sim", "1h", known.recipes[1], known.recipes[0], 10, FROM)
    assert fresh.k == 2


def test_forecasts_of_other_versions_are_no_evidence(pair):
    issue(range(2))
    for series in (BTC, ETH):
        (one,) = champions([series])
        note_version(home(), series, one.model_version, "gru/smoke/0")
    score()
    update_trials(scope("2025-01-04"))
    assert pair().rows == ()


def test_a_damaged_champion_still_bars_models_of_older_candles(trainer):
    for series in (BTC, ETH):
        cut_short(champions([series])[0])
    before = aliases()
    night(EARLIER)
    assert aliases() == before
    assert decided() == ("kept", "older")


def test_an_error_of_the_tracking_store_is_the_trials_failure(pair, monkeypatch):
    from mlflow.exceptions import MlflowException

    def gone(*_given):
        raise MlflowException("the registry is gone")

    monkeypatch.setattr("tasks.promotion.trial.promote_version", gone)
    monkeypatch.setattr(recipe_pairs.Pair, "e_value", evidence_of(33.0))
    (failure,) = update_trials(scope()).failures
    assert (failure.step, failure.code) == ("promote", "unexpected")
    assert pair().state == "open"


def test_a_coin_that_stayed_behind_follows_on_the_next_night(pair, monkeypatch):
    open_store().client.delete_registered_model_alias(ETH.registered, "challenger")
    monkeypatch.setattr(recipe_pairs.Pair, "e_value", evidence_of(33.0))
    found = update_trials(scope()).decisions
    assert {(d.series, d.outcome, d.rule) for d in found} == {
        (BTC, "switched", "evidence"), (ETH, "kept", "no-challenger"),
    }  # fmt: skip
    assert (pair().state, pair().behind) == ("switched", ("ETHUSDT",))
    night(THIRD, architectures="linear,har")
    assert decided(ETH) == ("switched", "follows")
    assert [one.architecture for one in champions()] == ["har", "har"]
    assert pair().behind == ()


def test_a_recipe_that_has_won_back_a_timeframe_has_lost_none():
    a, b, c = (Recipe(name, "smoke", "0") for name in "abc")

    def switched(challenger, incumbent, hours):
        one = recipe_pairs.open_pair(home(), "sim", "1h", challenger, incumbent, 10, FROM)
        return recipe_pairs.end(one, "switched", FROM + hours * HOUR)

    first, back, on = switched(b, a, 1), switched(a, b, 2), switched(c, a, 3)
    assert recipe_pairs.followed([back, first]) == {b: back}
    assert recipe_pairs.followed([on, back, first]) == {b: back, a: on}


def test_a_trial_appointed_with_an_old_as_of_lasts_180_days_of_the_clock(appointed):
    assert datetime.now(UTC) - appointed().appointed_at < timedelta(days=1)
    live = ScopeSpec(**LIVE).scope
    assert update_trials(live).failures == ()
    assert appointed().state == "open"
    assert "challenger" in aliases()


def test_a_kill_between_two_coins_of_a_switch_leaves_the_first_its_decision(pair, monkeypatch):
    real, moved = trial.promote_version, []

    def killed_at_the_second(*given):
        if moved:
            raise KeyboardInterrupt
        moved.append(given)
        return real(*given)

    monkeypatch.setattr(recipe_pairs.Pair, "e_value", evidence_of(33.0))
    monkeypatch.setattr(trial, "promote_version", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        update_trials(scope())
    assert decided(BTC) == ("switched", "evidence")
    monkeypatch.setattr(trial, "promote_version", real)
    (other,) = update_trials(scope()).decisions
    assert (other.series, other.outcome, pair().state) == (ETH, "switched", "switched")
