"""The commands of docs/operations.md do what the page says."""

import os
import re
import sqlite3
import subprocess
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from schemas.errors import CpbError
from tasks.tracking import experiment
from tasks.tracking.champions import champions
from tasks.tracking.experiment import store_at
from tests.tools.mlflow_engines import close_connections
from tests.tools.mlflow_nights import rows_of
from tests.tools.registering import register_champion
from tests.tools.tracked_members import fleet_of, log_member, member, series

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def test_the_backup_of_the_page_holds_database_artifacts_and_ledger(tmp_path):
    (block,) = re.findall(r"```sh\n(BACKUP=.+?)```", PAGE.read_text(), flags=re.S)
    home, kept = tmp_path / "data", tmp_path / "backup"
    for tree in ("forecasts", "forecasts-um", "ledger", "sim/ledger", "klines"):
        place = home / tree / "interval=1h" / "symbol=BTCUSDT"
        place.mkdir(parents=True)
        (place / "2025-01.parquet").write_text(tree)
        (place / ".lock").touch()
    (tmp_path / "mlruns" / "artifacts" / "run").mkdir(parents=True)
    (tmp_path / "mlruns" / "artifacts" / "run" / "model.safetensors").write_text("weights")
    database = tmp_path / "mlruns" / "mlflow.db"
    with closing(sqlite3.connect(database)) as writer:  # stays open: its last rows lie in the WAL
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE runs (id)")
        with writer:
            writer.execute("INSERT INTO runs VALUES ('new')")
        environment = {k: v for k, v in os.environ.items() if k != "CPB_HOME"}
        commands = block.replace("~/backup/cpb", str(kept))
        subprocess.run(["bash", "-e", "-c", commands], cwd=tmp_path, env=environment, check=True, timeout=60)

    (copied,) = kept.iterdir()
    with closing(sqlite3.connect(copied / "mlflow.db")) as copy:
        assert copy.execute("SELECT id FROM runs").fetchall() == [("new",)]
    assert (copied / "artifacts" / "run" / "model.safetensors").read_text() == "weights"
    with tarfile.open(copied / "ledger.tar.gz") as archive:
        files = {member.name.partition("/interval")[0] for member in archive if member.isfile()}
    assert files == {"forecasts", "forecasts-um", "ledger", "sim/ledger"}


def test_a_moved_store_is_refused_until_the_line_of_the_page_records_its_new_place(store, folder, tmp_path):
    register_champion(series(), log_member(fleet_of().run_id, member(folder)))
    old, new = tmp_path / "mlruns", tmp_path / "new place" / "mlruns"
    close_connections(store.uri)
    new.parent.mkdir()
    old.rename(new)
    uri = f"sqlite:///{new}/mlflow.db"
    for create in (True, False):
        with pytest.raises(CpbError, match=r"docs/operations\.md") as caught:
            store_at(uri, create=create)
        assert (caught.value.code, caught.value.field) == ("moved-store", f"{new}/mlflow.db")
        assert f" {old}/artifacts," in str(caught.value)

    (block,) = re.findall(r"```sh\n(OLD=.+?)```", PAGE.read_text(), flags=re.S)
    line, rest = block.split("\n", 1)
    assert line.startswith("OLD=file:///")
    places = f"OLD='{(old / 'artifacts').as_uri()}' NEW='{(new / 'artifacts').as_uri()}'\n"
    subprocess.run(["bash", "-e", "-c", places + rest], cwd=new.parent, check=True, timeout=60)

    experiment._opened.clear()
    (champion,) = champions(store_at(uri))
    champion.check()
    assert champion.folder.is_relative_to(new)
    assert str(old / "artifacts") not in "\n".join(rows_of(new / "mlflow.db"))
    assert not old.exists()
