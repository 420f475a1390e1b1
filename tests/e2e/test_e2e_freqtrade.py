"""The strategy of docs/examples in the real freqtrade, on candles that its models have not seen.

freqtrade lives in an environment of its own: `make freqtrade` builds it, `CPB_FREQTRADE_PYTHON` names another one. The
exchange's markets come from a stand-in on loopback; candles and models from cpb.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import time
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

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("CPB_FREQTRADE_PYTHON") or ROOT / ".venv-freqtrade/bin/python")
MIRROR = ROOT.parent / "shared" / "market"
STRATEGY = ROOT / "docs/examples/freqtrade/CpbRiskStrategy.py"
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

ALWAYS = """
from CpbRiskStrategy import CpbRiskStrategy


class Always(CpbRiskStrategy):
    def populate_entry_trend(self, dataframe, metadata):
        return dataframe.assign(enter_long=1)

    def populate_exit_trend(self, dataframe, metadata):
        return dataframe
"""


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

    (user / "strategies").mkdir(parents=True)
    shutil.copy(STRATEGY, user / "strategies")
    market, root = ("sim", home / "sim") if request.param == "sim" else ("spot", home)
    candles = {}
    for coin in COINS:
        series = SeriesId(market, f"{coin}USDT", "1h")
        shutil.copytree(root / "hub" / series.label, user / "cpb" / series.symbol)
        klines = read_klines(home, series)
        candles[f"{coin}/USDT"] = to_feather(klines, user / "data/binance" / f"{coin}_USDT-1h.feather")

    with serve(None, hook=Exchange(candles)) as url:
        (folder / "config.json").write_text(json.dumps(config_of(url)))
        env |= {"PYTHONPATH": str(ROOT), "COLUMNS": "240"}

        def command_of(command, *arguments):
            return [PYTHON, "-m", "freqtrade", command, "-c", "config.json", "--userdir", user, *arguments]

        def run(command, *arguments, timerange):
            done = subprocess.run(
                command_of(command, "--strategy", STRATEGY.stem, "--timerange", timerange, *arguments),
                cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-4000:]
            return " ".join(done.stderr.split()), done.stdout

        def start(log, *arguments):
            return subprocess.Popen(
                command_of("trade", "--dry-run", *arguments), cwd=folder, stdout=log, stderr=log,
                env=env | {"PYTHONPATH": f"{ROOT}{os.pathsep}{user / 'strategies'}"},
            )  # fmt: skip

        yield SimpleNamespace(run=run, start=start, folder=folder, user=user, candles=candles)


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
    """A stand-in: markets, and for a live bot prices and candles, moved in time so that the last one is open."""

    def __init__(self, candles):
        self.candles = {pair.replace("/", ""): frame for pair, frame in candles.items()}

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
            {"symbol": f"{coin}USDT", "status": "TRADING", "baseAsset": coin, "quoteAsset": "USDT",
             "baseAssetPrecision": 8, "quotePrecision": 8, "quoteAssetPrecision": 8, "filters": filters,
             "orderTypes": ["LIMIT", "MARKET"], "isSpotTradingAllowed": True, "permissionSets": [["SPOT"]]}
            for coin in COINS
        ]  # fmt: skip
        return {
            "timezone": "UTC",
            "serverTime": 0,
            "rateLimits": [],
            "exchangeFilters": [],
            "symbols": symbols,
        }

    def time(self, _query):
        return {"serverTime": round(time.time() * 1000)}

    def klines(self, query):
        recent = moved(self.candles[query["symbol"]], pd.Timestamp.now(tz="UTC")).tail(int(query["limit"]))
        opens = recent["date"].astype("datetime64[ms, UTC]").astype("int64")
        prices = recent[["open", "high", "low", "close", "volume"]].astype(str).to_numpy().tolist()
        ends = ["0", 1, "0", "0", "0"]
        return [[t, *row, t + 3_599_999, *ends] for t, row in zip(opens.tolist(), prices, strict=True)]

    def ticker(self, query):
        price = str(self.candles[query["symbol"]]["close"].iloc[-1])
        now = round(time.time() * 1000)
        names = (
            "lastPrice",
            "bidPrice",
            "askPrice",
            "openPrice",
            "highPrice",
            "lowPrice",
            "weightedAvgPrice",
        )
        return {"symbol": query["symbol"], "openTime": now - 86_400_000, "closeTime": now} | dict.fromkeys(
            names, price
        )

    def depth(self, query):
        side = [[str(self.candles[query["symbol"]]["close"].iloc[-1]), "1000"]]
        return {"lastUpdateId": 1, "bids": side, "asks": side}


def moved(candles, now):
    """The candles with the last one open at `now`."""
    return candles.assign(date=candles["date"] + (now.floor("h") - candles["date"].iloc[-1]))


def config_of(url):
    pricing = {"price_side": "same", "use_order_book": False}
    api = {"urls": {"api": {"public": f"{url}/api/v3"}}, "options": {"fetchMarkets": {"types": ["spot"]}}}
    return {
        "stake_currency": "USDT", "stake_amount": "unlimited", "tradable_balance_ratio": 1.0, "max_open_trades": 2,
        "dry_run": True, "initial_state": "running", "db_url": "sqlite:///live.sqlite",
        "dry_run_wallet": WALLET, "trading_mode": "spot", "dataformat_ohlcv": "feather",
        "entry_pricing": pricing, "exit_pricing": pricing, "pairlists": [{"method": "StaticPairList"}],
        "exchange": {"name": "binance", "key": "", "secret": "", "ccxt_config": api,
                     "enable_ws": False, "pair_whitelist": [f"{coin}/USDT" for coin in COINS]},
    }  # fmt: skip


def trades_of(user):
    (path,) = (user / "backtest_results").glob("*.zip")
    with zipfile.ZipFile(path) as archive:
        found = json.loads(archive.read(f"{path.stem}.json"))
    frame = pd.DataFrame(found["strategy"][STRATEGY.stem]["trades"])
    return frame.assign(**{name: pd.to_datetime(frame[name]) for name in ("open_date", "close_date")})


def test_a_backtest_trades_with_the_forecasts_stakes_and_stops_and_only_where_there_are_any(trader):
    trader.run("backtesting", "--export", "trades", "--cache", "none", timerange="20241201-20250301")
    trades = trades_of(trader.user)
    known_until = max(load(folder).known_until for folder in (trader.user / "cpb").glob("*/1h"))
    assert known_until == pd.Timestamp(TRAINED_UNTIL, tz="UTC")
    assert trades["open_date"].min() >= known_until  # and not in December, though it was asked for
    assert len(trades) > 20
    assert trades["pair"].nunique() == 2
    stopped = 0
    for trade in trades.itertuples():
        folder = trader.user / "cpb" / trade.pair.replace("/", "") / "1h"
        rows = add_forecasts(trader.candles[trade.pair], trade.pair, "1h", folder, steps=[10])
        rows = rows.set_index(rows["date"] + timedelta(hours=1))  # when a row is known
        profit = trades.loc[trades["close_date"] <= trade.open_date, "profit_abs"].sum()
        stake = 0.005 * (WALLET + profit) / rows["cpb_sigma_10"][trade.open_date]
        assert trade.stake_amount == pytest.approx(min(stake, WALLET), rel=2e-3)
        if trade.exit_reason in ("trailing_stop_loss", "stop_loss"):
            stops = rows["cpb_q05_10"][trade.open_date : trade.close_date]
            assert trade.stop_loss_abs == pytest.approx(stops.max(), rel=5e-5)  # rounded to a tick
            stopped += 1
    assert stopped > 5


def test_a_live_bot_stakes_and_stops_by_the_candle_that_has_closed(trader):
    """The exchange sends the open candle too. No signal is waited for: the strategy enters at once."""
    (trader.user / "strategies" / "Always.py").write_text(ALWAYS)
    with (trader.folder / "live.log").open("w+") as log:
        bot = trader.start(log, "--strategy", "Always")
        try:
            trades = wait_for_trades(trader.folder / "live.sqlite", bot)
        finally:
            bot.terminate()
            bot.wait(60)
        log.seek(0)
        said = log.read()
    assert "ERROR" not in said
    assert "Strategy caused" not in said
    for pair, stake, stop, opened in trades:
        now = pd.Timestamp(opened, tz="UTC")
        candles = moved(trader.candles[pair], now)[:-1]
        folder = trader.user / "cpb" / pair.replace("/", "") / "1h"
        last = add_forecasts(candles, pair, "1h", folder, steps=[10]).iloc[-1]
        assert stake == pytest.approx(0.005 * WALLET / last["cpb_sigma_10"], rel=1e-3)
        assert stop == pytest.approx(last["cpb_q05_10"], rel=5e-5)


def wait_for_trades(path, bot, seconds=120):
    """Pair, stake, stop and opening time of a trade in each pair, once the bot has moved their first stops."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and bot.poll() is None:
        time.sleep(1)
        if not path.exists():
            continue
        with sqlite3.connect(path) as database:
            tables = database.execute("select count(*) from sqlite_master where name = 'trades'").fetchone()
            found = (
                tables[0]
                and database.execute(
                    "select pair, stake_amount, stop_loss, open_date from trades where stop_loss > initial_stop_loss"
                ).fetchall()
            )
        if found and len(found) == len(COINS):
            return found
    raise AssertionError("the bot has not opened a trade in every pair")


