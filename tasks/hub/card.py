"""The model card: what the models are, their results beside the random walk, what they can do, and their limits."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from schemas.identity import SIM
from tasks.tracking.registry import Champion

MARKER = "Trained and judged with **cpb**."
"""A sentence of every card, by which a folder of models is known to be written by cpb."""

_TEMPLATE = """---
{{ card_data }}
---

# Forecasting models for {{ coins }} coins × {{ timeframes }}

{{ count }} models, one folder each (`SYMBOL/INTERVAL/`), that forecast the distribution of the next closes of a
Binance market: 19 quantiles and a median candle per step. {{ marker }}

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
the 80 % interval; 0.8 is exact.

## Use

No pickle and no code from here: each folder is `model.safetensors` and `config.json` (architecture, dimensions,
context, horizon, quantiles, features, training span, data digest, metrics, library versions).

```python
from huggingface_hub import snapshot_download
from cpbmodels import Series, load

folder = snapshot_download("{{ repo }}")
model = load(f"{folder}/{{ first.label }}/{{ first.timeframe }}")
forecast = model.forecast(series)   # a Series of closed candles, oldest first
forecast.close[0.5], forecast.candle
```

## Limits

- Not financial advice. No cost, spread or slippage is in these numbers.
- Past volatility patterns may end: the figures hold for the test span given in each `config.json`.
- The coins were chosen because they still exist; ones that vanished are not in the data.
- Coins move together, so {{ count }} results are far fewer independent ones.
- Data: Binance's public klines, under Binance's terms; not included here.

## Licence

MIT, for the weights and the card.
"""


def model_card(champions: Sequence[Champion], repo: str = "USER/NAME") -> str:
    """Return the card as Markdown with Hub metadata (`model-index`); the same champions give the same text."""
    from huggingface_hub import ModelCard, ModelCardData

    data = ModelCardData(
        model_name="cpb",
        license="mit",
        pipeline_tag="time-series-forecasting",
        tags=["time-series", "probabilistic-forecasting", "finance", "safetensors"],
        eval_results=_results(champions) or None,
    )
    timeframes = sorted({c.series.timeframe for c in champions})
    card = ModelCard.from_template(
        data,
        template_str=_TEMPLATE,
        coins=len({c.series.label for c in champions}),
        timeframes=" and ".join(timeframes),
        count=len(champions),
        verdict=verdict(champions),
        simulated=sum(c.series.market == SIM for c in champions),
        marker=MARKER,
        rows=[_row(c) for c in champions],
        first=champions[0].series,
        repo=repo,
    )
    return str(card)


def verdict(champions: Sequence[Champion]) -> str:
    """Return the overall finding in plain sentences, from the champions' own test scores."""
    judged = [c for c in champions if "test_crps_ratio" in c.metrics]
    if not judged:
        return "Not judged: these models carry no test scores. Treat them as untested."
    scored = [c.metrics for c in judged]
    ratios = [m["test_crps_ratio"] for m in scored]
    found = [_finding(c) for c in judged]
    middle = median(ratios)
    size = f"{abs(1 - middle):.1%} {'lower' if middle < 1 else 'higher'} than the random walk's"
    return (
        f"{sum(r < 1 for r in ratios)} of {len(ratios)} models have a lower CRPS than the random walk on their "
        f"test span, {found.count('better')} of them significantly; {found.count('worse')} are significantly worse. "
        f"The median model's CRPS is {size}.{_direction(scored)}"
    )


def _finding(champion: Champion) -> str:
    """Return better, worse or no: the table's own finding, or the interval's where a model carries none."""
    if champion.verdict:
        return champion.verdict.split()[0]
    low, high = (champion.metrics.get(f"test_crps_ratio_{end}", math.nan) for end in ("low", "high"))
    return "better" if high < 1 else "worse" if low > 1 else "no"


def _direction(scored: Sequence[dict[str, float]]) -> str:
    hits = [m["test_directional_accuracy"] for m in scored if "test_directional_accuracy" in m]
    if not hits:
        return ""
    return f" Directions are right {sum(hits) / len(hits):.1%} of the time; a coin toss is 50 %."


def _results(champions: Sequence[Champion]) -> list[Any]:
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type="time-series-forecasting",
            dataset_type="binance-klines",
            dataset_name=str(c.series),
            dataset_config=c.series.name,  # without it the Hub takes all for one data set
            dataset_split="test",
            metric_type="crps_ratio",
            metric_name="CRPS / random walk's CRPS",
            metric_value=round(c.metrics["test_crps_ratio"], 6),
        )
        for c in champions
        if math.isfinite(c.metrics.get("test_crps_ratio", math.nan))
    ]


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
        (champion.verdict or "–").split(" (")[0].replace("|", "/"),
    ]


def _number(metrics: dict[str, float], name: str, form: str) -> str:
    value = metrics.get(name, math.nan)
    return format(value, form) if math.isfinite(value) else "–"
