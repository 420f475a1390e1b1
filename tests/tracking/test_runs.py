import json
import sqlite3
from pathlib import Path

import pytest

from schemas.errors import CpbError, DamagedError
from tasks.storage.model_folder import file_digests
from tasks.tracking.calls import search
from tasks.tracking.runs import finish, log_members, start_fleet, start_parent
from tasks.tracking.tags import PARTIAL
from tests.tools.tracked_members import fleet_of, log_member, member

FILES = ("model.safetensors", "config.json", "metrics.json", "forecast.png", "loss.png")
TAGS = {
    "architecture",
    "symbol",
    "timeframe",
    "market",
    "fleet",
    "device",
    "preset",
    "git_commit",
    "data_digest",
    "as_of",
}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    for name in FILES:
        (made / name).write_bytes(name.encode())
    return made


def test_a_member_run_holds_the_contract(store, folder):
    fleet = fleet_of()
    run = store.client.get_run(log_member(fleet.run_id, member(folder)))

    assert run.info.run_name == "gru/BTCUSDT/1h"
    assert run.info.status == "FINISHED"
    assert set(run.data.tags) >= TAGS
    assert run.data.tags["mlflow.parentRunId"] == fleet.run_id
    assert run.data.params == {}  # all that it has is what the fleet's members share
    assert store.client.get_run(fleet.run_id).data.params == {
        "hidden": "128",
        "optimizer.name": "adam",
        "optimizer.lr": "0.001",
        "features": '["r_open", "r_close"]',
    }
    assert run.data.metrics["test_crps_ratio"] == 0.98
    assert {"gpu_util_mean", "test_rmse"}.isdisjoint(run.data.metrics)  # not measured
    losses = store.client.get_metric_history(run.info.run_id, "train_loss")
    assert [(loss.step, loss.value) for loss in losses] == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert json.loads(run.data.tags["files"]) == file_digests(folder)
    assert {f.path for f in store.client.list_artifacts(run.info.run_id)} == set(FILES)


def test_more_than_mlflows_batch_limits(store):
    history = [{"epoch": e, **{f"m{i}": float(e) for i in range(6)}} for e in range(400)]
    config = {f"p{i}": i for i in range(250)} | {"long": "x" * 9000}
    other = {f"p{i}": -i for i in range(1, 250)}
    records = [member(history=history, config=config), member(symbol="ETHUSDT", config=other)]
    run_id, _ = log_members(fleet_of().run_id, records)

    run = store.client.get_run(run_id)
    assert len(run.data.params) == 251
    assert len(run.data.params["long"]) == 6000
    assert "9000 chars, sha256 " in run.data.params["long"]
    assert len(store.client.get_metric_history(run_id, "m5")) == 400


def test_a_failed_member_is_marked_with_its_reason(store):
    run_id = log_member(fleet_of().run_id, member(reason="50 rows, 300 needed", history=[], metrics={}))

    run = store.client.get_run(run_id)
    assert run.info.status == "FAILED"
    assert run.data.tags["reason"] == "50 rows, 300 needed"


def test_a_finished_member_is_reused(store):
    fleet = fleet_of()
    records = [member(), member(symbol="ETHUSDT")]
    first = log_members(fleet.run_id, records)

    assert log_members(fleet.run_id, records) == first
    assert len(list(search(store, f"tags.`mlflow.parentRunId` = '{fleet.run_id}'"))) == 2


@pytest.mark.parametrize("left_behind", ["RUNNING", "FAILED"])
def test_an_interrupted_member_is_made_anew(store, left_behind):
    fleet = fleet_of()
    old = log_member(fleet.run_id, member())
    store.client.update_run(old, status=left_behind)  # as a kill leaves it

    new = log_member(fleet.run_id, member())

    assert new != old
    assert [r.info.run_id for r in search(store, "tags.`cpb.key` = 'gru/BTCUSDT/1h'")] == [new]


def test_an_unfinished_flow_is_continued_and_a_complete_one_reported(store):
    first = start_parent("key", {"seed": 1})
    again = start_parent("key", {"seed": 1})
    assert (again.run_id, again.finished) == (first.run_id, False)

    finish(first.run_id, PARTIAL)
    partial = start_parent("key", {"seed": 1})
    assert (partial.run_id, partial.finished) == (first.run_id, False)

    finish(first.run_id)
    done = start_parent("key", {"seed": 1})
    assert (done.run_id, done.finished) == (first.run_id, True)
    assert start_parent("other", {}).run_id != first.run_id


