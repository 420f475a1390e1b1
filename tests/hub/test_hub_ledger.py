"""The published record of forecasts: what goes with the models, and how it is compared with what is stored."""

import sys
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from hub_models import REPO, trained

from schemas.errors import CpbError
from schemas.forecasts import LEDGER_SCHEMA
from schemas.identity import SeriesId
from tasks.forecasting.chain import append
from tasks.forecasting.issue import contract_rows
from tasks.forecasting.lines import chain_path, last_line
from tasks.hub.publish import publish
from tasks.hub.record import check_head, compare, copy_ledger
from tasks.hub.tree import build_tree

BTC = SeriesId("spot", "BTCUSDT", "1h")
MONTH = "forecasts/interval=1h/symbol=BTCUSDT/2025-06.parquet"


def issue(home, hour):
    """One forecast and its scores."""
    close = np.linspace(90.0, 110.0, 19)[:, None] * np.ones(10)
    origin = datetime(2025, 6, 1, hour, tzinfo=UTC)
    rows = contract_rows(BTC, "cpb-BTCUSDT-1h/1", origin, close, np.full((10, 4), 100.0), 100.0)
    scores = rows.with_columns(realised_close=pl.lit(100.0), scored_at=pl.col("target_time")).select(
        *LEDGER_SCHEMA
    )
    assert append(home, "spot", "forecasts", {BTC: rows}) == {BTC: 10}
    assert append(home, "spot", "scores", {BTC: scores}) == {BTC: 10}


@pytest.fixture
def send(hub, tmp_path, monkeypatch):
    """A function that publishes a model with the record; two forecasts are stored and published already."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    home, model = tmp_path / "data", trained(tmp_path / "a")

    def again():
        tree, record = build_tree([model], home / "hub", REPO), tmp_path / "record"
        copy_ledger(home, "spot", record)
        return publish(
            tree, REPO, record=record, check_head=lambda head: check_head(home, "spot", REPO, head)
        )

    issue(home, 0)
    issue(home, 1)
    again()
    return again


def test_head_and_rows_go_with_the_models_and_are_the_stored_ones(hub, send, tmp_path):
    home = tmp_path / "data"
    assert hub.content(REPO, "ledger/head.json") == last_line(chain_path(home, "spot"))
    assert hub.content(REPO, f"ledger/{MONTH}") == (home / MONTH).read_bytes()
    assert not send().sent  # nothing new: no commit

    found = compare(home, "spot", REPO)
    assert (found.line, found.files, found.rows, found.damaged) == (4, 2, 40, ())

    issue(home, 2)  # rows that were stored since are no difference
    assert compare(home, "spot", REPO).damaged == ()
    assert send().sent
    assert compare(home, "spot", REPO).rows == 60


def forge(home, change):
    """Store the record anew, with rows that were not what was issued then."""
    stored = pl.read_parquet(home / MONTH, hive_partitioning=False)
    for path in (home / "forecasts").rglob("*.*"):
        path.unlink()
    done = append(home, "spot", "forecasts", {BTC: change(stored)})
    assert isinstance(done[BTC], int)


def test_a_record_that_was_made_anew_is_found_by_the_published_head(hub, send, tmp_path):
    home = tmp_path / "data"
    forge(home, lambda rows: rows.with_columns(last_close=pl.lit(101.0)))

    (damage,) = compare(home, "spot", REPO).damaged

    assert damage.path == f"hub:{REPO}/ledger/head.json"
    assert damage.reason.startswith("it is line 4, and the stored chain ends with line ")
    issue(home, 2)
    (damage,) = compare(home, "spot", REPO).damaged
    assert damage.reason == "line 4 of the stored chain differs from the published line"


def test_a_record_that_was_made_anew_does_not_replace_the_published_one(hub, send, tmp_path):
    home, head = tmp_path / "data", hub.content(REPO, "ledger/head.json")
    forge(home, lambda rows: rows.with_columns(last_close=pl.lit(101.0)))
    issue(home, 2)

    with pytest.raises(CpbError) as caught:
        send()

    assert (caught.value.code, caught.value.field) == ("other-record", "repo")
    assert hub.content(REPO, "ledger/head.json") == head


def replace_blob(hub, name, change):
    hub.blobs[hub.repos[REPO].files[name][1]] = change(hub.content(REPO, name))


def test_published_rows_that_are_not_the_stored_ones_are_named(hub, send, tmp_path):
    def change(data):
        path = tmp_path / "changed.parquet"
        path.write_bytes(data)
        rows = pl.read_parquet(path)
        rows[:10].write_parquet(path)
        return path.read_bytes()

    replace_blob(hub, f"ledger/{MONTH}", change)
    (damage,) = compare(tmp_path / "data", "spot", REPO).damaged
    assert (damage.path, damage.reason) == (
        f"hub:{REPO}/ledger/{MONTH}",
        "its sha256 differs from the recorded sha256",
    )


@pytest.mark.parametrize("place", [0.1, 0.5, 0.999])
def test_a_changed_published_head_is_found(hub, send, tmp_path, place):
    def flip(data):
        changed = bytearray(data)
        changed[int(len(data) * place)] ^= 1
        return bytes(changed)

    replace_blob(hub, "ledger/head.json", flip)

    (damage,) = compare(tmp_path / "data", "spot", REPO).damaged
    assert damage.reason.startswith("the published head does not fit: ")


def test_without_a_published_or_a_stored_record_there_is_nothing_to_compare(hub, send, tmp_path):
    with pytest.raises(CpbError) as caught:
        compare(tmp_path / "elsewhere", "spot", REPO)
    assert (caught.value.code, caught.value.field) == ("no-ledger", "market")
    publish(build_tree([trained(tmp_path / "b")], tmp_path / "tree", "alice/other"), "alice/other")
    with pytest.raises(CpbError) as caught:
        compare(tmp_path / "data", "spot", "alice/other")
    assert (caught.value.code, caught.value.field) == ("no-ledger", "hub")
    with pytest.raises(CpbError) as caught:
        compare(tmp_path / "data", "spot", "alice/missing")
    assert caught.value.code == "hub"


def test_the_command_compares_and_the_home_holds_no_second_record(hub, send, tmp_path, monkeypatch, capsys):
    from flows import cli

    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    monkeypatch.setattr(sys, "argv", ["cpb", "verify", "--market", "spot", "--hub", REPO])

    with pytest.raises(SystemExit):
        cli.main()

    assert "2 files and 40 rows the same as stored" in capsys.readouterr().err
    assert not (tmp_path / "data/hub/ledger").exists()
