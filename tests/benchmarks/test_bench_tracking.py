import pytest

from benchmarks import tracking


@pytest.mark.parametrize("part", ["members", "flow"])
def test_a_store_is_filled_and_read(part, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(tracking, "MEMBERS", 4)
    monkeypatch.setattr(tracking, "EPOCHS", 2)
    found = tracking.measure(tracking.PARTS[part])
    assert all(figure > 0 for figure in found.values())
