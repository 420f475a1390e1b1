"""The published record: checked by its own verifier without cpb, in the folder and in the Hub's one commit."""

import ast
import gzip
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from schemas.errors import CpbError
from schemas.identity import SeriesId
from tasks.forecasting.chain import pending_path
from tasks.forecasting.lines import chain_path, last_line, line_hash, read_lines
from tasks.hub import record_export
from tasks.hub.publish import publish_tree
from tests.tools.hub_models import REPO
from tests.tools.published_record import BTC, BTC_ROWS, ROWS, SCORES, build, damage, rewrite, store, verify
from tests.tools.verifying import verify_published

DOCS = Path(__file__).parents[2] / "docs" / "publishing.md"


@pytest.fixture
def home(recorded, tmp_path):
    return shutil.copytree(recorded, tmp_path / "data")


@pytest.fixture
def tree(home):
    return home / "hub"


def head_of(home):
    return json.loads(last_line(chain_path(home, "spot")))["hash"]


def test_a_stranger_checks_the_record_without_cpb(tree, home):
    bare = [sys.executable, "-I", "-S", "-c", "import tasks"]
    assert b"ModuleNotFoundError" in subprocess.run(bare, capture_output=True, check=False, cwd="/").stderr
    rows = 2 * 2 * 10 * (2 + 74 + 64)
    assert verify(tree) == (
        0,
        f"5 lines and {rows} rows fit; the chain ends with {head_of(home)}\n",
        "",
    )
    assert (tree / "chain.jsonl").read_bytes() == chain_path(home, "spot").read_bytes()
    listed = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tree, capture_output=True, check=False)
    assert listed.returncode == 0
    assert "python verify.py --head HASH" in (tree / "README.md").read_text()


def test_the_verifier_is_a_page_of_the_standard_library_for_python_3_8(tree):
    text = (tree / "verify.py").read_text()
    assert len(text.splitlines()) <= 60  # a stranger reads all of it first
    assert max(map(len, text.splitlines())) <= 120
    nodes = list(ast.walk(ast.parse(text, feature_version=(3, 8))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names


def test_rows_are_json_lines_of_the_stored_values(tree, home):
    lines = gzip.decompress((tree / BTC_ROWS).read_bytes()).splitlines()
    stored = pl.read_parquet(home / BTC_ROWS.replace(".jsonl.gz", ".parquet"), hive_partitioning=False)
    assert len(lines) == len(stored)
    for line, row in zip(lines, stored.rows(named=True), strict=True):
        values = json.loads(line)
        assert list(values) == stored.columns
        for name, value in row.items():
            micros = isinstance(value, datetime) and round(value.timestamp() * 1e6)
            assert values[name] == (micros or value)
    assert json.loads(lines[0])["ref_q05"] is None


def swap_names(lines):
    return [lines[0].replace('"q05"', '"x"').replace('"q95"', '"q05"').replace('"x"', '"q95"'), *lines[1:]]


def change_last_digit(lines):
    number = re.search(r'"q50":(\d+\.\d+)', lines[25])[1]
    other = repr(math.nextafter(float(number), math.inf))
    return [*lines[:25], lines[25].replace(f'"q50":{number}', f'"q50":{other}'), *lines[26:]]


@pytest.mark.parametrize(
    ("file", "change", "rows", "line"),
    [
        (BTC_ROWS, change_last_digit, "21 to 760", 3),
        (BTC_ROWS, lambda lines: [*lines[:3], *lines[4:]], "1 to 10", 1),
        (BTC_ROWS, lambda lines: [*lines[:12], lines[11], *lines[12:]], "11 to 20", 2),
        (BTC_ROWS, swap_names, "1 to 10", 1),
        (BTC_ROWS, lambda lines: [lines[0].replace('"step":1,', '"step":true,'), *lines[1:]], "1 to 10", 1),
        (
            BTC_ROWS,
            lambda lines: [lines[0].replace('"step":1,', '"step":1,"step":1,'), *lines[1:]],
            "1 to 10",
            1,
        ),
        (SCORES, lambda lines: [lines[0].replace('_close":', '_close":1'), *lines[1:]], "1 to 1200", 5),
        (BTC_ROWS, lambda lines: lines[:-1], "761 to 1200", 4),
    ],
)
def test_a_changed_row_is_named(tree, file, change, rows, line):
    rewrite(tree / file, change)
    assert verify(tree) == (1, "", f"{file}, rows {rows}: not those of line {line}\n")


def change_chain(change):
    def changed(folder):
        path = folder / "chain.jsonl"
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / SCORES).unlink(), f"{SCORES}, row 1: "),
        (lambda folder: (folder / SCORES).write_bytes(b"x"), f"{SCORES}, row 1: Not a gzipped file"),
        (
            lambda folder: rewrite(folder / SCORES, lambda lines: [*lines, lines[0]]),
            "no line of the chain describes",
        ),
        (
            lambda folder: shutil.copy(folder / SCORES, folder / "x.jsonl.gz"),
            "x.jsonl.gz, row 1: no line of the chain",
        ),
        (lambda folder: (folder / "chain.jsonl").unlink(), "this folder: [Errno 2] No such file"),
        (change_chain(lambda lines: [lines[0], *lines[2:]]), "line 2 of chain.jsonl does not fit"),
        (
            change_chain(lambda lines: [lines[0], lines[1].replace(b'"rows":10', b'"rows":20'), *lines[2:]]),
            "line 2 of",
        ),
        (change_chain(lambda lines: lines[:-1]), "no line of the chain describes"),
        (change_chain(lambda lines: [*lines[:-1], lines[-1][:-1]]), "line 5 of chain.jsonl does not fit"),
    ],
)
def test_whatever_else_does_not_fit_is_named(tree, change, said):
    change(tree)
    code, told, error = verify(tree)
    assert (code, told, error.count("\n")) == (1, "", 1)
    assert said in error


