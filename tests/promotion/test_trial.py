"""Shadow forecasts of a challenger: evidence after each scoring, switch and drop, on real stores."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from promotion_tools import BTC, EARLIER, ETH, SECOND, aliases, decided, newest, night, only, widened

import cpbmodels
from schemas.identity import Recipe
from schemas.run import ScopeSpec
from schemas.scope import home
from tasks.forecasting import chain
from tasks.forecasting.daily import note_version
from tasks.forecasting.issue import forecast_with, reference_of
from tasks.forecasting.ledger import score_due
from tasks.ingest import ingest
from tasks.judging import gate
from tasks.promotion import losses, pairs, trial
from tasks.promotion.trial import on_trial, update_trials
from tasks.tracking.registry import challengers, champions
from tasks.tracking.store import open_store
from tasks.training.files import read_job

THIRD = "2025-01-03"
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
def pair(trainer):
    """Reads the open pair of `har` against the champions' recipe `linear`, with candles for another day."""

    trainer.after = only("linear", widened(2.0, "validation"))
    night(SECOND, architectures="linear,har")
    ingest(scope())
    return lambda: pairs.pairs(home(), "sim", "1h")[0]


def shadow(pair):
    return [row for row in pair.rows if row[3] == "shadow"]


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
    assert [(row[0], row[1]) for row in shadow(pair())] == [(FROM + hour * HOUR, 2) for hour in range(3)]
    score()
    update_trials(scope())
    assert len(shadow(pair())) == 4
    assert pair().rows[: len(before.rows)] == before.rows
    assert aliases() == {"champion": "3", "previous": "1", "challenger": "2"}


def test_an_origin_waits_a_day_for_all_coins_and_then_goes_with_those_there_are(pair):
    issue([0, 2])
    issue([1], [BTC])
    issue([1], [ETH], ["champion"])
    score()
    update_trials(scope())
    assert [row[:2] for row in shadow(pair())] == [(FROM, 2)]  # the later origin waits, too
    update_trials(scope("2025-01-03T12:00"))
    assert [row[1] for row in shadow(pair())] == [2, 1, 2]


def test_enough_evidence_switches_the_timeframe_at_once(pair, monkeypatch):
    issue(range(2))
    score()
    monkeypatch.setattr(pairs, "e_process", lambda differences, lag: differences * 0 + 33.0)
    found = update_trials(scope()).decisions
    assert {(d.series, d.outcome, d.rule, d.version_number) for d in found} == {
        (BTC, "switched", "evidence", "2"), (ETH, "switched", "evidence", "2"),
    }  # fmt: skip
    assert aliases() == {"champion": "2", "previous": "3"}
    assert decided() == ("switched", "evidence")
    assert newest().evidence.e == 33.0
    assert champions([BTC])[0].selected_on.endswith("2025-01-01")
    assert pair().state == "switched"
    assert update_trials(scope()).decisions == ()


def evidence_of(value):
    return lambda differences, lag: differences * 0 + value


def cut_short(model):
    """Damage a registered model's weights."""
    weights = model.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])


def test_a_damaged_challenger_never_wins(pair, monkeypatch):
    cut_short(challengers([ETH])[0])
    monkeypatch.setattr(pairs, "e_process", evidence_of(33.0))
    found = update_trials(scope()).decisions
    assert {(d.series, d.outcome, d.rule, d.version_number) for d in found} == {
        (BTC, "switched", "evidence", "2"), (ETH, "kept", "damaged", "3"),
    }  # fmt: skip
    assert aliases(ETH) == {"champion": "3", "previous": "1"}
    assert decided(ETH) == ("kept", "damaged")
    assert newest(ETH).evidence.e == 33.0


def test_a_damaged_challenger_does_not_win_at_night_either(pair, monkeypatch):
    cut_short(challengers([ETH])[0])
    monkeypatch.setattr(pairs, "e_process", evidence_of(33.0))
    night(THIRD, architectures="linear")
    assert decided(BTC) == ("switched", "evidence")
    assert decided(ETH)[0] != "switched"
    assert "damaged" in newest(ETH).reason
    assert champions([ETH])[0].architecture == "linear"
    assert champions([ETH])[0].damage == ""
    assert "challenger" not in aliases(ETH)


