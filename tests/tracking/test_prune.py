"""What goes and what stays when old nights are pruned."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path

import pytest

from schemas.errors import BusyError, CpbError
from schemas.identity import SeriesId
from tasks.storage.process_ids import ProcessId
from tasks.storage.urls import local_path
from tasks.tracking import experiment
from tasks.tracking.calls import find_run, search
from tasks.tracking.champions import champions
from tasks.tracking.home_store import sqlite_path
from tasks.tracking.leaderboard import read_board, read_members
from tasks.tracking.prune import delete_old
from tasks.tracking.runs import start_parent
from tasks.tracking.store import open_store, take_store
from tasks.tracking.tags import KEEP, OPENED_AT, PROCESS, PRUNED
from tests.tools import fork_server
from tests.tools.copied_store import record_place
from tests.tools.mlflow_engines import close_connections
from tests.tools.mlflow_interface import tracking_server
from tests.tools.mlflow_nights import NAMES, add_night, model_files, rows_by_table, state_of
from webapp import runs

pruning = import_module("tasks.tracking.prune")
ROOT = Path(__file__).resolve().parents[2]
NIGHTS, KEPT = 7, 3
BTC, ETH = (SeriesId("spot", f"{coin}USDT", "1h") for coin in ("BTC", "ETH"))


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Seven nights, made once: the first four, up to a Sunday, are old."""
    place = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(place)
        store, home = open_store(), place / "data"
        made = {number: add_night(store, home, number) for number in range(1, NIGHTS + 1)}
        close_connections(store.uri)
    return place, made


