"""The model card: description of the models, results compared with the random walk, usage and limits."""

import math
import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from cpbmodels.data.wide import NO_MARKET
from schemas.identity import OWN, SIM, SPOT
from tasks.market.client import BINANCE_REST
from tasks.market.repair import PATHS
from tasks.storage.model_folder import read_config
from tasks.storage.urls import without_credentials
from tasks.storage.wheel import Wheel
from tasks.tracking.decisions import decision_in
from tasks.tracking.registry import Champion

MARKER = "Trained and judged with **cpb**."
"""A sentence in every card that identifies a folder of models as written by cpb."""

_TEMPLATE = """---
{{ card_data }}
---

# Forecasting models for {{ coins }} coins × {{ timeframes }}

{{ count }} models, one folder each (`SYMBOL/INTERVAL/`), that forecast the distribution of the next closes of
{{ of }}: 19 quantiles and a median candle per step. {{ marker }}

## Verdict

{{ verdict }}
{% if simulated %}
**{{ simulated }} of these models learned simulated klines: a demonstration, of no use on a real market.**
{% endif %}
**These models do not predict whether a price rises or falls.** What they forecast is how far it may move.

## Results

On the test span, which no model has seen, at every origin, against a random walk with EWMA volatility.
A ratio below 1 is better than the random walk. In brackets: the 95 % interval.

| coin | candles | architecture | CRPS ratio | MAE ratio | direction | inside 80 % | finding |
|---|---|---|---|---|---|---|---|
{% for row in rows -%}
| {{ row | join(" | ") }} |
{% endfor %}
*direction*: share of correct directions of the median; 0.5 is a coin toss. *inside 80 %*: share of closes inside
the 80 % interval; 0.8 is exact.{% if selected %} *selected on this span*: the architecture was chosen by rows of its
test span, so it does not count as a result; later rows do.{% endif %}
{% if picture %}
![A forecast on the test span, with what came true]({{ picture }})

A forecast on the test span ({{ picture_of }}): the median, the intervals of 50, 80 and 90 %, and what came true.
{% endif %}
## Why these models

Each model replaced the one before by a rule, with figures: a newer training of the same kind unless it is worse,
another kind only with evidence.

| coin | candles | when (UTC) | decision | why |
|---|---|---|---|---|
{% for row in decisions -%}
| {{ row | join(" | ") }} |
{% endfor %}
## Use

```
{{ install }}
```

The library comes from this repository, and pip checks its sha256; its dependencies are torch, numpy, safetensors,
polars and huggingface_hub. Without an NVIDIA GPU, install torch's CPU build before it: that is several GB smaller.

```python
{{ snippet }}
```

It fetches two files, `config.json` and `model.safetensors` (whose sha256 is checked), and
{{ newest }}. No pickle is read, and no code of this repository is run.
{% if of_market %}
{{ of_market }} of these models also read what all coins of their timeframe share (ranges, returns, BTC's range). From
one coin's candles, as above, each such column is replaced by what the coin's own columns say of it; in three years at
1h and 18 months at 15m that cost .0005 of the CRPS. With the candles of at least three coins nothing is lost:
`cpbmodels.data.wide.with_market([series, ...])` gives each series the market. The other columns reach back 35 days.
{% endif %}
## What they learned

The candles that the weights were fitted to, and those of the results above, which no model has seen (UTC).

| coin | candles | market | trained on | tested on |
|---|---|---|---|---|
{% for row in spans -%}
| {{ row | join(" | ") }} |
{% endfor %}
Everything else stands in each folder's `config.json`: architecture, dimensions, context, horizon, quantiles, features,
data digest, metrics, library versions.

## Limits

- Not financial advice. No cost, spread or slippage is in these numbers.
- Past volatility patterns may end: the figures hold for the test span given in each `config.json`.
- The coins were chosen because they still exist; coins that vanished are not in the data.
- Coins move together, so {{ count }} results are far fewer independent ones.
- Data: {{ data }}; not included here.

## Licence

MIT, for the weights and the card.
"""


_OWN_SNIPPET = """import polars as pl
from cpbmodels import Series, from_hub

symbol, timeframe = "{symbol}", "{timeframe}"  # or another row of the table
# Your table, of the same symbol and source: open_time (as 2024-01-31T12:00:00Z), open, high, low, close, volume.
candles = pl.read_csv("candles.csv", try_parse_dates=True)
series = Series.from_frame(candles, symbol, timeframe, partial="drop")  # without the candle that is still open
forecast = from_hub("{repo}", symbol, timeframe, market="own").forecast(series)
print(forecast.to_frame())"""

