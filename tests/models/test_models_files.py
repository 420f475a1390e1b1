"""Files that another person may have written: regular ones alone, and never more than a bound."""

import gzip
import os
import shutil
import socket
import threading
import zlib
from contextlib import suppress

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels import ModelError, Series, load, train_fleet
from cpbmodels.data import raw_tables
from cpbmodels.files import SMALL, gunzip, open_regular, read_regular
from tests.tools.candles import series_for, table


@pytest.fixture
def pipes():
    """A read of a pipe ends with an empty file, so that a test fails instead of waiting for ever."""
    stop, made = threading.Event(), []

    def write():
        while not stop.wait(0.05):
            for pipe in made:
                with suppress(OSError):
                    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield made
    stop.set()
    thread.join()


def pipe_at(path, pipes):
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    pipes.append(path)
    return path


def test_a_pipe_a_socket_a_device_and_a_folder_are_refused(tmp_path, pipes):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for path in (pipe_at(tmp_path / "pipe", pipes), tmp_path / "socket", "/dev/zero"):
            with pytest.raises(OSError, match="not a regular file"):
                open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 1)
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(tmp_path / "link", 1)


@given(content=st.binary(max_size=40), most=st.integers(0, 40))
def test_a_file_is_read_whole_or_refused(tmp_path_factory, content, most):
    path = tmp_path_factory.getbasetemp() / "content"
    path.write_bytes(content)
    if len(content) <= most:
        assert read_regular(path, most) == content
        return
    with pytest.raises(OSError, match=f"limit of {most} bytes"):
        read_regular(path, most)


def test_a_file_without_a_size_is_bounded_too():
    with pytest.raises(OSError, match="limit of 3 bytes"):
        read_regular("/proc/self/status", 3)


@given(parts=st.lists(st.binary(max_size=300), min_size=1, max_size=4), padding=st.integers(0, 3))
@settings(max_examples=60)
def test_gunzip_is_gzips_own(parts, padding):
    content = b"".join(map(gzip.compress, parts)) + b"\0" * padding
    assert gunzip(content, 2000) == gzip.decompress(content)
    if whole := len(b"".join(parts)):
        with pytest.raises(OSError, match="inflates"):
            gunzip(content, whole - 1)


def test_a_gzip_that_is_cut_off_or_none_is_an_error():
    content = gzip.compress(bytes(range(256)) * 9)
    for wrong in (content[:-9], content[:5], b"\x1f\x8b" + b"x" * 30, content + content[:30]):
        with pytest.raises((EOFError, zlib.error)):
            gunzip(wrong, 10_000)


def test_a_bomb_is_refused_while_it_inflates(tmp_path):
    bomb = gzip.compress(b"\0" * (SMALL + (8 << 20)), 9)
    path = tmp_path / "BTCUSDT-1h.csv.gz"
    path.write_bytes(bomb)
    with pytest.raises(
        ModelError, match=r"BTCUSDT-1h.csv.gz cannot be read \(it inflates to more than 64 MiB"
    ):
        Series.from_frame(path)


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_a_columnar_bomb_is_refused_before_it_is_read(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"bomb.{suffix}"
    rows = pl.DataFrame({"open_time": [0]}).with_columns(open=1.0, high=1.0, low=1.0, close=1.0)
    rows = pl.concat([rows] * 300)
    rows.write_parquet(path) if suffix == "parquet" else rows.write_ipc(path)
    monkeypatch.setattr(raw_tables, "MAX_CELLS", 1000)
    monkeypatch.setattr(
        pl, f"read_{'parquet' if suffix == 'parquet' else 'ipc'}", lambda *_: pytest.fail("read")
    )
    with pytest.raises(ModelError, match=r"1,500 cells, more than 1,000"):
        Series.from_frame(path)


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "feather"])
def test_a_table_that_is_a_pipe_or_too_large_is_one_sentence(suffix, tmp_path, monkeypatch, pipes):
    path = pipe_at(tmp_path / f"table.{suffix}", pipes)
    with pytest.raises(ModelError, match=f"table.{suffix} cannot be read .it is not a regular file"):
        Series.from_frame(path)
    path.unlink()
    path.write_bytes(b"x" * 100)
    monkeypatch.setattr(raw_tables, "MAX_BYTES", 50)
    with pytest.raises(ModelError, match="larger than the limit"):
        Series.from_frame(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_model_folder_with_a_pipe_is_one_sentence(name, tmp_path, pipes):
    member = train_fleet(
        [series_for("robust-har", 400)], "robust-har", device="cpu", preset="smoke", max_validation_windows=8
    )[0]
    member.save(tmp_path / "model")
    load(tmp_path / "model")
    pipe_at(tmp_path / "model" / name, pipes)
    with pytest.raises(ModelError, match=f"{name} cannot be read .it is not a regular file"):
        load(tmp_path / "model")
    shutil.rmtree(tmp_path / "model")


@pytest.mark.parametrize("price", [1e308, 1e16, 1e-16, 5e-324])
def test_a_price_that_is_no_money_is_refused(price):
    spoiled = table().with_columns(
        [
            pl.when(pl.int_range(pl.len()) == 7).then(price).otherwise(pl.col(n)).alias(n)
            for n in ("open", "high", "low", "close")
        ]
    )
    with pytest.raises(ModelError, match="row 7 is not a valid candle"):
        Series.from_frame(spoiled)
    with pytest.raises(ModelError, match="volume in row 7"):
        Series.from_frame(
            table().with_columns(volume=pl.when(pl.int_range(pl.len()) == 7).then(1e308).otherwise(1.0))
        )


@pytest.mark.parametrize("factor", [1e-10, 1e-12, 1e11])
def test_prices_of_tiny_and_redenominated_coins_are_kept(factor):
    names = ("open", "high", "low", "close")
    assert len(Series.from_frame(table().with_columns(pl.col(names) * (factor / 100)))) == 400
