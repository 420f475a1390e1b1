"""What `cpb verify` says of files that nothing else reads and of errors of its own; its remedies work as typed."""

import json
import os
import random
import shlex
import shutil
import sqlite3
import subprocess
from contextlib import closing
from itertools import count

import pytest

from flows.forecast import run_forecast
from flows.train_all import run_train_all
from schemas.run import RunSpec
from tasks.forecasting.published import RESTORE
from tasks.storage.home_version import VERSION, VERSION_FILE
from tasks.tracking.home_store import RECORD, sqlite_path
from tasks.tracking.prune import delete_runs_for_good
from tasks.tracking.registry import ALIAS, PREVIOUS
from tasks.tracking.store import open_store
from tasks.training.shard import PROGRESS
from tasks.verify.verification import KINDS, verify_all
from tests.tools.stored_home import DAMAGE, MARKET, SERIES, champion, cut, fleet_of, hour, only, train_again
from tests.tools.verifying import verify_champions, verify_fleets


def follow(command, **environment):
    """Type the remedy of a message."""
    subprocess.run(command, shell=True, check=True, env=os.environ | environment)


def boom(*_arguments, **_options):
    raise TypeError("a value of\nanother kind")


@pytest.mark.parametrize("kind", KINDS)
def test_an_unexpected_error_of_one_kind_stops_no_other(stored, monkeypatch, kind):
    cut(champion().folder / "config.json")
    cut(SERIES.folder(stored, "klines") / "2025-04.parquet")
    whole = {damage.path for damage in verify_all(stored, (MARKET,)).damaged}

    def broken(*_):
        boom()
        yield

    with monkeypatch.context() as patch:
        patch.setitem(KINDS, kind, broken)
        result = verify_all(stored, (MARKET,))
    (sentence,) = result.unchecked
    assert sentence.startswith(
        f"the {kind} of market sim could not be checked: TypeError: a value of (test_verify_"
    )
    assert "put the files of that kind back from a backup" in sentence
    assert whole >= {damage.path for damage in result.damaged}
    assert len(result.damaged) >= len(whole) - 1
    assert not result.is_good


def test_an_unexpected_error_at_one_file_stops_no_other_file(stored, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("tasks.verify.computed.sealed_fault", boom)
        result = verify_all(stored, (MARKET,))
    assert result.unchecked == []
    assert {damage.path.rpartition(".")[2] for damage in result.damaged} >= {"png", "npz", "safetensors"}
    assert all("reading it failed: TypeError: a value of (" in damage.reason for damage in result.damaged)
    assert result.checked == verify_all(stored, (MARKET,)).checked


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "metrics.json"])
@pytest.mark.parametrize("damage", [*DAMAGE, lambda path: path.unlink()])
def test_damage_of_a_version_named_previous_is_named(stored, name, damage):
    client, model = open_store().client, champion()
    client.set_registered_model_alias(model.name, PREVIOUS, model.version)
    client.delete_registered_model_alias(model.name, ALIAS)
    assert list(verify_champions(stored, MARKET)) == []
    path = model.folder / name
    damage(path)
    found = only(verify_champions(stored, MARKET))
    assert (found.path, found.command) == (path.as_posix(), RESTORE)


