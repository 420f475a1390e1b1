"""`cpb demo`, `cpb train-all` and `cpb train`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows import options as o
from flows.console import emit, fail_with, quiet_libraries, say

if TYPE_CHECKING:
    from flows.summary import Summary
    from schemas.config import TrainConfig

Number = Annotated[int | None, typer.Option()]


def demo(json: o.Json = False) -> None:
    """Train, judge and package 2 coins x {15m, 1h} x 5 architectures on simulated klines; needs no network.

    Example: cpb demo
    """
    summary = _train_all(config_of("BTC,ETH", "15m,1h", None, "smoke", "sim", None, None), direct=True)
    if json:
        emit(summary.as_json())
    else:
        _show_board(summary.run_id)
        _next_steps()
    raise typer.Exit(summary.exit_code)


def train_all(
    coins: o.Coins = "all",
    timeframes: o.Timeframes = "15m,1h",
    architectures: o.Architectures = None,
    preset: o.Preset = "default",
    source: o.Source = None,
    since: o.Since = None,
    as_of: o.AsOf = None,
    market: o.Market = "spot",
    device: o.Device = "auto",
    profile: o.Profile = "auto",
    seed: o.Seed = 1,
    seeds: o.Seeds = None,
    repo: o.Repo = None,
    tail: Annotated[bool, typer.Option("--tail", help="add the newest candles from the REST API")] = False,
    warm_start: Annotated[
        str | None, typer.Option("--warm-start", help="champion: continue from the registered models")
    ] = None,
    json: o.Json = False,
) -> None:
    """Ingest, train, judge, promote, package and forecast the whole universe.

    Example: cpb train-all --source sim --coins BTC,ETH --preset smoke
    """
    config = config_of(
        coins, timeframes, architectures, preset, source, since, as_of, market,
        device=device, profile=profile, seed=seed, seeds=seeds, repo=repo, warm_start=warm_start,
    )  # fmt: skip
    summary = _train_all(config, tail=tail)
    if json:
        emit(summary.as_json())
    else:
        _show_board(summary.run_id)
    raise typer.Exit(summary.exit_code)


def train(
    coin: Annotated[str, typer.Argument(help="BTCUSDT, or BTC")],
    timeframe: Annotated[str, typer.Argument(help="a Binance interval, as in 1h")],
    arch: Annotated[str, typer.Option("--arch", help="transformer, gru, lstm, linear, har, …")] = "har",
    preset: Annotated[
        str | None, typer.Option("--preset", help="default: the architecture's own seed preset")
    ] = None,
    batch_size: Number = None,
    hidden_dim: Number = None,
    n_layers: Number = None,
    n_heads: Number = None,
    max_epochs: Number = None,
    patience: Number = None,
    context: Number = None,
    horizon: Number = None,
    learning_rate: Annotated[float | None, typer.Option()] = None,
    dropout: Annotated[float | None, typer.Option()] = None,
    head: Annotated[str | None, typer.Option(help="student-t, quantile or point")] = None,
    mixed_precision: Annotated[bool | None, typer.Option("--mixed-precision/--no-mixed-precision")] = None,
    device: o.Device = "auto",
    profile: o.Profile = "auto",
    seed: o.Seed = 1,
    seeds: o.Seeds = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="latest: go on from the last checkpoint")
    ] = None,
    warm_start: Annotated[
        str | None, typer.Option("--warm-start", help="champion: start from its weights")
    ] = None,
    source: o.Source = None,
    since: o.Since = None,
    as_of: o.AsOf = None,
    market: o.Market = "spot",
    json: o.Json = False,
) -> None:
    """Train and judge one model.

    Example: cpb train BTCUSDT 1h --arch lstm --source sim --max-epochs 5
    """
    given = {
        "batch_size": batch_size, "hidden_dim": hidden_dim, "n_layers": n_layers, "n_heads": n_heads,
        "max_epochs": max_epochs, "patience": patience, "context": context, "horizon": horizon,
        "learning_rate": learning_rate, "dropout": dropout, "head": head, "mixed_precision": mixed_precision,
    }  # fmt: skip
    from flows.progress import training_bars
    from flows.train_one import check_options, default_preset, train_one

    quiet_libraries()
    if resume not in (None, "latest"):
        fail_with(f"--resume {resume!r} is unknown: the only value is latest")
    overrides = {name: value for name, value in given.items() if value is not None}
    with _named({"--architectures": "--arch", "--coins": "coin", "--timeframes": "timeframe"}):
        config = config_of(
            coin, timeframe, arch, preset or default_preset(arch), source, since, as_of, market,
            device=device, profile=profile, seed=seed, seeds=seeds, overrides=overrides, warm_start=warm_start,
        )  # fmt: skip
    if len(config.scope.symbols) * len(config.scope.timeframes) * len(config.architectures) != 1:
        fail_with(
            "`cpb train` trains one model: name one coin, one timeframe and one --arch, or use `cpb train-all`"
        )
    check_options(config)
    try:
        with training_bars() as bars:
            result = train_one(config, resume=resume == "latest", say=say, on_progress=bars)
    except KeyboardInterrupt:
        say("cpb: `--resume latest` goes on from the last checkpoint; without it `cpb train` starts anew")
        raise
    if json:
        emit(result)
    else:
        memory = result.pop("memory")
        for name, value in (result | memory).items():
            say(f"{name:>26}  {f'{value:,.6g}' if isinstance(value, float) else value}")
    raise typer.Exit(int(result["exit"]))


@contextmanager
def _named(names: dict[str, str]) -> Iterator[None]:
    """Let a usage error name the options as this command calls them."""
    from schemas.errors import UsageError

    try:
        yield
    except UsageError as error:
        text = str(error)
        for theirs, ours in names.items():
            text = text.replace(theirs, ours)
        raise UsageError(text) from None


def config_of(
    coins: str,
    timeframes: str,
    architectures: str | None,
    preset: str,
    source: str | None,
    since: str | None,
    as_of: str | None,
    market: str = "spot",
    **fields: Any,
) -> "TrainConfig":
    """Return the config of a command's options.

    Raises:
        UsageError: an option that cannot be, before anything is fetched.
    """
    from schemas.config import PRESET_SEEDS, TrainConfig, check_device, check_profile, parse_architectures
    from schemas.scope import Scope

    seeds = fields.get("seeds") or PRESET_SEEDS.get(preset, 1)
    checked = {"profile": check_profile(fields.get("profile", "auto")), "seeds": seeds}
    if check_device(fields.get("device", "auto")).startswith("cuda"):
        _need_gpu()
    if fields.get("warm_start") not in (None, "champion"):
        fail_with(f"--warm-start {fields['warm_start']!r} is unknown: the only value is champion")
    names = parse_architectures(architectures, preset)
    _check_presets(preset, names)
    return TrainConfig(
        scope=Scope.of(coins, timeframes, source, market, since, as_of),
        preset=preset,
        architectures=names,
        **fields | checked,
    )


def _check_presets(preset: str, architectures: tuple[str, ...]) -> None:
    """Refuse a seed preset with another's architecture; loads no torch."""
    from cpbmodels import ModelError
    from cpbmodels import preset as resolve
    from schemas.config import UNIVERSAL

    for name in architectures:
        try:
            resolve(preset, name.removesuffix(UNIVERSAL))
        except ModelError as error:
            fail_with(f"--{error}")  # it begins: preset ...