def test_a_missing_model_folder_is_named(store, tmp_path):
    with pytest.raises(CpbError, match="nowhere") as caught:
        log_member(fleet_of().run_id, member(tmp_path / "nowhere"))
    assert caught.value.code == "no-model"


def params_of(store, run_id):
    return store.client.get_run(run_id).data.params


def test_what_all_members_share_stands_on_the_fleet_and_what_differs_on_the_member(store):
    fleet = fleet_of()
    records = [
        member(config={"hidden": 128, "rows": 500, "symbol": "BTCUSDT"}),
        member(symbol="ETHUSDT", config={"hidden": 128, "rows": 400, "symbol": "ETHUSDT"}),
        member(symbol="LUNAUSDT", reason="50 rows", config={}),
    ]
    first, second, failed = log_members(fleet.run_id, records)

    assert params_of(store, fleet.run_id) == {"hidden": "128"}
    assert params_of(store, first) == {"rows": "500", "symbol": "BTCUSDT"}
    assert params_of(store, second) == {"rows": "400", "symbol": "ETHUSDT"}
    assert params_of(store, failed) == {}


def test_every_run_says_its_market(store):
    fleet = fleet_of(market="um")
    run_id = log_member(fleet.run_id, member(market="um"))

    run = store.client.get_run(run_id)
    assert run.info.run_name == "gru/um-BTCUSDT/1h"
    parent = store.client.get_run(fleet.run_id).data.tags["mlflow.parentRunId"]
    assert {store.client.get_run(i).data.tags["market"] for i in (run_id, fleet.run_id, parent)} == {"um"}


SECRETS = (
    "http://me:hunter2@host/klines",
    "https://host/x?token=hunter2",
    "s3 at postgresql+psycopg2://me:hunter2@db/x failed",
)


@pytest.mark.parametrize("text", SECRETS)
def test_no_password_reaches_mlflow(store, folder, text):
    flow = start_parent("key", {"source": text, "nested": {"a": [text]}}, {"note": text}, name=text)
    fleet = start_fleet(flow.run_id, "gru", "fleet", {"source": text}, {"note": text})
    record = member(
        folder,
        config={"source": text},
        tags={"source": text},
        reason=text,
    )
    log_member(fleet.run_id, record)
    finish(flow.run_id, PARTIAL, {"reason": text})

    database = store.uri.removeprefix("sqlite:///")
    with sqlite3.connect(database) as connection:
        dump = "\n".join(connection.iterdump())
    assert "://host" in dump or "://db/x" in dump
    assert "hunter2" not in dump


def test_a_continued_run_forgets_what_was_said_of_its_last_end(store):
    flow = start_parent("key", {})
    finish(flow.run_id, PARTIAL, {"reason": "no network", "warnings": "gru: 3 members moved to no effect"})
    again = start_parent("key", {})
    assert (again.run_id, again.finished) == (flow.run_id, False)
    finish(again.run_id, tags={"warnings": None})

    assert {"reason", "warnings"}.isdisjoint(store.client.get_run(flow.run_id).data.tags)


def test_files_that_changed_since_training_are_not_logged(store, folder):
    trained = json.dumps(file_digests(folder))
    (folder / "model.safetensors").write_bytes(b"cut")

    with pytest.raises(DamagedError) as caught:
        log_member(fleet_of().run_id, member(folder, tags={"files": trained}))

    assert caught.value.field == str(folder / "model.safetensors")


def test_logging_again_mends_damaged_files_of_a_finished_run(store, folder):
    fleet = fleet_of()
    run_id = log_member(fleet.run_id, member(folder))
    kept = Path(store.client.get_run(run_id).info.artifact_uri.removeprefix("file://"))
    (kept / "model.safetensors").write_bytes(b"half")

    assert log_member(fleet.run_id, member(folder)) == run_id
    assert (kept / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_training_that_is_repeated_leaves_the_files_of_its_finished_run(store, folder):
    """The seconds in `config.json` differ; versions are registered with the digests of the first."""
    fleet = fleet_of()
    run_id = log_member(fleet.run_id, member(folder))
    before = store.client.get_run(run_id).data.tags["files"]
    kept = Path(store.client.get_run(run_id).info.artifact_uri.removeprefix("file://"))
    first = (kept / "config.json").read_bytes()
    (folder / "config.json").write_bytes(first.replace(b"{", b'{"train_seconds": 2.5,', 1))

    assert log_member(fleet.run_id, member(folder)) == run_id
    assert (kept / "config.json").read_bytes() == first
    assert store.client.get_run(run_id).data.tags["files"] == before
