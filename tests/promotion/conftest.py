import shutil

import pytest
from in_process import train_by
from promotion_tools import SECOND, SPEC, SPOILT, THIRD, Trainer, night

from schemas.run import RunSpec
from schemas.scope import home
from tasks.promotion import recipe_pairs


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
        from tasks.ingest import ingest

        ingest(RunSpec(**SPEC.model_dump() | {"as_of": SECOND}).scope)
        night()
    return place


@pytest.fixture(scope="module")
def after_appointment(after_one_night, tmp_path_factory):
    """The same after a second night, which appoints `har` against the champions' recipe, with candles for a third."""
    place = tmp_path_factory.mktemp("appointed") / "copy"
    with pytest.MonkeyPatch.context() as patch:
        _copied(after_one_night, place, patch).after = SPOILT
        from tasks.ingest import ingest

        night(SECOND, architectures="linear,har")
        ingest(RunSpec(**SPEC.model_dump() | {"as_of": THIRD}).scope)
    return place


@pytest.fixture
def trainer(after_one_night, tmp_path, monkeypatch):
    """The trainer of a test's own copy of the home after one night."""
    return _copied(after_one_night, tmp_path / "copy", monkeypatch)


@pytest.fixture
def appointed(after_appointment, tmp_path, monkeypatch):
    """Reads the open pair of a test's own copy of the home in which `har` is on trial."""
    _copied(after_appointment, tmp_path / "copy", monkeypatch).after = SPOILT
    return lambda: recipe_pairs.pairs(home(), "sim", "1h")[0]


def _copied(template, place, patch):
    shutil.copytree(template, place)
    _use(patch, place)
    fake = Trainer()
    train_by(patch, fake)
    return fake