def test_a_challenger_of_older_candles_than_the_champions_does_not_win(pair, monkeypatch):
    monkeypatch.setattr(gate, "NOT_WORSE", 3.0)
    night(THIRD, architectures="linear")  # the champions are trained on, the challenger is not
    before = aliases()
    monkeypatch.setattr(pairs, "e_process", evidence_of(33.0))
    found = update_trials(scope()).decisions
    assert {(d.outcome, d.rule) for d in found} == {("kept", "older")}
    assert aliases() == {alias: before[alias] for alias in ("champion", "previous")}


def test_evidence_of_one_recipe_switches_no_other_in(pair, monkeypatch):
    path = next((home() / "sim" / "ledger").rglob("001~*.json"))
    path.write_bytes(b"{}")  # the trial of `har` is lost
    assert on_trial(home(), challengers([ETH])) == []
    monkeypatch.setattr(gate, "MIN_COVER", 0.5)
    monkeypatch.setattr(pairs, "e_process", evidence_of(200.0))
    night(THIRD, coins="BTC", architectures="linear,lstm")
    assert champions([BTC])[0].architecture == "lstm"
    assert champions([ETH])[0].architecture == "linear"
    assert decided(ETH) == ("kept", "no-challenger")
    assert "challenger" not in aliases(ETH)


def test_a_challenger_forecasts_only_while_its_recipe_is_on_trial(pair):
    from tasks.forecast import forecast

    assert len(on_trial(home(), challengers())) == 2
    assert forecast(scope()).shadow == 20
    pairs.save(home(), pairs.end(pair(), "dropped", FROM))  # and killed before the aliases went
    assert on_trial(home(), challengers()) == []
    ingest(scope("2025-01-04"))
    assert forecast(scope("2025-01-04")).shadow == 0
    night(THIRD, architectures="linear,har")
    assert "challenger" not in aliases()


def test_too_little_evidence_switches_nothing(pair, monkeypatch):
    monkeypatch.setattr(pairs, "e_process", lambda differences, lag: differences * 0 + 32.0)  # of 32.9
    assert update_trials(scope()).decisions == ()
    assert pair().state == "open"


def test_a_trial_ends_after_ninety_days_and_is_never_repeated(pair):
    def appoint(ago):
        appointed = pair().model_copy(update={"appointed_at": datetime.now(UTC) - ago})
        pairs.save(home(), appointed)

    appoint(timedelta(days=89, hours=23))
    update_trials(scope())
    assert pair().state == "open"
    appoint(timedelta(days=90))
    update_trials(scope())
    assert pair().state == "dropped"
    assert "challenger" not in aliases()
    night(SECOND, architectures="linear,har", seed=2)
    assert "challenger" not in aliases()
    assert "has had its trial" in newest().reason


def test_a_damaged_pair_is_set_aside_and_not_tried_again(pair):
    known = pair()
    path = next((home() / "sim" / "ledger").rglob("001~*.json"))
    path.write_bytes(path.read_bytes()[:-30])
    assert pairs.pairs(home(), "sim", "1h") == []
    assert pairs.tried(home(), "sim", "1h") == {known.recipes}
    fresh = pairs.open_pair(home(), "sim", "1h", known.recipes[1], known.recipes[0], 10, FROM)
    assert fresh.k == 2


def test_forecasts_of_other_versions_are_no_evidence(pair):
    issue(range(2))
    for series in (BTC, ETH):
        (one,) = champions([series])
        note_version(home(), series, one.model_version, "gru/smoke/0")
    score()
    update_trials(scope("2025-01-04"))
    assert shadow(pair()) == []


def test_a_damaged_champion_still_bars_models_of_older_candles(trainer):
    for series in (BTC, ETH):
        cut_short(champions([series])[0])
    before = aliases()
    night(EARLIER)
    assert aliases() == before
    assert decided() == ("kept", "older")