def _need_gpu() -> None:
    from tasks.training.launch import count_gpus

    if not count_gpus():
        fail_with("--device cuda: no NVIDIA GPU is visible here (see `cpb doctor`); use --device cpu or auto")


def _train_all(config: "TrainConfig", direct: bool = False, tail: bool = False) -> "Summary":
    quiet_libraries()
    from flows.progress import training_bars
    from flows.prefect_server import server_in_use
    from flows.runner import Direct
    from flows.train_all import in_prefect, run_train_all

    if server_in_use() and not direct:
        return in_prefect(config, tail)
    with training_bars() as bars:
        return run_train_all(config, Direct(), say, tail=tail, on_progress=bars)


def _show_board(run_id: str) -> None:
    from flows.cli_models import print_board
    from tasks.tracking.leaderboard import leaderboard

    print_board(leaderboard(run_id))


def _next_steps() -> None:
    from tasks.tracking.store import public_uri, tracking_uri

    cpb = "cpb" if os.environ.get("VIRTUAL_ENV") else ".venv/bin/cpb"
    say(f"\nMLflow store: {public_uri(tracking_uri())}\nNext:")
    say(f"  {cpb} ui                                       compare the runs in the MLflow UI")
    say(f"  {cpb} serve                                    forecasts on a page")
    say(f"  {cpb} train-all --coins BTC,ETH --preset smoke  the same on real klines from Binance Vision")
