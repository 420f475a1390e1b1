"""Damaged files of the forecast store: named, left out on reading, never written to, and used again once restored."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from schemas.errors import DamagedError
from tasks.forecasting import months
from tasks.forecasting.months import FORECASTS, latest
from tasks.forecasting.published import RESTORE
from tasks.forecasting.record import ledger_rows, score_due, write_summary
from tests.tools.forecast_tools import BTC, HOUR, PEPE, START, append, flip, rows_at, write_candles
from tests.tools.live_record import ledger, read
from tests.tools.verifying import verify_forecasts as verify


def cut(path):
    path.write_bytes(path.read_bytes()[:-200])


def garbage(path):
    path.write_bytes(b"PAR1" + bytes(500))


def empty(path):
    path.write_bytes(b"")


def other_columns(path):
    pl.DataFrame({"a": [1]}).write_parquet(path)


def flip_value(path):
    """A bit of a value: one of a name or of padding changes no row."""
    flip(path, 0.3)


DAMAGE = [cut, flip_value, garbage, empty, other_columns]


@pytest.fixture(scope="module")
def two_months(tmp_path_factory):
    """Forecasts of two months, with scores, and of a second series."""
    made = tmp_path_factory.mktemp("months") / "home"
    append(made, PEPE, rows_at(0))
    append(made, PEPE, rows_at(8))
    append(made, BTC, rows_at(series=BTC))
    write_candles(made, [8e-6] * 30)
    write_candles(made, [8e-6] * 30, BTC)
    assert score_due(made, [PEPE, BTC], START + 20 * HOUR).rows == 30
    return made


@pytest.fixture
def home(two_months, tmp_path):
    """The test's own copy of that home."""
    return Path(shutil.copytree(two_months, tmp_path, dirs_exist_ok=True))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_month_is_left_out_of_lists_and_named_with_a_command(home, damage, caplog):
    newest = PEPE.folder(home, "forecasts") / "2025-06.parquet"
    damage(newest)

    assert read(home, PEPE).equals(rows_at(0))
    with pytest.raises(DamagedError, match=r"PEPEUSDT/2025-06.parquet is damaged: "):
        latest(home, PEPE)  # an older forecast is not the newest
    assert latest(home, PEPE, START).equals(rows_at(0))
    assert len(ledger(home, PEPE)) == 10
    assert len(read(home, BTC)) == 10
    (said,) = [r.getMessage() for r in caplog.records]  # once, however often it is read
    assert said.startswith("forecasts/interval=1h/symbol=PEPEUSDT/2025-06.parquet is damaged: ")
    assert "restore it from a backup" in said
    assert newest.exists()


@pytest.mark.parametrize("place", [i / 12 for i in range(12)])
@pytest.mark.parametrize("tree", ["forecasts", "ledger"])
def test_every_flipped_bit_is_noticed(home, tree, place):
    path = PEPE.folder(home, tree) / "2025-05.parquet"
    flip(path, place)

    (damage_found,) = verify(home, "spot")

    assert home / damage_found.path == path


def test_a_reader_during_writes_sees_whole_files(home):
    path, seen = PEPE.folder(home, "forecasts") / "2025-06.parquet", []
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(lambda: [append(home, PEPE, rows_at(hours)) for hours in range(9, 29)])
        while not written.done():
            seen.append(len(months.load(home, PEPE, FORECASTS, path)))

    assert written.result() == [10] * 20
    assert seen == sorted(seen)
    assert {rows % 10 for rows in seen} == {0}


