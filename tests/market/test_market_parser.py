"""Any bytes give a complete frame or one typed error; no file harms another."""

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpbmodels.data.raw_tables import BINANCE_COLUMNS
from schemas.candles import KLINES
from tasks.market.client import BadFile
from tasks.market.fetch import Fetched
from tasks.market.layout import period_bounds, source_file
from tasks.market.parser import check, read, trim, validate_klines
from tests.tools.market_tools import csv_of, key, lines

DAY = source_file(key(), "2024-02-01")
GOOD = csv_of(DAY)
START = period_bounds("2024-02-01")[0]
relaxed = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def parse(csv, file=DAY):
    """The candles of a file; raises BadFile."""
    files = [trim(Fetched(file, csv))]
    frame, faults = read(files)
    checked, more = check(file.series, files, frame)
    for fault in {**faults, **more}.values():
        raise fault
    return checked.rows.select(pl.col("open_time").cast(KLINES["open_time"]), *list(KLINES)[1:])


def parsed(csv):
    """The candles, or None and the reason."""
    try:
        return parse(csv), ""
    except BadFile as fault:
        return None, str(fault)


def is_valid_or_refused(csv):
    """Nothing but a valid frame or a BadFile with a reason may come out."""
    rows, reason = parsed(csv)
    if rows is None:
        assert reason
        return
    assert rows.null_count().sum_horizontal()[0] == 0
    validate_klines(rows, "1h")


@relaxed
@given(st.one_of(st.binary(max_size=400), st.text("0123456789.,-+eEnaif\n\r\x00 \"'#").map(str.encode)))
def test_any_bytes(body):
    is_valid_or_refused(body)


@relaxed
@given(st.data())
def test_any_mutation_of_a_good_file(data):
    body = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        kind = data.draw(st.sampled_from(["flip", "delete", "insert", "cut", "double"]))
        if kind == "flip":
            body[at] = data.draw(st.integers(0, 255))
        elif kind == "delete":
            del body[at : at + data.draw(st.integers(1, 200))]
        elif kind == "insert":
            body[at:at] = data.draw(st.binary(min_size=1, max_size=6))
        elif kind == "cut":
            del body[at:]
        else:
            body[at:at] = body[at : at + 150]
        if not body:
            break
    is_valid_or_refused(bytes(body))


@relaxed
@given(
    st.integers(0, 23),
    st.integers(0, len(BINANCE_COLUMNS) - 2),
    st.sampled_from(["", "nan", "inf", "-1", "1e999", "x", "0x1", " "]),
)
def test_no_cell_may_be_silently_lost(line, column, value):
    rows = lines(GOOD)
    cells = rows[line].split(b",")
    cells[column] = value.encode()
    rows[line] = b",".join(cells)
    with pytest.raises(BadFile):
        parse(b"".join(rows))


def test_files_without_a_last_newline_do_not_fuse():
    files = [source_file(key(), "2024-02-01"), source_file(key(), "2024-02-02")]
    trimmed = [trim(Fetched(f, csv_of(f).rstrip(b"\n"))) for f in files]
    frame, faults = read(trimmed)
    assert not faults
    assert frame.group_by("file").len().sort("file")["len"].to_list() == [24, 24]


def test_only_the_file_at_fault_is_refused():
    files = [source_file(key(), f"2024-02-{d:02}") for d in (1, 2, 3)]
    bodies = [csv_of(files[0]), csv_of(files[1])[:-30], csv_of(files[2])]
    frame, faults = read([trim(Fetched(f, b)) for f, b in zip(files, bodies, strict=True)])
    assert list(faults) == [1]
    assert sorted(frame["file"].unique()) == [0, 2]
    assert frame.filter(pl.col("file") == 2)["line"].to_list() == list(range(1, 25))
