"""The model card: what the models forecast, how to load them, their test scores, training spans and limits."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from cpbmodels.errors import ModelError
from cpbmodels.files import read_regular
from cpbmodels.hub import PUBLIC_HUB, hub_of_environment
from schemas.identity import OWN, SIM, SPOT
from tasks.market.client import BINANCE_REST
from tasks.market.repair import PATHS
from tasks.storage.model_folder import read_config
from tasks.storage.wheel import Wheel
from tasks.tracking.registry import Champion

_CARD = """---
license: mit
library_name: cpbmodels
pipeline_tag: time-series-forecasting
tags: [time-series, probabilistic-forecasting, finance, safetensors]
---

# Forecasting models for coins: {timeframes}

{count}, one folder each (`SYMBOL/INTERVAL/`), that forecast the distribution of the next closes of {market}:
19 quantiles and a median candle per step. Trained and judged with **cpb**.

{verdict} **No model predicts whether a price rises or falls**: what they forecast is how far it may move.

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
seen: below 1 is better. In brackets the 95 % interval. *selected on this span*: the architecture was chosen by rows of
its test span, so it does not count as a result; later rows do. *touch*: the same ratio of the Brier score of the chance
that a price is reached within the forecast's candles (`forecast.touch(price)`). Times are UTC.

| coin | candles | architecture | CRPS ratio | finding | touch | tested on | trained on |
|---|---|---|---|---|---|---|---|
{rows}

Architecture, features, data digest and all metrics are in each folder's `config.json`.
{record}
## Limits

- Not financial advice. No cost, spread or slippage is in these numbers.
- Past volatility patterns may end: the scores hold for their test spans.
- The coins were chosen because they still exist; coins that vanished are not in the data. Coins move together, so
  these are far fewer independent results than rows.
- `average`, `line` and `walk` models also read other coins' candles; from one coin's candles alone, as above, these
  columns are replaced by the coin's own (.0005 of the CRPS). `cpbmodels.data.wide.with_market([series, ...])` adds
  them.
- Data: {data}; not included here.

## Licence

MIT, for the weights and the card.
"""

_RECORD = """
## Check the record

`forecasts/` and `ledger/` have every forecast and score as JSON lines, `chain.jsonl` links them by sha256. In a copy
of this repository `python verify.py` computes all of it again; it needs Python 3.8 or newer and nothing else. Note the
hash that it prints: later, `python verify.py --head HASH` says whether it is still in the chain.
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

_MARKETS = {
    SIM: ("a **simulated market** (a demonstration, of no use on a real one)", "simulated klines"),
    OWN: ("the publisher's own candles", "the publisher's own candles"),
}
_BINANCE = ("a Binance market", "Binance's public klines, under Binance's terms")


def model_card(champions: Sequence[Champion], repo: str, wheel: Wheel, *, record: bool = False) -> str:
    """Return the card as Markdown with Hub metadata; the same champions give the same text.

    Args:
        champions: of one market.
        repo: `USER/NAME` on the Hub at `HF_ENDPOINT`.
        wheel: the light library, stored next to the card.
        record: whether the record of forecasts lies beside it.

    Raises:
        DamagedError: a champion's `config.json` is not valid.
    """
    first = champions[0].series
    market, data = _MARKETS.get(first.market, _BINANCE)
    try:
        hub = hub_of_environment().url
    except ModelError:  # `publish` refuses it; a folder of one's own does not need it
        hub = PUBLIC_HUB
    rest = first.market if first.market in BINANCE_REST else SPOT  # simulated coins: the candles of spot
    snippet = _OWN_SNIPPET if first.market == OWN else _SNIPPET
    text = _CARD.format(
        timeframes=" and ".join(sorted({c.series.timeframe for c in champions})),
        count=f"{len(champions)} models" if len(champions) > 1 else "1 model",
        market=market,
        verdict=verdict(champions),
        install=f'pip install "cpbmodels[hub] @ {hub}/{repo}/resolve/main/{wheel.name}#sha256={wheel.sha256}"',
        snippet=snippet.format(
            symbol=first.symbol,
            timeframe=first.timeframe,
            url=f"{BINANCE_REST[rest]}/{PATHS[rest]}",
            repo=repo,
            market=first.market,
        ),
        rows="\n".join(f"| {' | '.join(_row(champion))} |" for champion in champions),
        record=_RECORD if record else "",
        data=data,
    )
    return f"{text}{_seal(text)}"


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
    scored = [c for c in champions if "test_crps_ratio" in c.metrics]
    if not scored:
        return "Not judged: these models carry no test scores. Treat them as untested."
    ratios = [c.metrics["test_crps_ratio"] for c in scored]
    findings = [c.verdict.split()[0] if c.verdict else "" for c in scored]
    middle = median(ratios)
    size = f"{100 * abs(1 - middle):.1f} % {'lower' if middle < 1 else 'higher'} than the random walk's"
    return (
        f"{sum(r < 1 for r in ratios)} of {len(ratios)} models have a lower CRPS than the random walk on their "
        f"test span, {findings.count('better')} of them significantly; {findings.count('worse')} are significantly "
        f"worse. The median model's CRPS is {size}."
    )


def _row(champion: Champion) -> list[str]:
    config = read_config(champion.folder)
    finding = (champion.verdict or "–").split(" (")[0].replace("|", "/")
    spans = (config.bounds.get("test", ()), config.training_span)
    return [
        champion.series.label, champion.series.timeframe, champion.architecture or "–",
        _ratio(champion, "crps"), finding + (", selected on this span" if champion.selected_on else ""),
        _ratio(champion, "touch_brier"),
        *(" to ".join(end[:16].replace("T", " ") for end in span) or "–" for span in spans),
    ]  # fmt: skip


def _ratio(champion: Champion, loss: str) -> str:
    ends = [champion.metrics.get(f"test_{loss}_ratio{end}", math.nan) for end in ("", "_low", "_high")]
    if not math.isfinite(ends[0]):
        return "–"
    return f"{ends[0]:.4f}" + (" [{:.4f}, {:.4f}]".format(*ends[1:]) if math.isfinite(ends[1]) else "")
