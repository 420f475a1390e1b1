"""A home and its store belong together: the store is known by its id, wherever it lies, and another is refused."""

import json
import shutil
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from sqlite3 import connect

import pytest

from schemas.errors import CpbError, DamagedError
from tasks.tracking import store as store_module
from tasks.tracking.experiment import STORE_ID, _opened, store_at
from tasks.tracking.home_store import RECORD, HomeStore, home_store, tracking_uri
from tasks.tracking.registry import registered_models
from tasks.tracking.store import open_store, read_store, take_store
from tests.tools.copied_store import record_place
from tests.tools.mlflow_engines import close_connections, then_leave
from tests.tools.mlflow_interface import tracking_server
from tests.tools.postgres_tools import place_artifacts


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder in which nothing is stored."""
    for name in ("CPB_HOME", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def made(schema):
    """Return a function that makes a store in a folder, and returns it."""

    def make(folder):
        folder.mkdir(parents=True)
        shutil.copyfile(schema, folder / "mlflow.db")
        return store_at(f"sqlite:///{folder}/mlflow.db")

    return make


def refused(code, *openings):
    errors = []
    for opening in openings or (open_store, partial(open_store, create=False), read_store):
        with pytest.raises(CpbError) as caught:
            opening()
        assert caught.value.code == code
        errors.append(str(caught.value))
    assert len(set(errors)) == 1
    return errors[0]


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("set_home", "expected"), [("", "mlruns"), ("home", "home/mlruns"), ("deep/er", "deep/er/mlruns")]
)
def test_a_new_store_lies_beside_data_or_in_the_home_that_is_set(place, monkeypatch, set_home, expected):
    monkeypatch.setenv("CPB_HOME", set_home)
    assert open_store().uri == f"sqlite:///{place}/{expected}/mlflow.db"
    assert open_store().artifacts == (place / expected / "artifacts").as_uri()


def test_a_home_keeps_its_store_in_another_working_folder_and_with_a_forgotten_address(
    place, made, monkeypatch
):
    own = made(place / "shared")
    monkeypatch.setenv("CPB_HOME", str(place / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own.uri)
    open_store()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    made(place / "elsewhere/mlruns")
    monkeypatch.chdir(place / "elsewhere")
    assert open_store().id == read_store().id == own.id
    assert tracking_uri() == own.uri
    assert not (place / "home/mlruns").exists()


def test_another_store_is_refused_before_anything_is_written(place, made, monkeypatch):
    open_store()
    other = made(place / "other")
    close_connections(other.uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", other.uri)
    before = contents(place / "data"), contents(place / "other")
    said = refused("other-store")
    assert said == (
        f"the MLflow store {other.uri} does not belong to the home data, whose store is "
        f"sqlite:///{place}/mlruns/mlflow.db: unset MLFLOW_TRACKING_URI, or set CPB_HOME, so that home and store "
        "belong together, or give this home the other store on purpose with `cpb store --take`"
    )
    assert (contents(place / "data"), contents(place / "other")) == before
    monkeypatch.setenv("CPB_HOME", str(place / "new"))
    assert open_store().id == other.id


def test_no_store_is_begun_for_a_home_that_has_one(place, monkeypatch):
    own = open_store()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mistyped/mlflow.db")
    said = refused("lost-store")
    # The home's own is where it was: nothing is lost, and the way back is not a new store.
    assert f"sqlite:///{place}/mistyped/mlflow.db does not exist, and the home " in said
    assert f" has {own.uri}: unset MLFLOW_TRACKING_URI, or" in said
    assert "is not there" not in said
    close_connections(own.uri)
    shutil.rmtree(place / "mlruns")
    assert f"does not exist, and was last at {own.uri};" in refused("lost-store")
    assert not (place / "mistyped").exists()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    refused("lost-store")
    assert not (place / "mlruns").exists()
    assert take_store().uri == own.uri
    assert open_store().id == home_store(Path("data")).store_id


def test_another_store_at_the_same_address_is_another_store(place, made):
    own = open_store()
    close_connections(own.uri)
    (place / "mlruns").rename(place / "lost")
    _opened.clear()
    other = made(place / "mlruns")
    said = refused("other-store")
    assert f"is another one (id {other.id}) than that of the home data (id {own.id})" in said
    assert take_store().id == open_store().id == other.id


def test_reading_alone_takes_no_store(place, made, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", made(place / "seen").uri)
    read_store()
    assert not (place / "data").exists()


@pytest.mark.parametrize("create", [True, False])
def test_a_command_that_writes_takes_the_store(place, made, monkeypatch, create):
    own = made(place / "own")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own.uri)
    open_store(create=create)
    assert home_store(Path("data")) == HomeStore(store_id=own.id, address="sqlite:///../own/mlflow.db")
    assert (place / "data/cpb-version").exists()


def test_a_store_keeps_its_id_when_it_is_moved(place, made, monkeypatch):
    own = made(place / "old/deep")
    monkeypatch.setenv("CPB_HOME", str(place / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own.uri)
    open_store()
    close_connections(own.uri)
    (place / "old/deep").rename(place / "new")
    record_place(place / "new/mlflow.db")
    refused("lost-store")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/new/mlflow.db")
    assert read_store().id == own.id
    assert home_store(place / "home").address == "sqlite:///../old/deep/mlflow.db"
    open_store()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert open_store().uri == f"sqlite:///{place}/new/mlflow.db"


@pytest.mark.parametrize("inside", [True, False])
def test_home_and_store_are_moved_together(place, monkeypatch, inside):
    (place / "project").mkdir()
    monkeypatch.chdir(place / "project")
    monkeypatch.setenv("CPB_HOME", "data" if inside else "")
    own = open_store()
    close_connections(own.uri)
    (place / "project").rename(place / "moved")
    monkeypatch.chdir(place / "moved")
    refused("moved-store")  # docs/operations.md has the line that records the new place
    database = place / "moved" / ("data/mlruns" if inside else "mlruns") / "mlflow.db"
    record_place(database)
    _opened.clear()
    store = open_store()
    assert (store.id, store.uri) == (own.id, f"sqlite:///{database}")


def test_a_copied_home_shares_the_store_or_must_be_told_where_it_is(place, made, monkeypatch):
    own = made(place / "far/away/store")
    monkeypatch.setenv("CPB_HOME", str(place / "homes/one"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own.uri)
    open_store()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    shutil.copytree(place / "homes/one", place / "homes/two")
    monkeypatch.setenv("CPB_HOME", str(place / "homes/two"))
    assert open_store().uri == own.uri

    beside = made(place / "beside/store")
    monkeypatch.setenv("CPB_HOME", str(place / "beside/home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", beside.uri)
    open_store()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    shutil.copytree(place / "beside/home", place / "alone/home")
    monkeypatch.setenv("CPB_HOME", str(place / "alone/home"))
    assert f"sqlite:///{place}/alone/store/mlflow.db does not exist;" in refused("lost-store")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", beside.uri)
    open_store()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert open_store().uri == beside.uri


def test_the_store_of_a_home_behind_a_link_is_found_by_both_names(place, made, monkeypatch):
    (place / "disk/home").mkdir(parents=True)
    (place / "home").symlink_to(place / "disk/home")
    own = made(place / "store")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own.uri)
    monkeypatch.setenv("CPB_HOME", str(place / "home"))
    open_store()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    for name in ("home", "disk/home"):
        monkeypatch.setenv("CPB_HOME", str(place / name))
        assert open_store().id == own.id


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("http://me:hunter2@127.0.0.1:1", "http://127.0.0.1:1"),
        ("postgresql://me:hunter2@127.0.0.1:1/mlflow", "postgresql://127.0.0.1:1/mlflow"),
    ],
)
def test_the_address_is_kept_without_user_and_password(place, made, monkeypatch, uri, address):
    own = made(place / "own")
    monkeypatch.setattr(store_module, "store_at", lambda *_, **__: own)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    open_store()
    assert "hunter2" not in (place / "data" / RECORD).read_text()
    assert home_store(Path("data")).address == address
    monkeypatch.undo()
    monkeypatch.chdir(place)
    said = refused("store")
    assert f"the MLflow store {address} cannot be used: " in said
    assert "data/cpb-store.json has its address without user and password: set MLFLOW_TRACKING_URI" in said


def test_a_store_that_does_not_answer_is_not_another_store(place, monkeypatch):
    own = open_store()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    said = refused("store")
    assert "the MLflow store http://127.0.0.1:1 cannot be used: " in said
    assert f"was last at {own.uri}: unset MLFLOW_TRACKING_URI" in said


@pytest.mark.parametrize("change", [lambda text: text[:-20], lambda text: text.replace("mlruns", "mlrums")])
def test_a_damaged_record_is_named_with_the_command_that_makes_it_again(place, change):
    own = open_store()
    record = place / "data" / RECORD
    record.write_text(change(record.read_text()))
    with pytest.raises(
        DamagedError, match=r"data/cpb-store\.json, which says which MLflow store is this home's"
    ):
        open_store()
    assert take_store().id == own.id
    assert open_store().id == own.id


def test_a_damaged_record_begins_no_new_store(place, made, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", made(place / "far").uri)
    own = open_store()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (place / "data" / RECORD).write_text("{}")
    with pytest.raises(DamagedError, match="set MLFLOW_TRACKING_URI to that store"):
        take_store()
    assert not (place / "mlruns").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own.uri)
    assert take_store().id == own.id


def test_an_experiment_that_a_person_made_gets_one_id_on_every_machine(schema, place, monkeypatch):
    shutil.copyfile(schema, place / "mlflow.db")
    uri = f"sqlite:///{place}/mlflow.db"
    place_artifacts(uri, place / "large")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    fork = get_context("fork")
    answers = fork.SimpleQueue()

    def work(home):
        monkeypatch.setenv("CPB_HOME", str(place / home))
        answers.put(open_store().id)

    children = [fork.Process(target=then_leave, args=(work, f"home-{i}")) for i in range(3)]
    seen = read_store().id
    assert STORE_ID not in read_store().client.get_experiment(read_store().experiment_id).tags
    close_connections(uri)
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0] * 3
    assert {answers.get() for _ in children} == {seen}
    with closing(connect(place / "mlflow.db")) as database:
        query = "SELECT value FROM experiment_tags WHERE key = 'cpb.store_id'"
        assert database.execute(query).fetchall() == [(seen,)]


def test_of_two_processes_that_take_two_stores_at_once_one_is_refused(place, made, monkeypatch):
    stores = [made(place / name) for name in ("a", "b")]
    fork = get_context("fork")
    answers, start = fork.SimpleQueue(), fork.Barrier(2)

    def work(uri):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        start.wait(60)
        try:
            answers.put(open_store().id)
        except CpbError as error:
            answers.put(error.code)

    for store in stores:
        close_connections(store.uri)
    children = [fork.Process(target=then_leave, args=(work, store.uri)) for store in stores]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    ids = {store.id for store in stores}
    got = {answers.get() for _ in children}
    assert "other-store" in got
    assert got - {"other-store"} == {home_store(Path("data")).store_id}
    assert got - {"other-store"} < ids


def test_a_kill_before_the_store_is_taken_loses_nothing(place, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_home_store", killed)
        with pytest.raises(KeyboardInterrupt):
            open_store()
    assert not (place / "data" / RECORD).exists()
    own = store_at(f"sqlite:///{place}/mlruns/mlflow.db")
    assert open_store().id == own.id == home_store(Path("data")).store_id


def test_the_command_shows_and_changes_the_store(place, made, monkeypatch, cpb_here):
    code, out, err = cpb_here("store")
    assert code == 1
    assert "no runs yet" in err
    other = made(place / "other")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", other.uri)
    code, out, err = cpb_here("store")
    assert (code, out) == (0, f"home   data\nstore  {other.uri}  (id {other.id}, 0 champions)\n")
    assert "the home has no store yet" in err
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    own = open_store()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", other.uri)
    assert cpb_here("store")[0] == 1
    code, out, err = cpb_here("store", "--take", "--json")
    assert code == 0
    assert json.loads(out) == {
        "home": "data",
        "store": other.uri,
        "id": other.id,
        "is_own": True,
        "champions": 0,
        "packaged_elsewhere": [],
        "exit": 0,
    }
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert open_store().id == other.id != own.id


COMMANDS = [
    ("train-all", "--source", "sim", "--coins", "BTC", "--timeframes", "1h", "--preset", "smoke"),
    ("train", "BTC", "1h", "--arch", "har", "--source", "sim"),
    ("demo",),
    ("backtest", "--source", "sim", "--coins", "BTC", "--timeframes", "1h", "--preset", "smoke", "--gate"),
    ("forecast", "--source", "sim"),
    ("forecast", "--source", "sim", "--offline"),
    ("promote", "BTC", "1h", "--version", "1", "--force", "tried"),
    ("publish", "--dry-run"),
    ("prune",),
    ("prune", "--yes"),
    ("leaderboard",),
    ("champions",),
    ("ui",),
    ("store",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_refuses_another_store(place, made, monkeypatch, cpb_here, command):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    open_store()
    other = made(place / "other")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", other.uri)
    close_connections(other.uri)
    before = contents(place / "data"), contents(place / "other")
    code, out, err = cpb_here(*command)
    assert (code, out) == (1, "")
    assert f"cpb: the MLflow store {other.uri} does not belong to the home data, whose store is" in err
    assert (contents(place / "data"), contents(place / "other")) == before


@pytest.mark.slow
def test_a_served_store_has_the_id_of_its_database_and_keeps_it(place, monkeypatch):
    with tracking_server(place) as (url, database):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        with pytest.raises(CpbError, match=f"{url} has no experiment cpb") as caught:
            read_store()
        assert caught.value.code == "no-store"
        own = open_store()
        assert home_store(Path("data")).address == url
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
        assert open_store().id == own.id
        monkeypatch.setenv("CPB_HOME", str(place / "second"))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        assert open_store().id == own.id
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        assert open_store().id == own.id
        monkeypatch.setenv("CPB_HOME", str(place / "data"))
        monkeypatch.chdir(place / "second")
        assert open_store().id == own.id
        assert registered_models(open_store()) == []
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        own.client.rename_experiment(own.experiment_id, "elsewhere")
        _opened.clear()
        assert f"{url} has no experiment cpb" in refused("lost-store")
        store_at(url)  # as another home's command begins one
        refused("other-store")
