"""The commands of docs/backup.md do what the page says."""

import os
import re
import sqlite3
import subprocess
import tarfile
from contextlib import closing
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "backup.md"


def test_the_backup_of_the_page_holds_database_artifacts_and_ledger(tmp_path):
    (block,) = re.findall(r"```sh\n(BACKUP=.+?)```", PAGE.read_text(), flags=re.S)
    home, kept = tmp_path / "data", tmp_path / "backup"
    for tree in ("forecasts", "forecasts-um", "issued", "ledger", "sim/ledger", "klines"):
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

    (folder,) = kept.iterdir()
    with closing(sqlite3.connect(folder / "mlflow.db")) as copy:
        assert copy.execute("SELECT id FROM runs").fetchall() == [("new",)]
    assert (folder / "artifacts" / "run" / "model.safetensors").read_text() == "weights"
    with tarfile.open(folder / "ledger.tar.gz") as archive:
        files = {member.name.partition("/interval")[0] for member in archive if member.isfile()}
    assert files == {"forecasts", "forecasts-um", "issued", "ledger", "sim/ledger"}