_SNIPPET = """import json
from urllib.request import urlopen

import polars as pl
from cpbmodels import Series, from_hub

symbol, timeframe = "{symbol}", "{timeframe}"  # or another row of the table
url = f"{url}?symbol={{symbol}}&interval={{timeframe}}&limit=1000"
columns = ["open_time", "open", "high", "low", "close", "volume"]
candles = pl.DataFrame([row[:6] for row in json.load(urlopen(url))], schema=columns, orient="row")
series = Series.from_frame(candles, symbol, timeframe, partial="drop")  # without the candle that is still open
forecast = from_hub("{repo}", symbol, timeframe{market}).forecast(series)
print(forecast.to_frame())"""

_HUB = "https://huggingface.co"

_BINANCE = "Binance's public klines, under Binance's terms"
_FROM_BINANCE = "the newest candles from Binance"
_OF = {SIM: "a simulated market", OWN: "the publisher's own candles"}
_DATA = {SIM: "simulated klines", OWN: "the publisher's own candles"}


def is_card(text: str) -> bool:
    """Whether a text is a card written by cpb."""
    return MARKER in text


def model_card(champions: Sequence[Champion], repo: str, wheel: Wheel, picture: str = "") -> str:
    """Return the card as Markdown with Hub metadata (`model-index`); the same champions give the same text.

    Args:
        repo: `USER/NAME` on the Hub at `HF_ENDPOINT`.
        wheel: the light library, stored next to the card.
        picture: `SYMBOL/IV/NAME.png` of the displayed forecast; "" for none.

    Raises:
        DamagedError: a champion's `config.json` is not valid.
    """
    from huggingface_hub import ModelCard, ModelCardData

    data = ModelCardData(
        model_name="cpb",
        library_name="cpbmodels",
        datasets=sorted({_dataset(c) for c in champions}),
        license="mit",
        pipeline_tag="time-series-forecasting",
        tags=["time-series", "probabilistic-forecasting", "finance", "safetensors"],
        eval_results=_results(champions) or None,
    )
    market = champions[0].series.market  # all champions of a package have the same market
    timeframes = sorted({c.series.timeframe for c in champions})
    real = sum(c.series.market != SIM for c in champions)
    card = ModelCard.from_template(
        data,
        template_str=_TEMPLATE,
        coins=len({c.series.label for c in champions}),
        timeframes=" and ".join(timeframes),
        count=len(champions),
        verdict=verdict(champions),
        simulated=len(champions) - real,
        marker=MARKER,
        rows=[_row(c) for c in champions],
        selected=any(c.selected_on for c in champions),
        decisions=[_decision_row(c) for c in champions],
        install=_install_line(repo, wheel),
        snippet=_snippet(champions[0], repo),
        of=_OF.get(market, "a Binance market"),
        newest="reads the newest candles from a table of yours" if market == OWN else _FROM_BINANCE,
        data=_DATA.get(market, _BINANCE),
        spans=[_spans(c) for c in champions],
        of_market=sum(NO_MARKET in read_config(c.folder).features for c in champions),
        picture=picture,
        picture_of=" ".join(picture.split("/")[:2]),
    )
    return str(card)


