"""A store that an older version wrote: its rows stay to the byte, its chain verifies, newer rows are appended to it."""

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.forecast_rows import FORECAST_SCHEMA
from tasks.forecasting import lines
from tasks.forecasting.months import FORECASTS, issues, latest, load, month_bytes, read_months
from tasks.forecasting.record import read_summary, score_due
from tasks.hub.record_export import write_record
from tasks.hub.restore import restore_record
from tests.tools.forecast_tools import HOUR, PEPE, START, WEIGHTS, append, rows_at, write_candles
from tests.tools.verifying import verify_forecasts

ADDED = ["weights_sha256", "standing"]
MAY, JUNE = "forecasts/interval=1h/symbol=PEPEUSDT/2025-05", "forecasts/interval=1h/symbol=PEPEUSDT/2025-06"


def digest_of_before(rows):
    """The digest of rows as the older version computed it, and as docs/publishing.md describes it."""
    texts = [name for name, kind in rows.schema.items() if kind == pl.String]
    text = "".join(",".join(row) + "\n" for row in rows.select(texts).iter_rows())
    numbers = rows.select(pl.exclude(texts).to_physical().cast(pl.Float64).fill_null(float("nan"))).to_numpy()
    return hashlib.sha256(text.encode() + np.ascontiguousarray(numbers, "<f8").tobytes()).hexdigest()


def stored_before(home, *batches):
    """Write a store as the older version did: rows of a month each, a line of the chain for each batch."""
    stored, previous = {}, lines.ORIGIN
    chain = lines.chain_path(home, "spot")
    chain.parent.mkdir(parents=True)
    for number, rows in enumerate(batches, 1):
        new = rows.drop(ADDED)
        path = PEPE.folder(home, "forecasts") / f"{new['issued_at'][0]:%Y-%m}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        stored[path] = pl.concat([stored[path], new]) if path in stored else new
        path.write_bytes(month_bytes(path, stored[path]))
        place, whole = path.relative_to(home).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()
        entry = lines.Entry(place, len(new), digest_of_before(new), whole)
        line = lines.Line(number, "2026-01-01T00:00:00.000000Z", "forecasts", (entry,), previous).encode()
        with chain.open("ab") as file:
            file.write(line)
        previous = json.loads(line)["hash"]
    return home


@pytest.fixture
def home(tmp_path):
    """Two forecasts of May and two of June, of an older version."""
    (tmp_path / "cpb-version").write_text("2\n")
    return stored_before(tmp_path, *(rows_at(hours) for hours in (0, 1, 4, 5)))


def publish(home, old="nowhere"):
    """Publish the record into `home/hub` and return that folder."""
    draft, reported = home / "draft", []
    write_record(home, "spot", draft, home / old, {}, reported.append)
    assert reported == []
    shutil.rmtree(home / "hub", ignore_errors=True)
    return draft.rename(home / "hub")