def test_verify_finds_rows_that_do_not_belong_and_files_that_are_gone(home):
    folder = PEPE.folder(home, "forecasts")
    odd = rows_at(-2000).with_columns(q95=pl.lit(float("nan")))
    for name, rows in (("2025-07.parquet", rows_at(series=BTC)), ("2025-03.parquet", odd)):
        (folder / name).write_bytes(months.month_bytes(folder / name, rows))
    (folder / "2025-06.parquet").unlink()

    reasons = {d.path.rsplit("/", 1)[1]: d.reason for d in verify(home, "spot")}

    assert set(reasons) == {"2025-03.parquet", "2025-06.parquet", "2025-07.parquet"}
    assert reasons["2025-06.parquet"] == "the file is missing"
    assert (
        reasons["2025-03.parquet"]
        == reasons["2025-07.parquet"]
        == "row 1 and the rows after it have no line in the chain"
    )


ABORTS = (26416, 40112)
"""Bits of the month below that polars, asked to parse them, ends the process for, with SIGABRT."""


@pytest.mark.parametrize("bit", ABORTS)
def test_a_flipped_bit_that_would_end_the_process_is_named(tmp_path, bit):
    append(tmp_path, PEPE, pl.concat([rows_at(hours) for hours in range(10, 70)]))
    path = PEPE.folder(tmp_path, "forecasts") / "2025-06.parquet"
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)

    (damage,) = verify(tmp_path)

    assert damage.path == "forecasts/interval=1h/symbol=PEPEUSDT/2025-06.parquet"
    assert damage.reason.endswith("line 1 of the chain records its first batch")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_month_is_never_written_to_and_heals_when_it_is_restored(home, damage):
    newest = PEPE.folder(home, "forecasts") / "2025-06.parquet"
    whole = newest.read_bytes()
    damage(newest)
    bad = newest.read_bytes()

    with pytest.raises(DamagedError, match="restore it from a backup"):
        append(home, PEPE, rows_at(9))

    assert newest.read_bytes() == bad
    (damage_found,) = verify(home, "spot")
    assert (home / damage_found.path, damage_found.command) == (newest, RESTORE)
    newest.write_bytes(whole)
    assert append(home, PEPE, rows_at(9)) == 10
    assert list(verify(home, "spot")) == []


def test_a_month_that_is_gone_is_not_begun_anew(home):
    path = PEPE.folder(home, "forecasts") / "2025-06.parquet"
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(
        DamagedError, match=r"2025-06.parquet is missing, though the chain has rows of it; restore it"
    ):
        append(home, PEPE, rows_at(9))
    assert not path.exists()
    path.write_bytes(whole)
    assert append(home, PEPE, rows_at(9)) == 10
    scores = PEPE.folder(home, "ledger") / "2025-06.parquet"
    whole = scores.read_bytes()
    scores.unlink()
    (failure,) = score_due(home, [PEPE, BTC], START + 20 * HOUR).failures
    assert (failure.series, failure.code) == (PEPE, "damaged")
    scores.write_bytes(whole)
    assert list(verify(home, "spot")) == []


@pytest.mark.parametrize("damage", [flip_value, Path.unlink])
def test_the_record_keeps_the_sums_of_a_month_that_cannot_be_read(home, damage):
    before = ledger_rows(home)
    damage(PEPE.folder(home, "ledger") / "2025-06.parquet")
    write_summary(home, "spot")
    assert [row | {"made_at": None} for row in ledger_rows(home)] == [
        row | {"made_at": None} for row in before
    ]


def test_a_damaged_ledger_month_fails_the_scores_of_its_own_series(home):
    append(home, PEPE, rows_at(9))
    append(home, BTC, rows_at(9, series=BTC))
    write_candles(home, [8e-6] * 30)
    write_candles(home, [8e-6] * 30, BTC)
    path = PEPE.folder(home, "ledger") / "2025-06.parquet"
    whole = path.read_bytes()
    garbage(path)

    done = score_due(home, [PEPE, BTC], START + 20 * HOUR)

    assert done.rows == 10
    assert [(f.series, f.code) for f in done.failures] == [(PEPE, "damaged")]
    path.write_bytes(whole)
    done = score_due(home, [PEPE, BTC], START + 20 * HOUR)
    assert (done.rows, done.failures) == (10, ())
