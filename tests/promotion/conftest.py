import shutil

import pytest

from schemas.run import RunSpec
from tests.tools.copied_store import record_place
from tests.tools.in_process import train_by
from tests.tools.promotion_tools import SECOND, SPEC, Trainer, night


def _use(patch, place):
    patch.setenv("CPB_HOME", str(place / "data"))
    patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlruns/mlflow.db")
    patch.chdir(place)


@pytest.fixture(scope="session")
def after_one_night(tmp_path_factory):
    """A home after one night of the preset smoke, with the next night's candles; copied for every test."""
    place = tmp_path_factory.mktemp("night")
    with pytest.MonkeyPatch.context() as patch:
        _use(patch, place)
        train_by(patch, Trainer())
        from tasks.steps import ingest

        ingest(RunSpec(**SPEC.model_dump() | {"as_of": SECOND}).scope)
        night()
    return place


@pytest.fixture
def trainer(after_one_night, tmp_path, monkeypatch):
    """The trainer of a test's own copy of the home after one night."""
    return _copied(after_one_night, tmp_path / "copy", monkeypatch)


def _copied(template, place, patch):
    shutil.copytree(template, place)
    record_place(place / "mlruns/mlflow.db")
    _use(patch, place)
    fake = Trainer()
    train_by(patch, fake)
    return fake