def verify(tree):
    """Run the published verifier with Python alone; returns its exit code and what it said."""
    command = [sys.executable, "-I", "-S", str(tree / "verify.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def json_lines_of_before(rows):
    """The JSON lines that the older version published."""
    content = io.BytesIO()
    rows.with_columns(cs.datetime().to_physical()).write_ndjson(content)
    return content.getvalue().splitlines()


def published(tree, month):
    return gzip.decompress((tree / f"{month}.jsonl.gz").read_bytes()).splitlines()


def test_rows_of_before_are_read_without_the_added_columns_and_nothing_is_wrong_with_them(home):
    rows = read_months(home, PEPE, FORECASTS)
    assert dict(rows.schema) == FORECAST_SCHEMA
    assert (rows["weights_sha256"].null_count(), rows["standing"].null_count()) == (40, 40)
    assert latest(home, PEPE)["issued_at"][0] == START + 5 * HOUR
    assert len(issues(home, PEPE, 10)) == 4
    assert list(verify_forecasts(home)) == []


def test_newer_rows_are_appended_and_the_older_ones_stay_to_the_byte(home):
    may, chain = (home / f"{MAY}.parquet").read_bytes(), lines.chain_path(home, "spot").read_bytes()
    before = load(home, PEPE, FORECASTS, home / f"{JUNE}.parquet").drop(ADDED)

    append(home, PEPE, rows_at(6, standing=7))
    append(home, PEPE, rows_at(7, weights="b" * 64))

    assert (home / f"{MAY}.parquet").read_bytes() == may
    assert lines.chain_path(home, "spot").read_bytes().startswith(chain)
    rows = load(home, PEPE, FORECASTS, home / f"{JUNE}.parquet")
    assert rows[:20].drop(ADDED).equals(before)
    assert rows["weights_sha256"].to_list() == [None] * 20 + [WEIGHTS] * 10 + ["b" * 64] * 10
    assert rows["standing"].to_list() == [None] * 20 + [7] * 10 + [0] * 10
    assert list(verify_forecasts(home)) == []


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        (3, "weights_sha256", WEIGHTS),
        (3, "standing", 0),
        (25, "weights_sha256", "a" * 64),
        (25, "standing", 8),
        (25, "weights_sha256", None),
        (25, "standing", None),
        (3, "q50", 1.0),
        (25, "role", None),
    ],
)
def test_no_cell_of_older_or_newer_rows_can_be_changed(home, row, column, value):
    append(home, PEPE, rows_at(6, standing=7))
    path = home / f"{JUNE}.parquet"
    rows = load(home, PEPE, FORECASTS, path)
    here = pl.int_range(pl.len()) == row
    changed = pl.when(here).then(pl.lit(value, rows.schema[column])).otherwise(pl.col(column))
    path.write_bytes(month_bytes(path, rows.with_columns(changed.alias(column))))
    (damage,) = verify_forecasts(home)
    assert damage.path == f"{JUNE}.parquet"
    assert f"line {3 if row < 10 else 5} of the chain" in damage.reason


def test_rows_cannot_lose_the_added_columns_or_get_them(home):
    append(home, PEPE, rows_at(6))
    path = home / f"{JUNE}.parquet"
    rows = load(home, PEPE, FORECASTS, path)
    path.write_bytes(month_bytes(path, rows.drop(ADDED)))
    (damage,) = verify_forecasts(home)
    assert "line 5 of the chain" in damage.reason
    path.write_bytes(month_bytes(path, rows.drop("standing")))
    (damage,) = verify_forecasts(home)
    assert "column standing is not what the contract says" in damage.reason


def test_scores_join_older_and_newer_rows_and_touch_no_month_of_forecasts(home):
    append(home, PEPE, rows_at(6))
    write_candles(home, [8.25e-6] * 40, first=START - HOUR)
    months = {path: path.read_bytes() for path in home.glob("forecasts/*/*/*.parquet")}
    assert score_due(home, [PEPE], START + 38 * HOUR).rows == 50
    assert {path: path.read_bytes() for path in months} == months
    (entry,) = [e for e in read_summary(home, "spot").entries if e.kind == "version"]
    assert (entry.forecasts, entry.rows, entry.weights_sha256) == (5, 50, WEIGHTS)
    assert list(verify_forecasts(home)) == []


def test_rows_of_before_are_of_no_model_where_a_versions_name_has_been_of_two(home):
    for hours, weights in ((6, WEIGHTS), (7, "b" * 64)):
        append(home, PEPE, rows_at(hours).with_columns(weights_sha256=pl.lit(weights)))
    write_candles(home, [8.25e-6] * 40, first=START - HOUR)
    score_due(home, [PEPE], START + 38 * HOUR)
    versions = [e for e in read_summary(home, "spot").entries if e.kind == "version"]
    assert {e.weights_sha256: e.forecasts for e in versions} == {"": 4, WEIGHTS: 1, "b" * 64: 1}


@pytest.mark.parametrize("newer", [False, True])
def test_lost_older_rows_come_back_to_the_byte_beside_newer_ones(home, newer):
    if newer:
        append(home, PEPE, rows_at(9))
    write_record(home, "spot", home / "hub", home / "none", {}, pytest.fail)
    stored = {path: path.read_bytes() for path in (home / "forecasts").rglob("*.*")}
    shutil.rmtree(home / "forecasts")

    assert restore_record(home, "spot").failures == []

    assert {path: path.read_bytes() for path in stored} == stored
    assert verify_forecasts(home) == []


