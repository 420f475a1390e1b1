"""The model card: what the models forecast, how to load them, their test scores, training spans and limits."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cpbmodels.errors import ModelError
from cpbmodels.files import read_regular
from cpbmodels.hub import PUBLIC_HUB, hub_of_environment
from schemas.chances import SCORED
from schemas.identity import MARKET_FOLDERS, OWN, SIM, SPOT
from tasks.figures.board import model_names
from tasks.market.client import BINANCE, BINANCE_REST
from tasks.market.rest import PATHS
from tasks.storage.model_folder import FORECAST_PICTURE, read_config
from tasks.storage.wheel import Wheel
from tasks.tracking.champions import Champion

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_CARD = """---
{metadata}
---

# Forecasting models for coins: {timeframes}

{count}, one folder each (`SYMBOL/INTERVAL/`), that forecast the distribution of the next closes of {market}:
19 quantiles and a median candle per step. Trained and judged with **cpb**.

{verdict} **No model predicts whether a price rises or falls**: what they forecast is how far it may move.
{picture}
## Use

```
{install}
```

The library comes from this repository, and pip checks its sha256; its dependencies are torch, numpy, safetensors,
polars and huggingface_hub. Without an NVIDIA GPU, install torch's CPU build before it: that is several GB smaller.

```python
{snippet}
```

It fetches `config.json` and `model.safetensors` (whose sha256 is checked). No pickle is read, and no code of this
repository is run.

## Scores and training spans

CRPS as a ratio to that of a random walk with EWMA volatility, at every origin of the test span, which no model has
seen: below 1 is better. In brackets the 95 % interval; *finding* is that of a test against the random walk, corrected
for the number of models. *selected on this span*: the architecture was chosen by rows of its test span, so it does not
count as a result; later rows do. *touch*: the same ratio of the Brier score of the chance that a price is reached
within the forecast's candles (`forecast.touch(price)`). *first*: that a target is reached before a stop
(`forecast.first(target, stop)`). *above*: that a close lies above a price (`forecast.above(price)`). Times are UTC.

| coin | candles | architecture | CRPS ratio | finding | touch | first | above | tested on | trained on |
|---|---|---|---|---|---|---|---|---|---|
{rows}

[`results.json`](results.json) has a row for each of these models, with all scores, options, times and memory;
architecture, features and data digest are in each folder's `config.json`.

## Data

{data}. Not included here. The table has the span that each model was trained on; its `config.json` names the columns
that were computed from the candles, and has their digest.
{record}
## Limits

- Not financial advice. No cost, spread or slippage is in these numbers.
- Past volatility patterns may end: the scores hold for their test spans.
- The coins were chosen because they still exist; coins that vanished are not in the data. Coins move together, so
  these are far fewer independent results than rows.
- `average`, `line` and `walk` models also read other coins' candles; from one coin's candles alone, as above, these
  columns are replaced by the coin's own (.0005 of the CRPS). `cpbmodels.data.series.with_cross_section([series, ...])`
  adds them.

## Licence

MIT, for the weights and the card.
"""

_PICTURE = """
![A forecast of {series}, and the candles that came true]({path})

A forecast of {series} at the end of its test span: the median, the bands of 50, 80 and 90 %, and the candles that came
true.
"""

_RECORD = """
## Check the record

`forecasts/` and `ledger/` have every forecast and score as JSON lines, `chain.jsonl` links them by sha256. In a copy
of this repository `python verify.py` computes all of it again; it needs Python 3.8 or newer and nothing else. Note the
hash that it prints: later, `python verify.py --head HASH` says whether it is still in the chain.

The library `datasets` reads such a copy: `load_dataset("copy", "forecasts", split="train")`, or `"ledger"`.
"""

_OWN_SNIPPET = """import polars as pl
from cpbmodels import Series, from_hub

symbol, timeframe = "{symbol}", "{timeframe}"  # or another row of the table
# Your table, of the same symbol and source: open_time (as 2024-01-31T12:00:00Z), open, high, low, close, volume.
candles = pl.read_csv("candles.csv", try_parse_dates=True)
series = Series.from_frame(candles, symbol, timeframe, partial="drop")  # without the candle that is still open
forecast = from_hub("{repo}", symbol, timeframe, market="own").forecast(series)
print(forecast.to_frame(stop=[0.05]))  # also the prices that are touched with a chance of 5 %"""