def test_a_challenger_whose_scores_cannot_be_read_costs_the_champions_no_refresh(pair, trainer, monkeypatch):
    known, rows, read = aliases(), pair().rows, losses.MemberScore.from_npz
    pooled = set()

    def broken(path):
        if read_job(path.parents[2]).architecture != "har":
            return read(path)
        if path in pooled:  # by the time that evidence is collected
            path.write_bytes(path.read_bytes()[:-30])
        pooled.add(path)
        return read(path)

    monkeypatch.setattr(gate, "NOT_WORSE", 3.0)
    monkeypatch.setattr(losses.MemberScore, "from_npz", broken)
    night(THIRD, architectures="linear,har")
    assert decided() == ("refreshed", "refresh")
    assert aliases()["champion"] != known["champion"]
    assert "no evidence from this coin tonight" in newest().reason
    assert pair().rows == rows


def test_an_error_of_the_tracking_store_is_the_trials_failure(pair, monkeypatch):
    from mlflow.exceptions import MlflowException

    def gone(*_given):
        raise MlflowException("the registry is gone")

    monkeypatch.setattr("tasks.promotion.trial.promote_version", gone)
    monkeypatch.setattr(pairs, "e_process", evidence_of(33.0))
    (failure,) = update_trials(scope()).failures
    assert (failure.step, failure.code) == ("promote", "unexpected")
    assert pair().state == "open"


def test_a_coin_that_stayed_behind_follows_on_the_next_night(pair, monkeypatch):
    open_store().client.delete_registered_model_alias(ETH.registered, "challenger")
    monkeypatch.setattr(pairs, "e_process", evidence_of(33.0))
    found = update_trials(scope()).decisions
    assert {(d.series, d.outcome, d.rule) for d in found} == {
        (BTC, "switched", "evidence"), (ETH, "kept", "no-challenger"),
    }  # fmt: skip
    assert (pair().state, pair().behind) == ("switched", ("ETHUSDT",))
    night(THIRD, architectures="linear,har")
    assert decided(ETH) == ("switched", "follows")
    assert [one.architecture for one in champions()] == ["har", "har"]
    assert champions([ETH])[0].selected_on.endswith("2025-01-01")
    assert pair().behind == ()


def test_a_recipe_that_has_won_back_a_timeframe_has_lost_none():
    a, b, c = (Recipe(name, "smoke", "0") for name in "abc")

    def switched(challenger, incumbent, hours):
        one = pairs.open_pair(home(), "sim", "1h", challenger, incumbent, 10, FROM)
        return pairs.end(one, "switched", FROM + hours * HOUR)

    first, back, on = switched(b, a, 1), switched(a, b, 2), switched(c, a, 3)
    assert pairs.followed([back, first]) == {b: back}
    assert pairs.followed([on, back, first]) == {b: back, a: on}


def test_a_trial_appointed_with_an_old_as_of_lasts_ninety_days_of_the_clock(pair):
    assert datetime.now(UTC) - pair().appointed_at < timedelta(days=1)
    live = ScopeSpec(**LIVE).scope
    assert update_trials(live).failures == ()
    assert pair().state == "open"
    assert "challenger" in aliases()


def test_a_kill_between_two_coins_of_a_switch_leaves_the_first_its_decision(pair, monkeypatch):
    real, moved = trial.promote_version, []

    def killed_at_the_second(*given):
        if moved:
            raise KeyboardInterrupt
        moved.append(given)
        return real(*given)

    monkeypatch.setattr(pairs, "e_process", evidence_of(33.0))
    monkeypatch.setattr(trial, "promote_version", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        update_trials(scope())
    assert decided(BTC) == ("switched", "evidence")
    monkeypatch.setattr(trial, "promote_version", real)
    (other,) = update_trials(scope()).decisions
    assert (other.series, other.outcome, pair().state) == (ETH, "switched", "switched")
