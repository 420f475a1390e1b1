"""A night may replace the packaged folder at any moment: what is made is wholly of the old model or of the new one."""

import os
import shutil
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import cpbmodels
from cpbmodels.data.columns import LAMBDA
from cpbmodels.data.prediction import QUANTILE_COLUMNS
from cpbmodels.data.series import Series
from cpbmodels.fleet.config import CONFIG, WEIGHTS
from schemas.candles import KLINES
from schemas.errors import CpbError, DamagedError, MemberError
from schemas.forecast_rows import REFERENCE_COLUMNS
from schemas.ledger import JudgedMetrics, Reference
from schemas.scope import ScopeSpec
from tasks.forecasting.issue import issue_forecasts
from tasks.forecasting.months import latest
from tasks.forecasting.price_chances import chances_of
from tasks.forecasting.watch import check_drift, read_watch
from tasks.storage.model_folder import REFERENCE, write_reference
from tasks.storage.packaged import packaged_models, read_packaged
from tasks.storage.records import file_digest
from tests.tools.forecast_tools import BTC

FIRST = datetime(2025, 5, 1, tzinfo=UTC)
ROWS = 700
NAMES = (CONFIG, WEIGHTS, REFERENCE)


def candles():
    """A random walk, as it is stored."""
    close = 100 * np.exp(np.cumsum(np.random.default_rng(5).standard_normal(ROWS) * 0.01))
    frame = pl.DataFrame(
        {
            "open_time": [FIRST + timedelta(hours=hour) for hour in range(ROWS)],
            "open": np.r_[100.0, close[:-1]],
            "close": close,
            **dict.fromkeys([*KLINES][5:], 1.0),
        }
    )
    wide = {
        "high": pl.max_horizontal("open", "close") * 1.002,
        "low": pl.min_horizontal("open", "close") / 1.002,
    }
    return frame.with_columns(**wide).select(pl.col(name).cast(kind) for name, kind in KLINES.items())


