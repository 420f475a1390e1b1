"""`static/chances.js` computes what `cpbmodels.data.chances` does, to 1e-6: a published page has no service to ask."""

import base64
from pathlib import Path

import numpy as np
import pytest

import webapp
from cpbmodels.data.chances import Chances
from cpbmodels.data.extremes import Extremes, fit
from tests.tools.browser import launch, needs_browser
from tests.tools.known_chances import forecasts, market
from webapp.one_series import _values

pytestmark = [pytest.mark.slow, needs_browser]

SOURCE = Path(webapp.__file__).parent / "static" / "chances.js"
ASKED = """async ([source, table, close, last, prices, pairs, levels]) => {
  const { arrayOf, chancesOf } = await import(source);
  const [distance, first] = [table.distance, table.first].map((values) => values && arrayOf(values));
  const chances = chancesOf({ distance, first }, close, last);
  return {
    touch: prices.map(chances.touch), above: prices.map(chances.above),
    first: chances.first && pairs.map(([target, stop]) => chances.first(target, stop)),
    stops: levels.map((level) => ["up", "down"].map((side) => chances.stop(level, side))),
  };
}"""


@pytest.fixture(scope="module")
def ask():
    """Return a function that asks the module about a table, a forecast, prices, pairs and chances."""
    from playwright.sync_api import sync_playwright

    source = f"data:text/javascript;base64,{base64.b64encode(SOURCE.read_bytes()).decode()}"
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page()

        def asked(table, close, last, prices, pairs, levels):
            values = {name: a if a is None else _values(a) for name, a in vars(table).items()}
            given = [source, values, close.tolist(), last, list(prices), [list(p) for p in pairs], levels]
            return page.evaluate(ASKED, given)

        yield asked
        browser.close()


def of_a_market():
    series = market()
    made = forecasts(series)
    at = made.origins[7]
    return made.extremes, series.prices[at, 3] * np.exp(made.quantiles[7]), series.prices[at, 3]


def of_standing_candles():
    """Half of the candles do not move, so that most levels are at the close itself."""
    rng = np.random.default_rng(5)
    moves = np.maximum.accumulate(
        np.abs(rng.normal(0, 0.01, (2, 4000, 10))) * (rng.random((2, 4000, 10)) < 0.1), axis=-1
    )
    spread = np.linspace(-2, 2, 19) * 0.004 * np.sqrt(np.arange(1, 11))[:, None]
    spread[:4, 6:13] = 0.0  # several quantiles are one price
    widths = np.tile(spread[:, 17] - spread[:, 1], (4000, 1))
    return fit(moves, widths), 2e-5 * np.exp(spread), 2e-5


def of_a_coin_that_never_moves():
    zeros = Extremes(np.zeros((2, 3, 18), np.float16), np.zeros((3, 3, 19, 19), np.float16))
    return zeros, np.full((3, 19), 7.0), 7.0


def of_shares_that_agree_with_nothing():
    rng = np.random.default_rng(8)
    distance = np.sort(rng.uniform(0, 3, (2, 10, 18)), axis=-1).astype(np.float16)
    first = rng.random((3, 10, 19, 19)).astype(np.float16)
    return (
        Extremes(distance, first),
        98_000 * np.exp(np.sort(rng.normal(0, 0.02, (10, 19)), axis=-1)),
        98_000.0,
    )


def of_before():
    table = Extremes(np.sort(np.random.default_rng(3).uniform(0, 4, (2, 10, 99)), axis=-1).astype(np.float32))
    _, close, last = of_shares_that_agree_with_nothing()
    return table, close, last


@pytest.mark.parametrize(
    "made",
    [
        of_a_market,
        of_standing_candles,
        of_a_coin_that_never_moves,
        of_shares_that_agree_with_nothing,
        of_before,
    ],
)
def test_the_browser_computes_what_the_library_does(ask, made):
    table, close, last = made()
    last = float(last)
    chances = Chances(table, close, last)
    rng = np.random.default_rng(1)
    near = last * np.exp(rng.normal(0, 0.02, 150))
    far = last * np.exp(rng.uniform(-14, 14, 60))
    quantiles = rng.permutation(np.unique(close))[:60]
    prices = np.concatenate(
        [near, far, quantiles, [last, np.nextafter(last, 0), np.nextafter(last, 1e9), 1e-12, 1e12]]
    )
    pairs = [tuple(rng.choice(prices, 2)) for _ in range(1200)]
    levels = [0.5, 0.25, 0.1, 0.05, 0.01, 1e-4]

    found = ask(table, close, last, prices, pairs, levels)

    assert np.abs(np.array(found["touch"]) - chances.touch(prices)).max() < 1e-6
    assert np.abs(np.array(found["above"]) - chances.above(prices)).max() < 1e-6
    for level, sides in zip(levels, found["stops"], strict=True):
        for side, prices_of in zip(("up", "down"), sides, strict=True):
            assert prices_of == pytest.approx(chances.stop(level, side).tolist(), rel=1e-6)
    if table.first is None:
        assert found["first"] is None
        return
    told = 0
    for (target, stop), of_pair in zip(pairs, found["first"], strict=True):
        expected = chances.first_or_nan(target, stop)
        if np.isnan(expected).any():
            assert of_pair is None
            continue
        assert np.abs(np.array(of_pair) - expected).max() < 1e-6, (target, stop)
        told += 1
    assert told > 400
    assert len(pairs) - told > 400
