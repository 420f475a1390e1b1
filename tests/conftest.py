import gc
import logging
import os
import secrets
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.tools import fork_server, schema_copies

OWN_SETTINGS = ("CPB_", "HF_ENDPOINT", "HF_TOKEN", "MLFLOW_TRACKING_", "PREFECT_API_", "WANDB_API_KEY")
"""How variables begin that a person sets for cpb, the Hub, MLflow, Prefect and W&B."""
TEST_SETTINGS = ("CPB_FREQTRADE_PYTHON",)
"""What a person sets for the tests themselves."""

# Before any library is imported: no telemetry, one thread per test process, no stray server.
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray reads these once, when the first test of a process imports it; a token per run, which xdist's processes share.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _own_settings():
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(OWN_SETTINGS) and name not in TEST_SETTINGS
    }


# The settings of whoever runs the tests reach none of them: stores, archives, messages, accounts.
for _name in _own_settings():
    del os.environ[_name]
# Looking for garbage among the objects of all libraries takes a fifth of an import's time, and a twentieth of a test's.
gc.set_threshold(20_000)
# An example is not timed: on a busy machine one takes seconds, by no fault of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

_ENVIRONMENT = dict(os.environ)
"""Without what single tests set."""

LONGEST = (
    "golden",
    "test_kernels",
    "test_e2e_notebook",
    "test_e2e_freqtrade",
    "test_e2e_installed",
    "test_page.py",
    "test_e2e_train_all",
    "test_ray.py",
    "test_e2e_deploy_life",
    "test_e2e_interrupt",
    "test_e2e_several",
    "test_page_",
    "test_published_page",
    "test_fuzz",
    "test_docs_agents",
    "test_bench_serve",
    "test_prune.py",
    "test_listeners",
    "test_models_training",
)
"""Files that take longest, which begin first: one that began last would leave the other workers idle."""


def pytest_collection_modifyitems(items):
    """Put the longest files first; `make` has xdist keep this order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(
        key=lambda item: min(place for name, place in (places | {"": 99}).items() if name in item.nodeid)
    )


# A job in the background of a script ignores Ctrl-C, and what tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def forking(tmp_path_factory):
    """A folder with `cpb` as the program of a fork server: it starts in a tenth of a second instead of three.

    For commands of which a test looks at what they print and leave. One that is killed, gets a signal or a setting
    that libraries read when they are imported is started as `python -m flows.cli`.
    """
    folder = tmp_path_factory.mktemp("f")  # short: the address of a socket has 107 characters at most
    fork_server.write_clients(folder, folder / "s")
    with fork_server.running(folder / "s", _ENVIRONMENT, folder):
        yield folder


@pytest.fixture
def cpb_here(monkeypatch, capsys):
    """Run `cpb WORDS` in this process; returns its exit code, stdout and stderr."""

    def run(*words):
        from flows import cli

        monkeypatch.setattr(sys, "argv", ["cpb", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return run


_engines: set = set()
"""SQLAlchemy engines with which this process has connected to a database."""
_watching: list = []


@pytest.fixture(autouse=True)
def _new_warnings():
    """A process says a warning about a file once, and a server each kind once a minute: here it is once a test."""
    if records := sys.modules.get("tasks.storage.records"):
        records.warn_once.cache_clear()
    if logs := sys.modules.get("flows.ops.logs"):
        for handler in logging.root.handlers:  # pytest's are those of the whole session
            handler.filters[:] = [
                known for known in handler.filters if not isinstance(known, logs.OncePerMinute)
            ]


@pytest.fixture(autouse=True)
def _no_setting_is_left():
    """A setting that a test makes ends with it: the next test of the process would store, archive or send by it."""
    before = _own_settings()
    yield
    for name in _own_settings().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


_ROOT_RECORD = Path(__file__).parents[1] / "data" / "cpb-store.json"


@pytest.fixture(autouse=True)
def _no_store_of_the_clone():
    """A test has a home of its own: that of this clone may be somebody's."""
    before = _ROOT_RECORD.exists()
    yield
    assert _ROOT_RECORD.exists() == before, f"{_ROOT_RECORD} was written: set CPB_HOME"


@pytest.fixture(autouse=True)
def _close_databases():
    """Close the connections that a test leaves in pools: a process with a thousand files open cannot `select`.

    MLflow keeps the pool of every store for the life of the process, and nearly every test makes a store of its own.
    Stores of wider fixtures connect again when they are used.
    """
    _watch_engines()
    schema_copies.copy_schemas()
    yield
    _watch_engines()
    schema_copies.copy_schemas()
    while _engines:
        _engines.pop().dispose()


def _watch_engines():
    """Note every engine that connects, once a test has imported SQLAlchemy; importing it takes most tests' time."""
    if "sqlalchemy" not in sys.modules or _watching:
        return
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    @event.listens_for(Engine, "engine_connect")
    def note(connection):
        if not connection.engine.dialect.is_async:
            _engines.add(connection.engine)

    _watching.append(note)