@pytest.fixture
def nights(template, tmp_path, monkeypatch):
    """A copy of the seven nights; its parts are attributes."""
    place, made = template
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    record_place(tmp_path / "mlruns/mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return Nights(tmp_path, made)


class Nights:
    """`flow`, `fleets` and `members` of a night by its number, from 1."""

    def __init__(self, place, made):
        self.place, self.home, self.made = place, place / "data", made
        self.store = open_store()

    def flow(self, night):
        return self.made[night][0]

    def fleets(self, night):
        return self.made[night][1]

    def members(self, night):
        return self.made[night][2]

    def tree(self, night):
        flow, fleets, members = self.made[night]
        return {flow, *fleets, *members}

    def prune(self, **options):
        return delete_old(self.home, **{"dry_run": False, "nights": KEPT} | options)

    def there(self, *runs):
        """Those of the runs that are still in the database and live."""
        by_id = {r: find_run(self.store, r) for r in runs}
        return {r for r, run in by_id.items() if run is not None and run.info.lifecycle_stage == "active"}

    def artifacts(self, run_id):
        return self.place / "mlruns" / "artifacts" / run_id / "artifacts"

    def versions(self, series=BTC):
        versions = self.store.client.search_model_versions(f"name = '{series.registered}'")
        return sorted(int(version.version) for version in versions)

    def state(self):
        return state_of(self.home, self.place / "mlruns")


def test_the_last_nights_stay_whole_and_what_is_older_goes(nights):
    before = rows_by_table(nights.store.uri)
    report = nights.prune()

    for night in (5, 6, 7):
        assert nights.there(*nights.tree(night)) == nights.tree(night)
    gone = {run for night in range(1, 5) for run in nights.tree(night)}
    assert nights.there(*gone) == set()
    assert not any(nights.artifacts(run).parent.exists() for run in gone)
    assert (report.runs, report.kept) == (len(gone), [])
    left = rows_by_table(nights.store.uri)
    assert left["runs"] == before["runs"] - len(gone) == 3 * 7
    for table in ("metrics", "latest_metrics", "params", "tags"):
        assert left[table] < before[table] / 2


def test_a_dry_run_changes_nothing_and_tells_what_the_pruning_does(nights):
    state = nights.state()
    told = nights.prune(dry_run=True)
    assert nights.state() == state
    done = nights.prune()
    assert str(nights.prune()) == "nothing to prune"
    assert (told.runs, told.versions) == (done.runs, done.versions)
    assert str(told) == "would delete 28 runs and 8 versions"
    assert str(done) == str(told).replace("would delete", "deleted")


def test_the_boards_of_the_last_nights_stay_and_those_of_pruned_nights_go(nights):
    before = {night: read_board(nights.flow(night)) for night in (5, 7)}
    nights.prune()
    assert read_board(nights.flow(5)) == before[5]
    assert read_board() == before[7]
    shown = runs.leaderboard("spot")  # the page
    assert (shown.rows, shown.note, len(shown.champions)) == (before[7], None, 2)
    with pytest.raises(CpbError) as error:
        read_board(nights.flow(1))
    assert error.value.code == "no-run"
    assert "pruned" in str(error.value)


def test_a_pruned_run_that_is_repeated_is_whole_again_and_then_pruned_again(nights):
    nights.store.client.set_registered_model_alias(BTC.registered, "champion", "4")
    board = read_board(nights.flow(4))
    nights.prune()
    with pytest.raises(CpbError, match="were pruned"):  # of its gru fleet, one member of two is left
        read_board(nights.flow(4))
    flow, fleets, members = add_night(nights.store, nights.home, 4, promote=False)
    assert (flow, fleets[0], members[0]) == (nights.flow(4), nights.fleets(4)[0], nights.members(4)[0])
    names = ("architecture", "crps_ratio", "members")
    assert [[row[n] for n in names] for row in read_board(flow)] == [[row[n] for n in names] for row in board]
    nights.prune()
    assert nights.there(*fleets, *members, flow) == {flow, fleets[0], members[0]}


def test_champions_and_their_predecessors_stay_and_can_be_loaded(nights):
    client = nights.store.client
    client.set_registered_model_alias(BTC.registered, "champion", "3")  # an old model won again
    client.set_registered_model_alias(BTC.registered, "previous", "2")
    client.set_registered_model_alias(BTC.registered, "mine", "4")
    nights.prune()
    assert nights.versions() == [2, 3, 4, 5, 6, 7]
    assert nights.versions(ETH) == [5, 6, 7]
    assert nights.there(*(nights.members(n)[0] for n in range(1, 5))) == {
        nights.members(n)[0] for n in (2, 3, 4)
    }
    champion = next(c for c in champions(nights.store) if c.series == BTC)
    champion.check()
    assert (champion.version, champion.run_id) == ("3", nights.members(3)[0])
    assert (champion.folder / "model.safetensors").read_bytes().count(b"spot-train-all-3/gru") == 1
    # What is above it stays, but one member of four is no leaderboard of the run.
    assert nights.there(nights.flow(3), nights.fleets(3)[0]) == {nights.flow(3), nights.fleets(3)[0]}
    with pytest.raises(CpbError, match="were pruned"):
        read_board(nights.flow(3))
    assert read_board() == read_board(nights.flow(7))


def test_runs_and_versions_that_are_tagged_keep_stay(nights):
    client = nights.store.client
    client.set_tag(nights.flow(1), KEEP, "")
    client.set_tag(nights.fleets(2)[1], KEEP, "yes")
    client.set_tag(nights.members(3)[3], KEEP, "yes")
    client.set_model_version_tag(BTC.registered, "4", KEEP, "yes")
    nights.prune()
    assert nights.there(*nights.tree(1)) == nights.tree(1)
    assert nights.there(*nights.tree(2)) == {nights.flow(2), nights.fleets(2)[1], *nights.members(2)[2:]}
    assert nights.there(*nights.tree(3)) == {nights.flow(3), nights.fleets(3)[1], nights.members(3)[3]}
    assert nights.there(*nights.tree(4)) == {nights.flow(4), nights.fleets(4)[0], nights.members(4)[0]}
    assert nights.versions() == [4, 5, 6, 7]
    assert not any(PRUNED in client.get_run(fleet).data.tags for fleet in nights.fleets(1))
    assert PRUNED in client.get_run(nights.fleets(3)[1]).data.tags


def test_each_market_has_its_own_nights(nights):
    add_night(nights.store, nights.home, 1, market="um", symbols=("BTCUSDT",))
    um = add_night(nights.store, nights.home, 2, market="um", symbols=("BTCUSDT",))
    nights.prune()
    assert nights.there(um[0], *um[1], *um[2]) == {um[0], *um[1], *um[2]}
    assert nights.versions(SeriesId("um", "BTCUSDT", "1h")) == [1, 2]


def test_runs_files_and_models_of_others_are_untouched(nights):
    client = nights.store.client
    elsewhere, trash = (client.create_experiment(name) for name in ("mine", "deleted by its owner"))
    theirs = client.create_run(elsewhere, tags={"cpb.kind": "flow", "cpb.key": "copied"}).info.run_id
    trashed = client.create_run(trash).info.run_id
    client.log_text(trashed, "mine", "notes.txt")
    client.delete_experiment(trash)
    beside = client.create_run(nights.store.experiment_id, tags={"note": "mine"}).info.run_id
    nested = {"mlflow.parentRunId": nights.members(1)[1]}
    below = client.create_run(nights.store.experiment_id, tags=nested).info.run_id
    client.log_text(beside, "mine", "notes.txt")
    client.log_text(nights.members(2)[2], "mine", "notes.txt")
    client.log_text(nights.members(2)[3], "mine", "plots/notes.txt")
    (nights.artifacts(nights.members(3)[2]) / "treasure").symlink_to(nights.place)
    (nights.artifacts(nights.members(3)[3]).parent / "mine.txt").write_text("mine")
    client.create_registered_model("my-model")
    client.create_registered_model("cpb-my-own-model")
    for name in ("my-model", "cpb-my-own-model"):
        client.create_model_version(name, str(nights.artifacts(nights.members(4)[1])), nights.members(4)[1])
    stray = nights.place / "mlruns" / "artifacts" / ("f" * 32)
    stray.mkdir()
    (stray / "notes.txt").write_text("mine")
    for run in (theirs, beside, below):
        client.set_terminated(run)
    with closing(sqlite3.connect(sqlite_path(nights.store.uri))) as connection, connection:
        for run in (theirs, beside, below):
            connection.execute("UPDATE runs SET start_time = 0, end_time = 0 WHERE run_uuid = ?", (run,))

    report = nights.prune()

    assert nights.there(theirs, beside, below) == {theirs, beside, below}
    client.restore_experiment(trash)
    assert Path(local_path(client.get_run(trashed).info.artifact_uri), "notes.txt").is_file()
    stay = {nights.members(1)[1], *nights.members(2)[2:], nights.members(3)[2], nights.members(4)[1]}
    assert nights.there(*stay) == stay
    members = [*nights.members(2)[2:], nights.members(3)[2]]
    for run, name in zip(members, ("notes.txt", "plots/notes.txt", "treasure"), strict=True):
        (line,) = [line for line in report.kept if run in line]
        assert name in line
    aside = nights.artifacts(nights.members(3)[3]).parent
    assert [path.name for path in aside.iterdir()] == ["mine.txt"]
    for name in ("my-model", "cpb-my-own-model"):
        assert [v.version for v in client.search_model_versions(f"name = '{name}'")] in (["1"], [1])
    assert (nights.artifacts(nights.members(4)[1]) / "model.safetensors").exists()
    assert (stray / "notes.txt").exists()
    assert (nights.place / "trained").is_dir()


def test_a_file_added_while_others_are_deleted_stays_with_its_run_marked_as_deleted(nights, monkeypatch):
    run = nights.members(3)[2]
    added = nights.artifacts(run) / "notes.txt"
    delete = pruning._delete_runs

    def add_and_delete(store, runs):
        added.write_text("mine")
        delete(store, runs)

    with monkeypatch.context() as patch:
        patch.setattr(pruning, "_delete_runs", add_and_delete)
        nights.prune()
    assert added.read_text() == "mine"
    assert [path.name for path in added.parent.iterdir()] == ["notes.txt"]
    assert find_run(nights.store, run).info.lifecycle_stage == "deleted"
    assert not nights.artifacts(nights.members(3)[3]).parent.exists()
    report = nights.prune()
    assert report.runs == 0
    assert len(report.kept) == 1
    assert added.read_text() == "mine"


def delete_experiment(nights):
    nights.store.client.delete_experiment(nights.store.experiment_id)


@pytest.mark.parametrize(
    ("change", "runs", "versions"),
    [
        (lambda n: n.store.client.delete_run(n.members(1)[0]), 21, [5, 6, 7]),
        (lambda n: n.store.client.delete_run(n.members(7)[0]), 21, [5, 6, 7]),
        (lambda n: n.store.client.delete_model_version(BTC.registered, "7"), 21, [5, 6]),
        (lambda n: n.store.client.delete_registered_model(BTC.registered), 21, []),
        (lambda n: n.store.client.rename_registered_model(BTC.registered, "mine"), 33, []),
        (delete_experiment, 21, [5, 6, 7]),  # opening the store restores it
    ],
)
def test_what_a_person_deleted_or_renamed_does_not_prevent_it(nights, change, runs, versions):
    change(nights)
    experiment._opened.clear()
    nights.prune()
    assert (rows_by_table(nights.store.uri)["runs"], nights.versions()) == (runs, versions)
    assert str(nights.prune()) == "nothing to prune"


def test_an_experiment_that_a_person_renamed_is_no_longer_that_of_the_home(nights):
    nights.store.client.rename_experiment(nights.store.experiment_id, "mine")
    experiment._opened.clear()
    with pytest.raises(CpbError, match="has no experiment cpb") as caught:
        nights.prune()
    assert caught.value.code == "lost-store"
    take_store()
    nights.prune()
    assert rows_by_table(nights.store.uri)["runs"] == 49
    assert nights.versions() == [1, 2, 3, 4, 5, 6, 7]


def test_artifacts_of_another_machine_keep_their_runs(nights):
    with closing(sqlite3.connect(sqlite_path(nights.store.uri))) as connection, connection:
        connection.execute(
            "UPDATE runs SET artifact_uri = 'file:///of-another-machine/artifacts/' || run_uuid || '/artifacts' "
            "WHERE run_uuid = ?",
            (nights.members(2)[1],),
        )
    report = nights.prune()
    assert nights.there(nights.members(2)[1])
    assert [line for line in report.kept if "another machine" in line]


def test_nothing_goes_while_a_run_is_written(nights):
    state = nights.state()
    flow = start_parent("now", {})
    with pytest.raises(BusyError) as error:
        nights.prune()
    assert error.value.code == "busy"
    assert flow.run_id in str(error.value)
    assert nights.there(*nights.tree(1)) == nights.tree(1)
    nights.store.client.set_terminated(flow.run_id)
    assert nights.prune().runs
    assert nights.state() != state


def test_the_run_of_another_host_that_died_does_not_stop_it_for_good(nights):
    flow = start_parent("theirs", {})
    dead = replace(ProcessId.current(), host="elsewhere")
    nights.store.client.set_tag(flow.run_id, PROCESS, str(dead))
    with pytest.raises(BusyError, match="given up 7 days after its last sign of life"):
        nights.prune(dry_run=True)
    long_ago = datetime.now(UTC) - timedelta(days=8)
    nights.store.client.set_tag(flow.run_id, OPENED_AT, long_ago.isoformat())
    with closing(sqlite3.connect(sqlite_path(nights.store.uri))) as database, database:
        database.execute(
            "UPDATE runs SET start_time = ? WHERE run_uuid = ?",
            (int(long_ago.timestamp() * 1000), flow.run_id),
        )
    told = nights.prune(dry_run=True)
    assert nights.store.client.get_run(flow.run_id).info.status == "RUNNING"
    assert told.runs == nights.prune().runs > 0
    assert nights.store.client.get_run(flow.run_id).info.status == "KILLED"


def test_copies_of_a_servers_models_go_with_their_versions(nights):
    version = nights.store.client.get_model_version(BTC.registered, "7")
    cache = nights.home / "champions"
    current = model_files(cache / f"{BTC.registered}-7-{version.run_id[:12]}", "current")
    model_files(cache / f"{BTC.registered}-2-{'0' * 12}", "stale")
    foreign = model_files(cache / f"{BTC.registered}-3-{'0' * 12}", "foreign")
    (foreign / "notes.txt").write_text("mine")
    model_files(cache / "my-copy", "mine")
    nights.prune()
    assert {f.name for f in cache.iterdir()} == {current.name, foreign.name, "my-copy"}
    assert [path.name for path in foreign.iterdir()] == ["notes.txt"]
    assert len(list(current.iterdir())) == len(NAMES)


CHILD = f"""
import os, sys
from pathlib import Path
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from tasks.tracking import prune as module
from mlflow.tracking import MlflowClient
left = int(sys.argv[2])

def dying(function):
    def call(*given, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), 9)
        left -= 1
        return function(*given, **options)
    return call

SqlAlchemyStore._hard_delete_run = dying(SqlAlchemyStore._hard_delete_run)
os.unlink, os.rmdir = dying(os.unlink), dying(os.rmdir)
for name in dir(MlflowClient):
    if name.startswith(("delete_", "set_tag")):
        setattr(MlflowClient, name, dying(getattr(MlflowClient, name)))
print("pruning", flush=True)
print(module.delete_old(Path(sys.argv[1]), dry_run=False, nights={KEPT}), int(sys.argv[2]) - left, flush=True)
"""


def child(nights, code, *arguments, wait=True, program=(sys.executable, "-c")):
    start = subprocess.run if wait else subprocess.Popen
    options = (
        {"timeout": 120, "check": False, "capture_output": True} if wait else {"stdout": subprocess.PIPE}
    )
    return start(
        [*program, code, str(nights.home), *map(str, arguments)],
        cwd=nights.place,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        **options,
    )


def ended_like(nights):
    """What any sequence of prunings must end in: rows of each table, files, versions."""
    files = {p.relative_to(nights.place) for p in (nights.place / "mlruns" / "artifacts").rglob("*")}
    return rows_by_table(nights.store.uri), files, nights.versions(), nights.versions(ETH)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0, 1, 9, 79, 80, 95, 107, 108, 109, 200, 300, 310])
