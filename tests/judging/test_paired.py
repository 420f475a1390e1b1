"""The gate by a backtest on daily losses: its figures, its conditions, and the correction for many recipes."""

import numpy as np
import pytest

from schemas.decision import Paired
from tasks.judging import paired as module
from tasks.judging.member import MemberScore
from tasks.judging.paired import DailyLosses, corrected, daily_losses, failed, min_days, paired

FIRST = 19_144  # 2022-06-01
GOOD = Paired(days=1080, ratio=0.9990, low=0.9985, high=0.9995, p=0.0005, months=36, better=24, recent_p=1.0)


def losses(gain, days=1096, noise=0.005, coins=3, seed=0):
    random = np.random.default_rng(seed)
    incumbent = random.lognormal(0, 0.3, (days, 1)) * np.array([0.1, 1.0, 10.0][:coins])
    challenger = incumbent * (1 - gain + noise * random.standard_normal((days, 1)))
    return DailyLosses(np.arange(FIRST, FIRST + days), challenger, incumbent)


def test_the_ratio_weighs_each_coin_alike_and_the_months_are_those_of_the_calendar():
    made = losses(0.0, noise=0.0)
    made.challenger[:, 0] *= 0.9
    comparison = paired(made)
    assert comparison.ratio == pytest.approx(1 - 0.1 / 3)
    assert (comparison.days, comparison.months, comparison.better) == (1096, 36, 36)  # June 2022 to May 2025
    assert comparison.low == pytest.approx(comparison.ratio)
    short = paired(DailyLosses(made.days[:40], made.challenger[:40], made.incumbent[:40]))
    assert short.months == 1  # ten days of July are no month


def test_a_true_gain_passes_and_none_does_not():
    comparison = paired(losses(0.002))
    assert failed(comparison, comparison.p) == ""
    assert comparison.low < comparison.ratio < comparison.high < 1
    equal = paired(losses(0.0))
    assert "not significantly better" in failed(equal, equal.p)
    worse = paired(losses(-0.002))
    assert 0.99 < worse.p <= 1
    assert (worse.better < 12, worse.recent_p < 0.05) == (True, True)


@pytest.mark.parametrize(
    ("changed", "p", "reason"),
    [
        ({}, 0.049, ""),
        ({}, 0.05, "not significantly better"),
        ({"high": 1.0}, 0.01, "not significantly better"),
        ({"ratio": 0.99971}, 0.01, "the gain is below 0.03%"),
        ({"ratio": 0.9997}, 0.01, ""),
        ({"better": 23}, 0.01, "fewer than two thirds of the months"),
        ({"recent_p": 0.049}, 0.01, "significantly worse in the last 91 days"),
    ],
)
def test_each_condition_is_needed(changed, p, reason):
    why = failed(GOOD.model_copy(update=changed), p)
    assert (reason in why) if reason else why == ""


def test_recipes_named_together_are_corrected_by_holm():
    assert corrected([0.01], [1], 0) == pytest.approx([0.01 / 0.8])
    five = corrected([0.001, 0.01, 0.2, 0.3, 0.4], [1] * 5, 0)
    share = 1 - 1 / 21
    assert five[:2] == pytest.approx([5 * 0.001 / share, 4 * 0.01 / share])
    # The best of 20 search trials counts as 20 recipes.
    assert corrected([0.001], [20], 0) == pytest.approx([20 * 0.001 / (1 - 1 / 81)])


def test_recipes_named_later_pay_for_those_before_and_all_shares_add_up_to_alpha():
    later = [corrected([1e-6], [1], before)[0] for before in range(40)]
    assert later == sorted(later)
    spent = sum(module.ALPHA * 1e-6 / p for p in later)
    assert 0.97 * module.ALPHA < spent < module.ALPHA
    batches = [corrected([1e-6] * n, [1] * n, before)[0] / n for n, before in ((3, 0), (5, 3), (1, 8))]
    assert sum(1e-6 / p for p in batches) < 1


def test_common_rows_are_added_up_by_day_and_coin():
    hours = np.arange(48) * 3_600_000_000 + FIRST * 86_400_000_000

    def member(symbol, rows, value):
        losses = {"crps": np.full(len(hours[rows]), value)}
        return MemberScore(symbol, "1h", "har", {}, hours[rows], losses)

    challenger = [
        member("A", slice(0, 30), 1.0),
        member("B", slice(0, 48), 2.0),
        member("C", slice(0, 9), 1.0),
    ]
    incumbent = [member("B", slice(12, 48), 3.0), member("A", slice(0, 48), 2.0)]
    comparison = daily_losses(challenger, incumbent)
    assert comparison.days.tolist() == [FIRST, FIRST + 1]
    np.testing.assert_array_equal(comparison.challenger, [[24, 24], [6, 48]])
    np.testing.assert_array_equal(comparison.incumbent, [[48, 36], [12, 72]])
    with pytest.raises(ValueError, match="no forecast row in common"):
        daily_losses(challenger[:1], incumbent[:1])


def test_eighteen_months_at_1h_and_twelve_below():
    assert [min_days(seconds) for seconds in (900, 1800, 3600, 86_400)] == [365, 365, 547, 547]


def test_the_recent_losses_are_those_of_the_last_91_days_alone():
    days = np.arange(FIRST, FIRST + 1096)
    better, worse = losses(0.01), losses(-0.01)
    for before, after in ((better, worse), (worse, better)):
        last = (days >= days[-1] - 90)[:, None]
        challenger = np.where(last, after.challenger, before.challenger)
        made = DailyLosses(days, challenger, better.incumbent)  # of both
        assert (paired(made).recent_p < 0.05) is (after is worse)