def _install_line(repo: str, wheel: Wheel) -> str:
    """Return the pip command that installs the library from the repository itself, without a package index."""
    hub = without_credentials(os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
    return f'pip install "cpbmodels[hub] @ {hub}/{repo}/resolve/main/{wheel.name}#sha256={wheel.sha256}"'


def _snippet(champion: Champion, repo: str) -> str:
    """Return example code that forecasts with a champion, from a table for own candles, otherwise from Binance.

    For a simulated market it uses the candles of spot.
    """
    series = champion.series
    if series.market == OWN:
        return _OWN_SNIPPET.format(symbol=series.symbol, timeframe=series.timeframe, repo=repo)
    market = series.market if series.market in BINANCE_REST else SPOT
    return _SNIPPET.format(
        symbol=series.symbol,
        timeframe=series.timeframe,
        url=f"{BINANCE_REST[market]}/{PATHS[market]}",
        repo=repo,
        market="" if series.market == SPOT else f', market="{series.market}"',
    )


def _spans(champion: Champion) -> list[str]:
    config = read_config(champion.folder)
    series, bounds = champion.series, config.bounds
    return [
        series.label, series.timeframe, series.market,
        _span(config.training_span), _span(bounds.get("test", ())),
    ]  # fmt: skip


def _span(ends: Sequence[str]) -> str:
    """Return a span of ISO times as `2024-10-01 00:00 to 2025-03-12 18:00`, or `–` if it is unknown."""
    return " to ".join(end[:16].replace("T", " ") for end in ends) or "–"


def verdict(champions: Sequence[Champion]) -> str:
    """Return the overall finding in plain sentences, from the champions' own test scores."""
    judged = [c for c in champions if "test_crps_ratio" in c.metrics]
    if not judged:
        return "Not judged: these models carry no test scores. Treat them as untested."
    scored = [c.metrics for c in judged]
    ratios = [m["test_crps_ratio"] for m in scored]
    found = [_finding(c) for c in judged]
    middle = median(ratios)
    size = f"{100 * abs(1 - middle):.1f} % {'lower' if middle < 1 else 'higher'} than the random walk's"
    return (
        f"{sum(r < 1 for r in ratios)} of {len(ratios)} models have a lower CRPS than the random walk on their "
        f"test span, {found.count('better')} of them significantly; {found.count('worse')} are significantly worse. "
        f"The median model's CRPS is {size}.{_direction(scored)}"
    )


def _finding(champion: Champion) -> str:
    """Return better, worse or no: the stored verdict, or the finding from the interval if there is no verdict."""
    if champion.verdict:
        return champion.verdict.split()[0]
    low, high = (champion.metrics.get(f"test_crps_ratio_{end}", math.nan) for end in ("low", "high"))
    return "better" if high < 1 else "worse" if low > 1 else "no"


def _direction(scored: Sequence[dict[str, float]]) -> str:
    hits = [m["test_directional_accuracy"] for m in scored if "test_directional_accuracy" in m]
    if not hits:
        return ""
    return f" Directions are right {100 * sum(hits) / len(hits):.1f} % of the time; a coin toss is 50 %."


def _results(champions: Sequence[Champion]) -> list[Any]:
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type="time-series-forecasting",
            dataset_type=_dataset(c),
            dataset_name=str(c.series),
            dataset_config=c.series.name,  # without it the Hub treats all as the same data set
            dataset_split="test",
            metric_type="crps_ratio",
            metric_name="CRPS / random walk's CRPS",
            metric_value=round(c.metrics["test_crps_ratio"], 6),
        )
        for c in champions
        if math.isfinite(c.metrics.get("test_crps_ratio", math.nan))
    ]


def _dataset(champion: Champion) -> str:
    return {SIM: "simulated-klines", OWN: "own-klines"}.get(champion.series.market, "binance-klines")


def _row(champion: Champion) -> list[str]:
    m = champion.metrics
    ratio = _number(m, "test_crps_ratio", ".4f")
    if "test_crps_ratio_low" in m:
        low, high = _number(m, "test_crps_ratio_low", ".4f"), _number(m, "test_crps_ratio_high", ".4f")
        ratio += f" [{low}, {high}]"
    return [
        champion.series.label,
        champion.series.timeframe,
        champion.architecture or "–",
        ratio,
        _number(m, "test_mae_ratio", ".4f"),
        _number(m, "test_directional_accuracy", ".3f"),
        _number(m, "test_coverage_80", ".3f"),
        (champion.verdict or "–").split(" (")[0].replace("|", "/")
        + (", selected on this span" if champion.selected_on else ""),
    ]


def _decision_row(champion: Champion) -> list[str]:
    """Return the row about the decision that made a model champion."""
    series, found = champion.series, decision_in(champion.tags)
    if found is None:
        return [series.label, series.timeframe, "–", "–", "no decision is recorded"]
    reason = found.reason.replace("|", "/").replace("\n", " ")
    return [series.label, series.timeframe, f"{found.decided_at:%Y-%m-%d %H:%M}", found.outcome, reason]


def _number(metrics: dict[str, float], name: str, form: str) -> str:
    value = metrics.get(name, math.nan)
    return format(value, form) if math.isfinite(value) else "–"