def test_a_pruning_that_was_killed_is_finished_by_the_next(nights, forking, moment):
    """Moments, in this order: versions and their tags, marks of runs, files, rows."""
    board = read_board(nights.flow(7))
    killed = child(nights, CHILD, moment, program=(forking / fork_server.CODE,))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for champion in champions(nights.store):
        champion.check()
    assert read_board(nights.flow(7)) == board
    nights.prune()
    rows, files, btc, eth = ended_like(nights)
    assert (rows["runs"], rows["model_version_tags"]) == (21, 6 * 10)
    kept = {run for n in (5, 6, 7) for run in nights.members(n)}
    assert {f.parts[2] for f in files} == kept
    assert (btc, eth, read_board(nights.flow(7))) == ([5, 6, 7], [5, 6, 7], board)


@pytest.fixture
def server(nights, monkeypatch):
    """A tracking server with a store and artifacts of its own; yields the store and the server's database."""
    (nights.place / "server").mkdir()
    with tracking_server(nights.place / "server") as (url, database):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        yield take_store(), database


@pytest.mark.slow
def test_a_tracking_server_marks_runs_as_deleted(nights, server):
    store, database = server
    made = {n: add_night(store, nights.home, n, "um", ("BTCUSDT",), database=database) for n in range(1, 5)}
    flows = {n: night[0] for n, night in made.items()}
    board = read_board(flows[4], read_members(store, flows[4]))
    before = rows_by_table(f"sqlite:///{database}")["runs"]

    report = delete_old(nights.home, dry_run=False, nights=1)

    # The predecessor of the champion is that of night 3.
    assert (report.runs, len(report.versions), report.kept) == (12, 2, [])
    assert rows_by_table(f"sqlite:///{database}")["runs"] == before
    assert {find_run(store, run).info.lifecycle_stage for run in made[1][2]} == {"deleted"}
    (row,) = read_board(
        flows[3], read_members(store, flows[3])
    )  # a fleet of one member, which stays, is whole
    assert (row["architecture"], row["members"]) == ("gru", 1)
    assert read_board(flows[4], read_members(store, flows[4])) == board
    add_night(store, nights.home, 5, "um", ("BTCUSDT",), database=database)
    report = delete_old(nights.home, dry_run=False, nights=1)
    assert report.runs == 5
    assert str(delete_old(nights.home, dry_run=False, nights=1)) == "nothing to prune"
    (champion,) = champions(store)
    champion.check()
    assert champion.version == "5"


def test_the_nights_that_stay_are_not_read(nights, monkeypatch):
    read = set()

    def noted(*arguments, **options):
        for run in search(*arguments, **options):
            read.add(run.info.run_id)
            yield run

    monkeypatch.setattr(pruning, "search", noted)
    assert nights.prune().runs == 28
    recent = {run for night in (5, 6, 7) for run in nights.tree(night)}
    assert read & recent == {nights.flow(night) for night in (5, 6, 7)}


def test_a_recent_run_of_a_person_keeps_the_old_run_above_it(nights):
    fleet, member = nights.fleets(1)[0], nights.members(1)[0]
    own = nights.store.client.create_run(nights.store.experiment_id, tags={"mlflow.parentRunId": member})
    nights.prune()
    stays = {own.info.run_id, member, fleet, nights.flow(1)}
    assert nights.there(*stays) == stays
    assert nights.there(*nights.tree(1)) == nights.tree(1) & stays