def test_lookahead_analysis_finds_no_bias(trader):
    said, table = trader.run(
        "lookahead-analysis", "--minimum-trade-amount", "10", "--targeted-trade-amount", "10",
        timerange="20250101-20250301",
    )  # fmt: skip
    assert "CpbRiskStrategy: no bias detected" in said
    assert re.search(r"CpbRiskStrategy.py\W+CpbRiskStrategy\W+No\W+10\W+0\W+0\W+$", table, re.MULTILINE)


def test_recursive_analysis_finds_no_variance_and_no_lookahead(trader):
    said, _ = trader.run(
        "recursive-analysis", "-p", "BTC/USDT", "--startup-candle", str(STARTUP_CANDLES), "1099",
        timerange="20250115-20250301",
    )  # fmt: skip
    assert "No variance on indicator(s) found due to recursive formula" in said
    assert "No lookahead bias on indicators found" in said


def test_the_analyses_would_find_a_bias_and_too_few_startup_candles(trader):
    """Guards the two tests above: both must be able to fail here."""
    path = trader.user / "strategies" / STRATEGY.name
    honest = path.read_text()
    line = "        dataframe = self.add_forecasts(dataframe, metadata)\n"
    future = '        dataframe["cpb_sigma_10"] = dataframe["cpb_sigma_10"].shift(-1)\n'
    path.write_text(honest.replace(line, line + future))
    try:
        said, table = trader.run(
            "lookahead-analysis", "--minimum-trade-amount", "2", "--targeted-trade-amount", "2",
            timerange="20250101-20250301",
        )  # fmt: skip
    finally:
        path.write_text(honest)
    assert "bias detected!" in said
    assert "cpb_sigma_10" in table
    _, table = trader.run(
        "recursive-analysis", "-p", "BTC/USDT", "--startup-candle", "180", timerange="20250115-20250301"
    )
    assert re.search(r"cpb_sigma_10\W+-?\d", table)
