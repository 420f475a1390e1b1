"""The options that mean the same on every command."""

from typing import Annotated

import typer

Coins = Annotated[str, typer.Option("--coins", help="BTC,ETH or all; a coin without a quote means USDT")]
Timeframes = Annotated[str, typer.Option("--timeframes", help="Binance intervals, as in 15m,1h")]
Architectures = Annotated[
    str | None, typer.Option("--architectures", help="as in gru,har,har-universal; default: the preset's own")
]
Preset = Annotated[
    str, typer.Option("--preset", help="smoke, default, seed-transformer, seed-gru or seed-lstm")
]
Source = Annotated[
    str | None, typer.Option("--source", help="URL, folder or sim; default: Binance Vision itself")
]
Market = Annotated[str, typer.Option("--market", help="spot, um or cm")]
Since = Annotated[str | None, typer.Option("--since", help="first candle, as in 2024-01 or 2024-01-31 (UTC)")]
AsOf = Annotated[
    str | None, typer.Option("--as-of", help="no candle that closes after it is seen, as in 2025-06-06T12:00")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda")]
Profile = Annotated[str, typer.Option("--profile", help="auto, cpu, gpu-6gb, gpu-16gb or gpu-80gb")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="every member's own seed derives from it")]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds", min=1, max=64, help="copies of each model that are averaged; default: the preset's"
    ),
]
Repo = Annotated[str | None, typer.Option("--repo", help="Hub repository USER/NAME; without it: a dry run")]
Json = Annotated[bool, typer.Option("--json", help="one JSON object on stdout, as the last line")]