def test_any_flipped_bit_of_a_progress_file_is_named_and_its_remedy_works(stored):
    path = fleet_of(stored) / PROGRESS
    whole, rng = path.read_bytes(), random.Random(4)
    assert list(verify_fleets(stored, MARKET)) == []
    for _ in range(40):
        content = bytearray(whole)
        content[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        assert only(verify_fleets(stored, MARKET)).path == path.relative_to(stored).as_posix()
    follow(only(verify_fleets(stored, MARKET)).command)
    assert list(verify_fleets(stored, MARKET)) == []


@pytest.mark.parametrize("damage", [*DAMAGE, lambda path: path.unlink()])
def test_the_remedy_for_a_damaged_job_works_also_if_no_run_needs_it_again(stored, damage):
    path = fleet_of(stored) / "job.json"
    damage(path)
    found = only(verify_fleets(stored, MARKET))
    assert found.path == path.relative_to(stored).as_posix()
    follow(found.command)
    assert list(verify_fleets(stored, MARKET)) == []
    assert train_again()[0].exit_code == 0
    assert path.exists()
    assert verify_all(stored, (MARKET,)).is_good


def test_the_structure_of_the_stores_database_is_checked_and_what_is_not_is_said(stored, cpb_here):
    database = sqlite_path(open_store().uri)
    code, out, _ = cpb_here("verify", "--json")
    (sentence,) = json.loads(out.splitlines()[-1])["unseen"]
    assert sentence == (
        "not checked: files of runs whose model is neither champion nor previous, and, as MLflow stores no digests of "
        f"them, params, metrics and tags in {database}; of the file "
        "SQLite's own check was run"
    )
    assert (code, sentence in cpb_here("verify")[2]) == (0, True)
    with closing(sqlite3.connect(database)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'metrics'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    found = {damage.path: damage for damage in verify_all(stored, (MARKET,)).damaged}
    assert found[str(database)].command == RESTORE


def without_run(model):
    """Do what `mlflow gc` does with a deleted run: its rows and its files go."""
    client = open_store().client
    client.delete_run(model.run_id)
    delete_runs_for_good(client, [model.run_id])
    shutil.rmtree(model.folder)


def test_a_champion_whose_run_was_collected_is_noticed_everywhere_and_trained_again(stored, cpb_here):
    model = champion()
    without_run(model)
    gone = f"its run {model.run_id} was deleted for good from MLflow"
    recipe = f"--architectures {model.architecture} --preset smoke"
    remedy = f"cpb train-all --coins BTCUSDT --timeframes 1h --source sim {recipe}"
    found = [d for d in verify_champions(stored, MARKET) if d.reason == gone]
    assert [(d.path, d.command) for d in found] == [(str(model.folder), remedy)]
    err = cpb_here("champions", "--market", "sim")[2]
    assert f"{gone}; " in err
    assert f"`{remedy}` trains it again" in err
    row = next(
        row
        for row in json.loads(cpb_here("champions", "--market", "sim", "--json")[1].splitlines()[-1])[
            "champions"
        ]
        if row["symbol"] == "BTCUSDT"
    )
    assert row["damage"].startswith(gone)
    said = []
    result = run_forecast(hour("2025-05-23"), said.append)  # with the packaged copy
    assert (result["exit"], result["series"]) == (3, 2)
    assert [line for line in said if gone in line and f"`{remedy}` trains it again" in line]
    options = shlex.split(remedy)[2:]
    asked = dict(zip((o.removeprefix("--") for o in options[::2]), options[1::2], strict=True))
    run_train_all(RunSpec(**asked, since="2025-03", as_of="2025-05-20"), lambda _: None)
    assert champion().damage == ""
    assert verify_all(stored, (MARKET,)).is_good
    assert run_forecast(hour("2025-05-24"), said.append)["exit"] == 0


@pytest.mark.slow
def test_a_champion_whose_run_is_marked_as_deleted_is_named_and_can_be_restored(stored):
    model = champion()
    open_store().client.delete_run(model.run_id)
    found = only(verify_champions(stored, MARKET))
    assert found.reason == f"its run {model.run_id} is marked as deleted, and `mlflow gc` deletes its files"
    follow(found.command)
    assert list(verify_champions(stored, MARKET)) == []


def _as_folder(path):
    path.unlink()
    path.mkdir()


VERSIONS = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("a note of mine"),
    "other": lambda path: path.write_text("9\n"),
    "folder": _as_folder,
}


@pytest.mark.parametrize("change", VERSIONS)
def test_the_remedy_for_a_version_that_is_damaged_works(stored, cpb_here, change):
    path = stored / VERSION_FILE
    VERSIONS[change](path)
    code, out, _ = cpb_here("verify", "--json")
    answer = json.loads(out.splitlines()[-1])
    assert code == 1
    text = answer["damaged"][0]["command"] if change == "missing" else f"{answer['error']}"
    remedy = text if change == "missing" else text.split("`")[1]
    follow(remedy)
    assert path.read_text() == f"{VERSION}\n"
    assert cpb_here("verify")[0] == 0


@pytest.mark.slow  # a file of each kind in five damages, each with a whole verify
def test_no_kind_of_damage_of_any_file_is_a_traceback(stored):
    """A sample of all files of a home: whatever lies there instead, `verify` ends with its findings."""
    rng, number = random.Random(42), count()
    files = [
        path
        for path in sorted(stored.rglob("*"))
        if path.is_file() and path.name not in (VERSION_FILE, RECORD)
    ]
    kinds = {}
    for path in files:
        kinds.setdefault(
            (path.parent.name if path.parent.name == "model" else "", path.name[-12:]), []
        ).append(path)
    for paths in kinds.values():
        path = rng.choice(paths)
        whole = path.read_bytes()
        for content in (b"", b"[1, null]", b"\xff\xfe\x00" * 99, b"PAR1" + whole[4:-9], whole[::-1]):
            path.write_bytes(content)
            result = verify_all(stored, (MARKET,))
            assert result.unchecked == [], (path, content[:9])
            assert not [d for d in result.damaged if "reading it failed" in d.reason], (path, content[:9])
            next(number)
        path.write_bytes(whole)
    assert next(number) > 50
    assert verify_all(stored, (MARKET,)).is_good


@pytest.mark.parametrize("content", [b"", b"[1, null]", b"\xff\xfe\x00" * 99])
def test_a_damaged_record_of_the_store_is_named_and_its_remedy_works(stored, content, cpb_here):
    """The store of `MLFLOW_TRACKING_URI` may be another: its champions are not checked until the record is mended."""
    path = stored / RECORD
    path.write_bytes(content)
    result = verify_all(stored, (MARKET,))
    (found,) = result.damaged
    assert (found.path, found.command) == (RECORD, "cpb store --take")
    (sentence,) = result.unchecked
    assert sentence.startswith(f"the champions of market sim could not be checked: {path}, which says which")
    assert cpb_here(*found.command.split()[1:])[0] == 0
    assert verify_all(stored, (MARKET,)).is_good