def test_the_published_record_holds_older_rows_as_they_were_published_before(home):
    before = {
        month: json_lines_of_before(load(home, PEPE, FORECASTS, home / f"{month}.parquet").drop(ADDED))
        for month in (MAY, JUNE)
    }
    tree = publish(home)
    assert {month: published(tree, month) for month in before} == before
    assert verify(tree) == (0, f"4 lines and 40 rows fit; the chain ends with {head(home)}\n")

    append(home, PEPE, rows_at(6))
    tree = publish(home)
    assert published(tree, MAY) == before[MAY]
    assert published(tree, JUNE)[:20] == before[JUNE]
    newest = json.loads(published(tree, JUNE)[-1])
    assert (newest["weights_sha256"], newest["standing"]) == (WEIGHTS, 0)
    assert verify(tree) == (0, f"5 lines and 50 rows fit; the chain ends with {head(home)}\n")


@pytest.mark.parametrize("newer", [0, 1])
def test_lost_months_of_older_and_newer_rows_come_back_from_the_published_record(home, newer):
    for hours in range(newer):
        append(home, PEPE, rows_at(6 + hours, standing=7))
    stored = read_months(home, PEPE, FORECASTS)
    tree = publish(home)
    for month in (MAY, JUNE):
        (home / f"{month}.parquet").unlink()
    done = restore_record(home, "spot", tree)
    assert (done.failures, len(done.months)) == ([], 2)
    assert read_months(home, PEPE, FORECASTS).equals(stored)
    assert list(verify_forecasts(home)) == []


def head(home):
    return json.loads(lines.last_line(lines.chain_path(home, "spot")))["hash"]


@pytest.mark.parametrize(
    ("row", "change", "line"),
    [
        (3, lambda values: values | {"weights_sha256": WEIGHTS, "standing": 0}, 3),
        (3, lambda values: values | {"standing": 0}, 3),
        (3, lambda values: values | {"weights_sha256": None, "standing": None}, 3),
        (25, lambda values: {name: values[name] for name in values if name not in ADDED}, 5),
        (25, lambda values: values | {"weights_sha256": "a" * 64}, 5),
        (25, lambda values: values | {"standing": 9}, 5),
        (25, lambda values: values | {"standing": None}, 5),
        (25, lambda values: values | {"standing": "0"}, 5),
    ],
)
def test_the_verifier_names_a_row_whose_added_columns_were_changed(home, row, change, line):
    append(home, PEPE, rows_at(6))
    tree = publish(home)
    changed = published(tree, JUNE)
    changed[row] = json.dumps(change(json.loads(changed[row])), separators=(",", ":")).encode()
    (tree / f"{JUNE}.jsonl.gz").write_bytes(gzip.compress(b"\n".join(changed)))
    code, said = verify(tree)
    assert code == 1
    assert said.endswith(f"not those of line {line}\n")


@settings(max_examples=60, deadline=None)
@given(
    before=st.lists(st.booleans(), min_size=1, max_size=12),
    cut=st.integers(0, 12),
    standing=st.integers(0, 9),
)
def test_a_digest_is_that_of_each_rows_own_columns_in_any_mixture(before, cut, standing):
    rows = pl.concat([rows_at(n, horizon=1, standing=standing + n) for n in range(len(before))])
    mixed = rows.with_columns(
        pl.when(pl.Series(before)).then(None).otherwise(pl.col(name)).alias(name) for name in ADDED
    )
    cut = min(cut, len(rows))
    texts, values = b"", b""
    for row, is_before in zip(mixed[cut:].iter_slices(1), before[cut:], strict=True):
        own = row.drop(ADDED) if is_before else row
        text = [name for name, kind in own.schema.items() if kind == pl.String]
        texts += (",".join(own.select(text).row(0)) + "\n").encode()
        numbers = own.select(pl.exclude(text).to_physical().cast(pl.Float64).fill_null(float("nan")))
        values += numbers.to_numpy().astype("<f8").tobytes()
    assert lines.RowDigests(mixed).of(cut, len(rows)) == hashlib.sha256(texts + values).hexdigest()
    if all(before):
        assert lines.rows_digest(mixed) == digest_of_before(mixed.drop(ADDED))