def reference(version):
    """A reference that tells its version by its width and its promise."""
    width = np.linspace(-1.0, 1.0, 19) * version
    promised = JudgedMetrics(
        n=1, crps_ratio=version, crps_ratio_low=0.5, crps_ratio_high=3, tail_ratio=1, coverage={50: 0.5}
    )
    table = tuple(tuple(width.tolist()) for _ in range(10))
    return Reference(series=BTC, table=table, decay=LAMBDA, origins=9, span=(0, 1), promised=promised)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two packaged folders, `hub-1` and `hub-2`, and a home with candles."""
    folder = tmp_path_factory.mktemp("versions")
    (member,) = cpbmodels.train_fleet(
        [Series.from_frame(candles(), "BTCUSDT", "1h")], "linear", "smoke", seeds=[1], device="cpu", epochs=1
    )
    for version in (1, 2):
        extremes = replace(member.extremes, distance=member.extremes.distance * np.float16(version))
        model = replace(member, table=member.table * version, extremes=extremes)
        about = {
            "model_version": f"{BTC.registered}/{version}",
            "market": "spot",
            "symbol": "BTCUSDT",
            "verdict": f"verdict {version}",
        }
        place = model.save(folder / f"hub-{version}" / "BTCUSDT" / "1h", about)
        write_reference(place, reference(version))
    month = BTC.folder(folder, "klines") / "2025-05.parquet"
    month.parent.mkdir(parents=True)
    candles().write_parquet(month)
    return folder


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    shutil.copytree(made / "klines", tmp_path / "klines")
    fresh(tmp_path, made)

    def let_the_writer_end(_seconds):
        if not (tmp_path / "hub").exists():
            (tmp_path / "next").rename(tmp_path / "hub")

    # No clock decides whether the second rename of `gone_between` comes in time: it comes while a reader waits.
    monkeypatch.setattr(
        "tasks.storage.folders.time", SimpleNamespace(sleep=let_the_writer_end, time=time.time)
    )
    return tmp_path


def fresh(home, made):
    """Serve version 1, keep version 2 beside it, forget all forecasts."""
    for name in ("hub", "next", "forecasts", "ledger", "aside"):
        shutil.rmtree(home / name, ignore_errors=True)
    shutil.copytree(made / "hub-1", home / "hub")
    shutil.copytree(made / "hub-2", home / "next")


def replaced(home):
    """Replace the folder as a night does."""
    (home / "hub").rename(home / "aside")
    (home / "next").rename(home / "hub")
    shutil.rmtree(home / "aside")


def replaced_and_kept(home):
    """Replace it; the old one is deleted later."""
    (home / "hub").rename(home / "aside")
    (home / "next").rename(home / "hub")


def model_replaced(home):
    """Replace the folder of this model alone."""
    (home / "hub/BTCUSDT/1h").rename(home / "aside")
    (home / "next/BTCUSDT/1h").rename(home / "hub/BTCUSDT/1h")
    shutil.rmtree(home / "aside")


def files_replaced(home):
    """Rename the files over the old ones, one by one."""
    for name in NAMES:
        (home / "next/BTCUSDT/1h" / name).replace(home / "hub/BTCUSDT/1h" / name)


def gone_between(home):
    """Replace it by two renames with a moment between them, in which there is none; `home` makes the second."""
    (home / "hub").rename(home / "aside")


SWAPS = (replaced, replaced_and_kept, model_replaced, files_replaced, gone_between)
_watched: list = []


def _audit(event, arguments):
    if event == "open" and _watched and isinstance(arguments[0], str | os.PathLike):
        path = Path(arguments[0])
        if path.name in NAMES or path.parts[-2:] == ("BTCUSDT", "1h"):
            _watched[-1](path)


sys.addaudithook(_audit)


@contextmanager
def at_opening(number, act):
    """Act before the opening with this number, from 0, of a file or folder of a model; yields the openings so far."""
    opened = []

    def look(path):
        opened.append(path)
        if len(opened) == number + 1:
            _watched.append(lambda _path: None)  # not of the act's own
            try:
                act()
            finally:
                _watched.pop()

    _watched.append(look)
    try:
        yield opened
    finally:
        _watched.remove(look)


def moments(home, made, swap, run):
    """Run once for each opening, with the folder replaced before it, and yield what each run gave."""
    for number in range(100):
        fresh(home, made)
        with at_opening(number, lambda: swap(home)) as opened:
            yield run(home)
        if len(opened) <= number:  # the last run met no swap
            assert number >= 4  # config, weights, reference and their folder
            return
    raise AssertionError("it opens files without end")


def scope():
    return ScopeSpec(coins="BTC", timeframes="1h", offline=True).scope


def issued(home):
    """Forecast with the packaged model; returns what the rows say."""
    batch = issue_forecasts(scope(), packaged_models(home, "spot"))
    if not batch.issued:
        assert batch.failures
        return None
    (about,), rows = batch.issued, latest(home, BTC)
    assert not batch.failures
    numbers = rows.select(*QUANTILE_COLUMNS, *REFERENCE_COLUMNS).to_numpy().tobytes()
    (version,), (weights,) = rows["model_version"].unique(), rows["weights_sha256"].unique()
    assert about.model_version == version
    return version, weights, about.verdict, numbers


@pytest.mark.parametrize("swap", SWAPS)
def test_rows_are_wholly_of_the_old_or_wholly_of_the_new_model(home, made, swap):
    old = issued(home)
    fresh(home, made)
    replaced(home)
    new = issued(home)
    assert list(old[:3]) == [
        f"{BTC.registered}/1",
        file_digest(made / "hub-1/BTCUSDT/1h" / WEIGHTS),
        "verdict 1",
    ]
    assert all(a != b for a, b in zip(old, new, strict=True))

    seen = list(moments(home, made, swap, issued))

    assert set(seen) <= {old, new, None}
    assert {old, new} <= set(seen)
    if swap is not files_replaced:  # which is no way in which cpb replaces a model
        assert None not in seen


@pytest.mark.parametrize("swap", SWAPS)
def test_chances_of_a_touch_are_of_the_model_that_forecast_or_there_are_none(home, made, swap):
    issued(home)
    rows = latest(home, BTC)
    chance = [a["probability"] for a in chances_of(home, BTC, rows).touch([101.0])]

    def chances(home):
        try:
            return [a["probability"] for a in chances_of(home, BTC, rows).touch([101.0])]
        except MemberError:
            return None

    seen = list(moments(home, made, swap, chances))
    assert chance in seen
    assert None in seen
    assert [found for found in seen if found not in (None, chance)] == []


@pytest.mark.parametrize("swap", SWAPS)
def test_the_drift_watch_holds_a_version_to_its_own_promise(home, made, swap):
    def watched(home):
        watching = check_drift(scope(), packaged_models(home, "spot"))
        if watching.failures:
            return None
        watch = read_watch(home, "spot").series[BTC.name]
        ((version, promise),) = watch.promises.items()
        return watch.model_version, version, watch.weights[version], promise.crps_ratio

    wanted = {
        (
            f"{BTC.registered}/{n}",
            f"{BTC.registered}/{n}",
            file_digest(made / f"hub-{n}/BTCUSDT/1h" / WEIGHTS),
            n,
        )
        for n in (1, 2)
    }
    seen = set(moments(home, made, swap, watched))
    assert wanted <= seen <= wanted | {None}


def test_a_folder_that_changes_each_time_it_is_read_is_an_error(home, made):
    def flip(path):
        if path.name != WEIGHTS:
            return
        _watched.append(lambda _path: None)
        (home / "hub").rename(home / "third")
        (home / "next").rename(home / "hub")
        (home / "third").rename(home / "next")
        _watched.pop()

    _watched.append(flip)
    try:
        with pytest.raises(CpbError, match=r"hub/BTCUSDT/1h was replaced each time that it was read; run"):
            read_packaged(home / "hub/BTCUSDT/1h")
    finally:
        _watched.clear()


def test_a_list_is_made_again_where_the_tree_was_replaced_meanwhile(home, made):
    listed, asked = Path.glob, []

    def replaced_meanwhile(path, pattern):
        found = list(listed(path, pattern))
        if path.name == "hub" and not asked:
            asked.append(path)
            replaced(home)
            raise FileNotFoundError(path / "forecasts")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "glob", replaced_meanwhile)
        (model,) = packaged_models(home, "spot")
    assert (asked, model.model_version) == ([home / "hub"], f"{BTC.registered}/2")


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_in_place_of_a_file_is_no_reason_to_wait(home, name):
    path = home / "hub/BTCUSDT/1h" / name
    path.unlink()
    os.mkfifo(path)
    if name == REFERENCE:
        model = read_packaged(path.parent)
        assert (model.reference, model.reference_fault) == (
            None,
            f"{path} is damaged: it cannot be read (it is not a regular file)",
        )
    else:
        with pytest.raises(DamagedError, match=f"{name} cannot be read .it is not a regular file"):
            read_packaged(path.parent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / CONFIG).unlink(), "config.json is missing"),
        (lambda folder: (folder / WEIGHTS).unlink(), "model.safetensors cannot be read"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"x"), "the sha256 of model.safetensors differs"),
        (lambda folder: shutil.rmtree(folder), "it cannot be read"),
    ],
)
def test_what_is_damaged_is_said_with_the_command_of_the_series(home, change, said):
    folder = home / "hub/BTCUSDT/1h"
    change(folder)
    with pytest.raises(DamagedError) as caught:
        read_packaged(folder)
    assert said in str(caught.value)
    assert str(caught.value).endswith("train it again with `cpb train-all --coins BTCUSDT --timeframes 1h`")