_SNIPPET = """import json
from urllib.request import urlopen

import polars as pl
from cpbmodels import Series, from_hub

symbol, timeframe = "{symbol}", "{timeframe}"  # or another row of the table
url = f"{url}?symbol={{symbol}}&interval={{timeframe}}&limit=1000"
columns = ["open_time", "open", "high", "low", "close", "volume"]
candles = pl.DataFrame([row[:6] for row in json.load(urlopen(url))], schema=columns, orient="row")
series = Series.from_frame(candles, symbol, timeframe, partial="drop")  # without the candle that is still open
forecast = from_hub("{repo}", symbol, timeframe, market="{market}").forecast(series)
print(forecast.to_frame(stop=[0.05]))  # also the prices that are touched with a chance of 5 %"""

_TASK = "time-series-forecasting"
"""The task of the Hub (`PIPELINE_DATA` in huggingface.js)."""

_RESULTS = {
    "crps_ratio": "CRPS / random walk's",
    "mae_ratio": "MAE / random walk's",
    **{
        f"{name}_brier_ratio": f"Brier score of {chances} / random walk's" for name, chances in SCORED.items()
    },
}
"""The scores in the metadata, which the Hub shows beside the card, and their names there."""

_FINDINGS = {"better": "better", "worse": "worse", "no": "no different"}


@dataclass(frozen=True)
class _Market:
    """Words of the card for a market: `of` its prices, its `data`, and the name of these in metadata."""

    of: str
    data: str
    dataset: str


_MARKETS = {
    SIM: _Market(
        "a **simulated market** (a demonstration, of no use on a real one)",
        "Simulated klines",
        "simulated-klines",
    ),
    OWN: _Market("the publisher's own candles", "The publisher's own candles", "own-klines"),
}
_BINANCE_MARKETS = {"spot": "spot", "um": "USDT-margined futures", "cm": "coin-margined futures"}


def words_of(name: str) -> _Market:
    """Return the words about a market, by its name."""
    if name not in _BINANCE_MARKETS:
        return _MARKETS[name]
    of = f"Binance's {_BINANCE_MARKETS[name]} market"
    data = f"[Public klines of {of}]({BINANCE}/?prefix=data/{MARKET_FOLDERS[name]}/), under Binance's terms"
    return _Market(of, data, f"binance-{name}-klines")


def model_card(
    champions: Sequence[Champion],
    repo: str,
    wheel: Wheel,
    *,
    record: Mapping[str, Any] = MappingProxyType({}),
    pictured: Champion | None = None,
) -> str:
    """Return the card as Markdown with Hub metadata; the same champions give the same text.

    Args:
        champions: of one market.
        repo: `USER/NAME` on the Hub at `HF_ENDPOINT`.
        wheel: the light library, stored next to the card.
        record: metadata by which `datasets` reads the record of forecasts beside it; empty without one.
        pictured: the champion whose picture lies in its folder beside the card, and is shown.

    Raises:
        DamagedError: a champion's `config.json` is not valid.
    """
    # All of one market, so the first stands for the words about prices and data.
    first = champions[0].series
    market = words_of(first.market)
    try:
        hub = hub_of_environment().url
    except ModelError:  # `publish` refuses it; a folder of one's own does not need it
        hub = PUBLIC_HUB
    rest = first.market if first.market in BINANCE_REST else SPOT  # simulated coins: the candles of spot
    snippet = _OWN_SNIPPET if first.market == OWN else _SNIPPET
    text = _CARD.format(
        timeframes=" and ".join(sorted({c.series.timeframe for c in champions})),
        count=f"{len(champions)} models" if len(champions) > 1 else "1 model",
        market=market.of,
        metadata=_metadata(champions, market, record),
        picture=_PICTURE.format(series=pictured.series, path=_place(pictured, FORECAST_PICTURE))
        if pictured
        else "",
        verdict=verdict(champions),
        install=f'pip install "cpbmodels[hub] @ {hub}/{repo}/resolve/main/{wheel.name}#sha256={wheel.sha256}"',
        snippet=snippet.format(
            symbol=first.symbol,
            timeframe=first.timeframe,
            url=f"{BINANCE_REST[rest]}/{PATHS[rest]}",
            repo=repo,
            market=first.market,
        ),
        rows="\n".join(f"| {' | '.join(row)} |" for row in map(_row, champions, _names(champions))),
        record=_RECORD if record else "",
        data=market.data,
    )
    return f"{text}{_seal(text)}"


