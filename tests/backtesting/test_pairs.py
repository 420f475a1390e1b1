"""Pairs of models: Diebold-Mariano on common rows, corrected over the pairs."""

from dataclasses import replace

import pytest

from tasks.backtesting.results import all_pairs
from tasks.judging import pool
from tests.tools.known_markets import judged, market


def test_every_pair_of_a_timeframe_is_compared_once():
    from statsmodels.stats.multitest import multipletests  # takes seconds

    series = [market(seed=i, symbol=f"C{i}USDT") for i in range(2)]
    spreads = {"good": 1.0, "wide": 2.0, "same": 1.0}
    members = [
        judged(entry, spread, architecture=name) for name, spread in spreads.items() for entry in series
    ]
    pairs = {(pair.first, pair.second): pair for pair in all_pairs(members)}
    assert set(pairs) == {("good", "wide"), ("good", "same"), ("wide", "same")}
    pair = pairs["good", "wide"]
    of_model = {name: [m for m in members if m.architecture == name] for name in spreads}
    raw = {names: pool.compare_pair(of_model[names[0]], of_model[names[1]]) for names in pairs}
    assert (pair.ratio, pair.n) == (raw["good", "wide"][0], raw["good", "wide"][2])
    _, corrected, *_ = multipletests([raw[names][1] for names in pairs], method="holm")
    assert [entry.p for entry in pairs.values()] == pytest.approx(corrected, rel=1e-9)
    assert pair.verdict.startswith("good 1h is better than wide (CRPS ratio ")
    assert "wide 1h is worse than same" in pairs["wide", "same"].verdict
    assert pairs["good", "same"].verdict.startswith(
        "good 1h is no different from same (CRPS ratio 1.0000, p=1.000"
    )


def test_models_without_a_common_coin_make_no_pair():
    members = [judged(market(symbol="A"), architecture="x"), judged(market(symbol="B"), architecture="y")]
    assert all_pairs(members) == []
    assert all_pairs([]) == []


def test_a_market_that_never_moves_is_a_draw():
    still = [judged(market(), architecture=name) for name in ("a", "b")]
    still = [replace(m, losses={name: 0 * loss for name, loss in m.losses.items()}) for m in still]
    assert [(pair.ratio, pair.p) for pair in all_pairs(still)] == [(1.0, 1.0)]