def test_a_chain_whose_times_run_backwards_is_named(tree):
    previous, lines = "0" * 64, []
    for line in read_lines(tree / "chain.jsonl"):
        time = "2025-01-01T00:00:00.000000Z" if line.number == 4 else line.time
        lines.append(replace(line, previous=previous, time=time).encode())
        previous = line_hash(lines[-1])
    (tree / "chain.jsonl").write_bytes(b"".join(lines))
    code, _, said = verify(tree)
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith(
        "line 4 of chain.jsonl does not fit: its time, 2025-01-01T00:00:00.000000Z, is before that of"
    )


def test_a_head_that_was_noted_is_in_the_chain_unless_the_record_was_made_anew(tree, home):
    noted = head_of(home)
    store(home, [24 * 37], BTC)
    build(home)
    assert "; line 5 is the head that you noted; the chain ends with " in verify(tree, "--head", noted)[1]

    forged = home.with_name("forged")
    store(forged, [30, 31], BTC)
    other, _ = build(forged)
    assert verify(other)[0] == 0
    for head in (noted, "0" * 64):
        code, told, error = verify(other, "--head", head)
        assert (code, told, error.startswith(f"{head} is not in the chain, which ends with ")) == (
            1,
            "",
            True,
        )
    assert verify(tree, noted)[0] == 2


def test_only_months_that_grew_are_written_anew(tree, home, monkeypatch):
    written, whole = [], record_export._json_lines
    monkeypatch.setattr(record_export, "_json_lines", lambda *a: written.append(a[2]) or whole(*a))
    sums = (tree / "SHA256SUMS").read_bytes()
    build(home)
    assert (written, (tree / "SHA256SUMS").read_bytes()) == ([], sums)

    store(home, [24 * 37], BTC)
    rewrite(tree / SCORES, lambda lines: lines[:5])  # and one that was damaged in the folder
    assert build(home)[1] == []
    assert {name.replace(".parquet", ".jsonl.gz") for name in written} == {ROWS.format("BTC", 2), SCORES}
    assert verify(tree)[0] == 0


def test_what_is_damaged_in_the_store_is_said_and_its_published_copy_stays(tree, home):
    damage(home, ROWS.format("ETH", 1))  # has not grown since
    damage(home, ROWS.format("BTC", 2))
    before = (tree / ROWS.format("BTC", 2)).read_bytes()
    (tree / SCORES).unlink()
    damage(home, SCORES)
    _, reasons = build(home)
    months = (SCORES, ROWS.format("BTC", 2), ROWS.format("ETH", 1))
    damaged = sorted(name.replace(".jsonl.gz", ".parquet is damaged") for name in months)
    assert sorted(reason.partition(":")[0] for reason in reasons) == damaged
    assert verify(tree)[2].startswith(f"{SCORES}, row 1: ")
    assert (tree / ROWS.format("BTC", 2)).read_bytes() == before

    chain_path(home, "spot").write_bytes(b"x" + chain_path(home, "spot").read_bytes())
    published = (tree / "chain.jsonl").read_bytes()
    _, (said,) = build(home)
    assert "line 1 does not fit" in said
    assert (tree / "chain.jsonl").read_bytes() == published
    pending_path(home, "spot").write_bytes(b"x")
    _, (said,) = build(home)
    assert "chain.pending is damaged" in said
    assert (tree / "chain.jsonl").read_bytes() == published
    assert (tree / ROWS.format("ETH", 1)).is_file()


def test_a_damaged_record_is_found_and_made_again_like_the_models(tree, home):
    rewrite(tree / BTC_ROWS, change_last_digit)
    (damage,) = verify_published(home)
    assert (damage.path, damage.command) == (f"hub/{BTC_ROWS}", "cpb publish --dry-run")
    build(home)
    assert list(verify_published(home)) == []


def test_simulated_forecasts_have_a_record_of_their_own(tmp_path):
    store(tmp_path / "data", [30], SeriesId("sim", "BTCUSDT", "1h"))
    assert not (build(tmp_path / "data")[0] / "verify.py").exists()
    assert verify(build(tmp_path / "data", "sim")[0])[0] == 0


def test_the_hub_has_the_record_in_the_one_commit_and_no_other_chain_replaces_it(hub, home):
    tree, _ = build(home)
    publish_tree(tree, REPO)
    assert hub.count("POST", "/commit/main") == 1
    for name in ("chain.jsonl", "verify.py", BTC_ROWS, SCORES):
        assert hub.content(REPO, name) == (tree / name).read_bytes()
    assert not publish_tree(tree, REPO).sent

    store(home, [24 * 37], BTC)
    build(home)
    assert publish_tree(tree, REPO).sent

    forged = home.with_name("forged")
    store(forged, [30, 31], BTC)
    with pytest.raises(CpbError) as caught:
        publish_tree(build(forged)[0], REPO)
    assert (caught.value.code, caught.value.field) == ("other-record", "repo")
    assert hub.content(REPO, "chain.jsonl") == chain_path(home, "spot").read_bytes()