def _metadata(champions: Sequence[Champion], market: _Market, record: Mapping[str, Any]) -> str:
    """Return the metadata of the Hub as YAML: task, library and licence, and in `model-index` the scores.

    No `datasets`: these are names of the Hub's own data sets, and the candles are none of them. `library_name` is that
    of the wheel beside the card: without a library's name the Hub takes a repository for one of `transformers`.
    """
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        license="mit",
        library_name="cpbmodels",
        pipeline_tag=_TASK,
        tags=["time-series", "probabilistic-forecasting", "finance", "pytorch", "safetensors"],
        model_name="cpb",
        eval_results=[result for champion in champions for result in _results(champion, market)] or None,
        **record,
    )
    return data.to_yaml()


def _results(champion: Champion, market: _Market) -> "list[EvalResult]":
    """Return the scores of a champion on its test span, as the Hub's metadata have them."""
    from huggingface_hub import EvalResult

    series = champion.series
    scores = {name: champion.metrics.get(f"test_{name}", math.nan) for name in _RESULTS}
    return [
        EvalResult(
            task_type=_TASK,
            dataset_type=market.dataset,
            dataset_name=f"{series.symbol} {series.timeframe}",
            dataset_config=series.name,  # without it the Hub takes all for results on one data set
            dataset_split="test",
            metric_type=name,
            metric_name=_RESULTS[name],
            metric_value=round(value, 6),
        )
        for name, value in scores.items()
        if math.isfinite(value)
    ]


def _place(champion: Champion, name: str) -> str:
    return f"{champion.series.label}/{champion.series.timeframe}/{name}"


def is_card(path: Path) -> bool:
    """Whether a file is a card as cpb wrote it: it ends with the digest of its text, in a comment."""
    try:
        text = read_regular(path).decode(errors="replace")
    except OSError:  # a pipe is none
        return False
    return text.endswith(_seal(text[:-_SEAL_LENGTH]))


def _seal(text: str) -> str:
    return f"\n<!-- cpb {hashlib.sha256(text.encode()).hexdigest()} -->\n"


_SEAL_LENGTH = len(_seal(""))


def verdict(champions: Sequence[Champion]) -> str:
    """Return the overall finding in plain sentences, from the champions' own test scores."""
    # From the champions' own figures: a card must not claim more than its table shows.
    scored = [c for c in champions if "test_crps_ratio" in c.metrics]
    if not scored:
        return "Not judged: these models carry no test scores. Treat them as untested."
    ratios = [c.metrics["test_crps_ratio"] for c in scored]
    findings = [_finding(c) for c in scored]
    # The median: one coin with a tiny reference would move a mean.
    middle = median(ratios)
    size = f"{100 * abs(1 - middle):.1f} % {'lower' if middle < 1 else 'higher'} than the random walk's"
    return (
        f"{sum(r < 1 for r in ratios)} of {len(ratios)} models have a lower CRPS than the random walk on their "
        f"test span, {findings.count('better')} of them significantly; {findings.count('worse')} are significantly "
        f"worse. The median model's CRPS is {size}."
    )


def _finding(champion: Champion) -> str:
    """Return the first word of a champion's verdict, a key of `_FINDINGS`; "" without one."""
    return champion.verdict.split(" ")[0]


def _names(champions: Sequence[Champion]) -> list[str]:
    """Return each champion's architecture, with its preset if the champions of it have several."""
    return model_names(
        [
            {"architecture": c.architecture or "–", "preset": c.tags.get("recipe") or c.preset}
            for c in champions
        ]
    )


def _row(champion: Champion, name: str) -> list[str]:
    config = read_config(champion.folder)
    # A dash for verdicts of other programs: the card repeats no text that it does not know.
    finding = _FINDINGS.get(_finding(champion), "–")
    spans = (config.bounds.get("test", ()), config.training_span)
    return [
        champion.series.label,
        champion.series.timeframe,
        name,
        _ratio(champion, "crps"),
        finding + (", selected on this span" if champion.selected_on else ""),
        *(_ratio(champion, f"{name}_brier") for name in SCORED),
        *(" to ".join(end[:16].replace("T", " ") for end in span) or "–" for span in spans),
    ]


def _ratio(champion: Champion, loss: str) -> str:
    ends = [champion.metrics.get(f"test_{loss}_ratio{end}", math.nan) for end in ("", "_low", "_high")]
    if not math.isfinite(ends[0]):
        return "–"
    return f"{ends[0]:.4f}" + (" [{:.4f}, {:.4f}]".format(*ends[1:]) if math.isfinite(ends[1]) else "")
