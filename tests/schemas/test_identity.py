"""Series and models: what is formatted is parsed back, and markets never share a name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UsageError
from schemas.identity import INTERVAL_SECONDS, MARKETS, ModelId, SeriesId, market_home, stored_series

series_ids = st.builds(
    SeriesId,
    st.sampled_from(MARKETS),
    st.from_regex(r"[A-Z0-9]{2,30}(_PERP|_[0-9]{6})?", fullmatch=True),
    st.sampled_from(list(INTERVAL_SECONDS)),
)
words = st.from_regex(r"[a-z][a-z0-9+-]{0,20}", fullmatch=True)


@given(series_ids)
def test_a_series_is_parsed_back(series):
    assert SeriesId.parse(series.name) == series
    assert SeriesId.parse(series.registered) == series


@given(series_ids, series_ids)
def test_two_series_never_share_a_name_or_a_folder(one, other):
    home = Path("home")
    if one != other:
        assert one.name != other.name
        assert one.registered != other.registered
        assert one.folder(home, "klines") != other.folder(home, "klines")


def test_spot_keeps_its_names():
    series = SeriesId("spot", "BTCUSDT", "1h")
    assert (series.name, series.registered, str(series)) == ("BTCUSDT-1h", "cpb-BTCUSDT-1h", "BTCUSDT 1h")
    assert series.folder(Path("d"), "klines") == Path("d/klines/interval=1h/symbol=BTCUSDT")
    um = SeriesId("um", "BTCUSDT", "1h")
    assert (um.name, um.registered, str(um)) == ("um-BTCUSDT-1h", "cpb-um-BTCUSDT-1h", "um BTCUSDT 1h")
    assert um.folder(Path("d"), "forecasts") == Path("d/forecasts-um/interval=1h/symbol=BTCUSDT")
    sim = SeriesId("sim", "BTCUSDT", "1h")
    assert sim.folder(Path("d"), "klines") == Path("d/sim/klines/interval=1h/symbol=BTCUSDT")
    assert market_home(Path("d"), "sim") == Path("d/sim")
    assert str(ModelId("har", "default", um, 3)) == "har/um-BTCUSDT/1h"


@pytest.mark.parametrize(
    "name", ["", "BTCUSDT", "xx-BTCUSDT-1h", "BTCUSDT-7h", "btc-1h", "../x-1h", "a-b-c-d"]
)
def test_other_texts_name_no_series(name):
    with pytest.raises(UsageError):
        SeriesId.parse(name)


def test_the_store_lists_its_series_and_leaves_foreign_folders_out(tmp_path):
    mine = [SeriesId(m, "BTCUSDT", t) for m in MARKETS for t in ("1h", "1mo")]
    for series in mine:
        series.folder(tmp_path, "klines").mkdir(parents=True)
    (tmp_path / "klines" / "interval=1h" / "symbol=..x").mkdir()
    (tmp_path / "klines" / "interval=7h" / "symbol=BTCUSDT").mkdir(parents=True)
    assert stored_series(tmp_path, "klines") == sorted(mine)
    assert stored_series(tmp_path / "nothing", "klines") == []
