"""The strategies of docs/examples in the real freqtrade, on candles that its models have not seen.

freqtrade lives in an environment of its own: `make freqtrade` builds it, `CPB_FREQTRADE_PYTHON` names another one. The
exchange's markets come from a stand-in on loopback; candles and models from cpb.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import polars as pl
import pytest

from cpbmodels import load
from cpbmodels.freqtrade import STARTUP_CANDLES, add_forecasts
from schemas.identity import SeriesId
from tasks.market.klines import read_klines
from tasks.market.simulator import serve
from tests.tools.doc_blocks import blocks

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("CPB_FREQTRADE_PYTHON") or ROOT / ".venv-freqtrade/bin/python")
MIRROR = ROOT.parent / "shared" / "market"
EXAMPLES = ROOT / "docs/examples/freqtrade"
RISK, BRACKET = "CpbRiskStrategy", "CpbBracketStrategy"
COINS = ("BTC", "ETH")
TRAINED_UNTIL, AS_OF = "2025-01-01", "2025-03-01"
WALLET = 1_000_000.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not PYTHON.exists(), reason="freqtrade's environment is not here: `make freqtrade` builds it"
    ),
]
mirror_is_here = pytest.mark.skipif(not MIRROR.exists(), reason="needs the mirror of real klines")


@pytest.fixture(scope="module", params=["sim", pytest.param(str(MIRROR), marks=mirror_is_here)])
def trader(request, tmp_path_factory, forking):
    """A folder of freqtrade's with candles up to AS_OF, champions trained as of TRAINED_UNTIL, and a way to run it."""
    folder = tmp_path_factory.mktemp("freqtrade")
    home, user = folder / "home", folder / "user_data"
    env = {
        k: v for k, v in os.environ.items() if not k.startswith(("CPB_", "MLFLOW_TRACKING", "PREFECT_API"))
    }
    scope = (
        "--source",
        request.param,
        "--coins",
        ",".join(COINS),
        "--timeframes",
        "1h",
        "--since",
        "2024-03",
    )
    recipe = ("--preset", "smoke", "--architectures", "robust-har,har")
    for command in (
        ("train-all", *scope, *recipe, "--as-of", TRAINED_UNTIL),
        ("ingest", *scope, "--as-of", AS_OF),
    ):
        subprocess.run([forking / "cpb", *command], cwd=folder, env=env | {"CPB_HOME": str(home)}, check=True)

    shutil.copytree(EXAMPLES, user / "strategies")
    market, root = ("sim", home / "sim") if request.param == "sim" else ("spot", home)
    candles = {}
    for coin in COINS:
        series = SeriesId(market, f"{coin}USDT", "1h")
        shutil.copytree(root / "hub" / series.label, user / "cpb" / series.symbol)
        klines = read_klines(home, series)
        candles[f"{coin}/USDT"] = to_feather(klines, user / "data/binance" / f"{coin}_USDT-1h.feather")

    with serve(None, hook=Exchange()) as url:
        (folder / "config.json").write_text(json.dumps(config_of(url)))
        env |= {"PYTHONPATH": str(ROOT), "COLUMNS": "240"}

        def command_of(command, *arguments):
            return [PYTHON, "-m", "freqtrade", command, "-c", "config.json", "--userdir", user, *arguments]

        def run(command, strategy, *arguments, timerange):
            done = subprocess.run(
                command_of(command, "--strategy", strategy, "--timerange", timerange, *arguments),
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            return " ".join(done.stderr.split()), done.stdout

        yield SimpleNamespace(run=run, user=user, candles=candles, home=home, market=market)


def to_feather(klines, path):
    """Candles as freqtrade stores them; returns them as freqtrade hands them to a strategy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = klines.select(
        pl.col("open_time").dt.cast_time_unit("ms").alias("date"), "open", "high", "low", "close", "volume"
    )
    frame.write_ipc(path, compression="lz4")
    dates = pd.to_datetime(frame["date"].dt.replace_time_zone(None).to_numpy(), utc=True)
    return pd.DataFrame({"date": dates, **{name: frame[name].to_numpy() for name in frame.columns[1:]}})


class Exchange:
    """A stand-in for the exchange's list of markets."""

    def __call__(self, _handler, path, query):
        answer = getattr(self, path.removeprefix("api/v3/").partition("/")[0], None)
        status, body = (404, {"code": -1, "msg": "not here"}) if answer is None else (200, answer(query))
        return status, {"Content-Type": "application/json"}, json.dumps(body).encode()

    def exchangeInfo(self, _query):
        filters = [
            {"filterType": "PRICE_FILTER", "minPrice": "0.01", "maxPrice": "1000000", "tickSize": "0.01"},
            {"filterType": "LOT_SIZE", "minQty": "0.00001", "maxQty": "9000", "stepSize": "0.00001"},
            {"filterType": "NOTIONAL", "minNotional": "5", "applyMinToMarket": True},
        ]
        symbols = [
            {
                "symbol": f"{coin}USDT",
                "status": "TRADING",
                "baseAsset": coin,
                "quoteAsset": "USDT",
                "baseAssetPrecision": 8,
                "quotePrecision": 8,
                "quoteAssetPrecision": 8,
                "filters": filters,
                "orderTypes": ["LIMIT", "MARKET"],
                "isSpotTradingAllowed": True,
                "permissionSets": [["SPOT"]],
            }
            for coin in COINS
        ]
        return {
            "timezone": "UTC",
            "serverTime": 0,
            "rateLimits": [],
            "exchangeFilters": [],
            "symbols": symbols,
        }


def config_of(url):
    pricing = {"price_side": "same", "use_order_book": False}
    api = {"urls": {"api": {"public": f"{url}/api/v3"}}, "options": {"fetchMarkets": {"types": ["spot"]}}}
    return {
        "stake_currency": "USDT",
        "stake_amount": "unlimited",
        "tradable_balance_ratio": 1.0,
        "max_open_trades": 2,
        "dry_run": True,
        "dry_run_wallet": WALLET,
        "trading_mode": "spot",
        "dataformat_ohlcv": "feather",
        "entry_pricing": pricing,
        "exit_pricing": pricing,
        "pairlists": [{"method": "StaticPairList"}],
        "exchange": {
            "name": "binance",
            "key": "",
            "secret": "",
            "ccxt_config": api,
            "enable_ws": False,
            "pair_whitelist": [f"{coin}/USDT" for coin in COINS],
        },
    }


def trades_of(trader, strategy):
    """The trades of a backtest; what was asked for begins before the models' training data end."""
    folder = trader.user / "backtest_results"
    shutil.rmtree(folder, ignore_errors=True)
    trader.run(
        "backtesting", strategy, "--export", "trades", "--cache", "none", timerange="20241201-20250301"
    )
    (path,) = folder.glob("*.zip")
    with zipfile.ZipFile(path) as archive:
        results = json.loads(archive.read(f"{path.stem}.json"))
    frame = pd.DataFrame(results["strategy"][strategy]["trades"])
    return frame.assign(**{name: pd.to_datetime(frame[name]) for name in ("open_date", "close_date")})


def forecasts_of(trader, pair, **asked):
    """The rows of `add_forecasts`, by the time at which each is known."""
    folder = trader.user / "cpb" / pair.replace("/", "") / "1h"
    rows = add_forecasts(trader.candles[pair], pair, "1h", folder, steps=[10], **asked)
    return rows.set_index(rows["date"] + timedelta(hours=1))


def test_a_backtest_trades_with_the_forecasts_stakes_and_stops_and_only_where_there_are_any(trader):
    trades = trades_of(trader, RISK)
    known_until = max(load(folder).known_until for folder in (trader.user / "cpb").glob("*/1h"))
    assert known_until == pd.Timestamp(TRAINED_UNTIL, tz="UTC")
    assert trades["open_date"].min() >= known_until  # and not in December, though it was asked for
    assert len(trades) > 20
    assert trades["pair"].nunique() == 2
    stopped = 0
    for trade in trades.itertuples():
        rows = forecasts_of(trader, trade.pair, stops=[0.05])
        profit = trades.loc[trades["close_date"] <= trade.open_date, "profit_abs"].sum()
        stake = 0.005 * (WALLET + profit) / rows["cpb_sigma_10"][trade.open_date]
        assert trade.stake_amount == pytest.approx(min(stake, WALLET), rel=2e-3)
        if trade.exit_reason in ("trailing_stop_loss", "stop_loss"):
            stops = rows["cpb_stop_down_0.05_10"][trade.open_date : trade.close_date]
            assert trade.stop_loss_abs == pytest.approx(stops.max(), rel=5e-5)  # rounded to a tick
            stopped += 1
    assert stopped > 5


def test_a_bracket_stays_where_it_lay_at_entry_and_its_tag_says_how_likely_the_target_is(trader):
    trades = trades_of(trader, BRACKET)
    ended = trades["exit_reason"].value_counts()
    assert ended["roi"] > 3
    assert ended["stop_loss"] > 10  # and none that was moved, which is a trailing_stop_loss
    assert {*ended.index} <= {"roi", "stop_loss", "force_exit"}  # the last: what is open at the end
    rows = {pair: forecasts_of(trader, pair, stops=[0.75], rewards=[3]) for pair in trader.candles}
    for trade in trades.itertuples():
        at = rows[trade.pair].loc[trade.open_date]
        chance = at["cpb_target_first_long_0.75_3R_10"]
        assert chance >= 0.1
        assert trade.enter_tag == f"3 R with this stop comes first in {100 * chance:.0f} %"
        assert trade.stop_loss_abs == pytest.approx(
            at["cpb_stop_down_0.75_10"], rel=5e-5
        )  # rounded to a tick
        if trade.exit_reason == "roi":
            target = at["cpb_target_long_0.75_3R_10"]
            assert trade.close_rate == pytest.approx(target, rel=5e-5)


def page(kind, text):
    (block,) = [
        block
        for block in blocks()
        if block.page == "docs/freqtrade.md" and block.kind == kind and text in block.text
    ]
    return block.text


def test_the_commands_of_the_page_are_freqtrades_and_its_backtest_runs(trader):
    """`download-data` is read alone: it asks the exchange."""
    typed = [shlex.split(line) for line in page("sh", "freqtrade backtesting").splitlines()]
    download, backtest = (words[1:] for words in typed if words[0] == ".venv/bin/freqtrade")
    for words in (download, backtest):
        code = f"from freqtrade.commands import Arguments; Arguments({words}).get_parsed_arg()"
        subprocess.run([PYTHON, "-c", code], check=True)
    options = dict(zip(backtest[1::2], backtest[2::2], strict=True))
    assert {*options} == {"-c", "--strategy", "--timerange"}
    said, table = trader.run(backtest[0], options["--strategy"], timerange=options["--timerange"])
    assert "Strategy using startup_candle_count: 699" in said
    assert int(re.search(rf"│ +{RISK} │ +(\d+) │", table)[1]) > 20
    warmed = pd.Timestamp(options["--timerange"].partition("-")[0]) - timedelta(hours=STARTUP_CANDLES)
    assert pd.Timestamp(download[download.index("--timerange") + 1].partition("-")[0]) <= warmed


def test_the_page_writes_cpbs_candles_as_freqtrade_reads_them(trader, tmp_path, monkeypatch):
    if trader.market != "spot":
        pytest.skip("the page's candles are those of the spot market")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(trader.home)
    exec(page("python", "write_ipc"), {})
    for path in (tmp_path / "FREQTRADE/user_data/data/binance").iterdir():
        assert pl.read_ipc(path).equals(pl.read_ipc(trader.user / "data/binance" / path.name))


@pytest.mark.parametrize("strategy", [RISK, BRACKET])
def test_lookahead_analysis_finds_no_bias(trader, strategy):
    said, table = trader.run(
        "lookahead-analysis",
        strategy,
        "--minimum-trade-amount",
        "10",
        "--targeted-trade-amount",
        "10",
        timerange="20250101-20250301",
    )
    assert f"{strategy}: no bias detected" in said
    assert re.search(rf"{strategy}.py\W+{strategy}\W+No\W+10\W+0\W+0\W+$", table, re.MULTILINE)


def test_recursive_analysis_finds_no_bias_with_the_candles_that_a_strategy_loads(trader):
    said, table = trader.run("recursive-analysis", BRACKET, "-p", "BTC/USDT", timerange="20250101-20250301")
    assert "No lookahead bias on indicators found" in said
    # A row for each indicator that changes with any number of earlier candles; the example's rolling means are pandas'.
    rows = [[cell.strip() for cell in re.split("[┃│]", line)] for line in table.splitlines()]
    for header in (row for row in rows if "Indicators" in row):
        own = header.index(f"{STARTUP_CANDLES} (from strategy)")
        assert {row[own] for row in rows if row[1:2] and row[1].startswith("cpb_")} <= {"-"}


def test_the_analysis_would_find_a_bias(trader):
    """Guards the test above: it must be able to fail here."""
    path = trader.user / "strategies" / f"{RISK}.py"
    honest = path.read_text()
    line = "        dataframe = self.add_forecasts(dataframe, metadata)\n"
    future = '        dataframe["cpb_sigma_10"] = dataframe["cpb_sigma_10"].shift(-1)\n'
    path.write_text(honest.replace(line, line + future))
    try:
        said, table = trader.run(
            "lookahead-analysis",
            RISK,
            "--minimum-trade-amount",
            "2",
            "--targeted-trade-amount",
            "2",
            timerange="20250101-20250301",
        )
    finally:
        path.write_text(honest)
    assert "bias detected!" in said
    assert "cpb_sigma_10" in table
