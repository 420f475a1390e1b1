"""Significance against statsmodels, closed forms and simulated truth."""

import numpy as np
import pytest
from scipy.stats import norm

from tasks.judging import inference, verdicts


def autocorrelated(n, mean=0.0, rho=0.6, seed=0):
    noise = np.random.default_rng(seed).normal(size=n)
    x = np.empty(n)
    x[0] = noise[0]
    for t in range(1, n):
        x[t] = rho * x[t - 1] + noise[t]
    return x + mean


@pytest.mark.parametrize("lags", [0, 1, 9, 50])
def test_hac_variance_equals_statsmodels(lags):
    import statsmodels.api as sm  # takes seconds, which other tests need not wait for

    x = autocorrelated(400)
    fit = sm.OLS(x, np.ones(400)).fit(cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": False})
    assert inference.hac_variance(x, lags) == pytest.approx(fit.cov_params()[0, 0], rel=1e-9)
    statistic, p = inference.diebold_mariano(x, lags)
    assert statistic == pytest.approx(fit.tvalues[0], rel=1e-9)
    b = (lags + 1) / 400
    critical = 1.96 + 2.9694 * b + 0.416 * b**2 - 0.5324 * b**3  # Kiefer and Vogelsang (2005), table 1
    assert p == pytest.approx(2 * norm.sf(abs(fit.tvalues[0]) * 1.96 / critical), rel=1e-9)
    assert p > fit.pvalues[0]  # stricter than the normal approximation


@pytest.mark.parametrize(("n", "horizon"), [(48, 10), (300, 10)])
def test_no_skill_is_taken_for_skill_about_as_often_as_promised(n, horizon):
    lags = inference.block_length(horizon, n)
    rejected = [
        inference.diebold_mariano(autocorrelated(n, seed=seed), lags)[1] < 0.05 for seed in range(600)
    ]
    assert 0.02 < np.mean(rejected) < 0.1  # by the normal approximation .22 and .13


def test_holm_equals_statsmodels():
    from statsmodels.stats.multitest import multipletests

    p = np.random.default_rng(1).uniform(0, 0.1, 40)
    np.testing.assert_allclose(inference.holm(p), multipletests(p, method="holm")[1], rtol=1e-9)
    assert inference.holm([]) == []


def test_identical_losses_are_no_evidence():
    assert inference.diebold_mariano(np.zeros(100), 10) == (0.0, 1.0)
    assert inference.diebold_mariano(np.array([0.3]), 10) == (0.0, 1.0)


def test_interval_holds_the_truth_about_as_often_as_it_says():
    weights = inference.bootstrap_weights(40, draws=400, seed=3)
    held = 0
    for seed in range(200):
        loss = np.abs(autocorrelated(1600, seed=seed)) + 1
        other = np.abs(autocorrelated(1600, seed=1000 + seed)) + 1
        sums = [x.reshape(40, 40).sum(axis=1, keepdims=True) for x in (loss, other)]
        low, high = inference.interval(inference.ratio_draws(*sums, weights))
        held += low <= 1 <= high
    assert 0.88 <= held / 200 <= 0.99


def test_blocks_hold_two_horizons_and_share_a_grid():
    assert inference.block_length(10, 2880) == 53
    assert inference.block_length(10, 100) == 20
    times = np.array([0, 10, 20, 30, 70]) + 1000
    assert inference.block_ids(times, 20).tolist() == [0, 0, 1, 1, 3]
    assert inference.block_ids(times, 20, start=980).tolist() == [1, 1, 2, 2, 4]


def figures(ratio, p, n):
    return {
        "test_crps_ratio": ratio,
        "test_crps_ratio_low": ratio - 0.005,
        "test_crps_ratio_high": ratio + 0.005,
        "test_p": p,
        "test_n": n,
    }


@pytest.mark.parametrize(
    ("ratio", "p", "words"),
    [(0.98, 0.001, "better than"), (1.02, 0.01, "worse than"), (0.98, 0.06, "no different from")],
)
def test_verdict_says_what_was_found(ratio, p, words):
    text = verdicts.verdict(figures(ratio, p, 2880))
    assert text.startswith(f"{words} the random walk with EWMA volatility (CRPS ratio {ratio:.4f} [")
    assert text.endswith(f"p={p:.3f}, n=2,880)")


@pytest.mark.parametrize("ratio", [0.996, 1.004])
def test_a_verdict_never_contradicts_its_own_interval(ratio):
    text = verdicts.verdict(figures(ratio, 0.049, 8640))
    assert text.startswith("no different from")


def test_two_differences_are_enough_for_a_test_and_one_is_not():
    assert inference.diebold_mariano(np.array([1.0]), 0) == (0.0, 1.0)
    statistic, p = inference.diebold_mariano(np.array([1.0, 3.0]), 0)
    assert statistic == pytest.approx(2 / np.sqrt(0.5))
    assert 0 < p < 1


def test_a_resample_without_rows_of_a_coin_has_the_ratio_one():
    sums, denominators = np.array([[2.0, 0.0], [3.0, 5.0]]), np.array([[4.0, 0.0], [6.0, 10.0]])
    first_block_twice = np.array([[2.0, 0.0]])
    assert inference.ratio_draws(sums, denominators, first_block_twice).tolist() == [[0.5, 1.0]]


def test_without_rows_no_refresh_passes_and_the_interval_holds_everything():
    none = np.zeros(0)
    assert inference.not_worse(none, none, none.astype(np.int64), 4, 1) == (1.0, -np.inf, np.inf)


def test_the_interval_of_draws_leaves_a_fortieth_at_each_end():
    assert inference.interval(np.arange(1001.0)) == pytest.approx((25, 975))
    assert inference.interval(np.arange(1001.0), level=0.8) == pytest.approx((100, 900))
