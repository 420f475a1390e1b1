"""Where memory runs out: fleets are halved, then batches, and nothing of the step that failed stays in memory."""

import gc
import weakref

import pytest
import torch

from cpbmodels import ensemble, train_fleet
from cpbmodels.arch import decoder
from cpbmodels.fleet.fleet import Fleet
from tests.tools.candles import walk

SMALL = {
    "preset": "smoke",
    "device": "cpu",
    "workers": 1,
    "batch_size": 16,
    "steps_per_epoch": 2,
    "epochs": 1,
    "n_layers": 2,
    "dropout": 0.2,
    "teacher_forcing": 0.5,
}
PARTS = (
    "DeferredLinear",
    "DeferredAttention",
    "DeferredLstm",
    "_LinearSteps",
    "_AttentionSteps",
    "_LstmSteps",
)
BREAKS = {"decoder": "_AttentionUse.forward", "backward": "_AttentionUse.backward"}


@pytest.fixture
def made(monkeypatch):
    """Weak references to every fleet, and to every object that stores what the steps of a decoder leave."""
    refs = []
    for cls in (Fleet, *(getattr(decoder, name) for name in PARTS)):

        def noted(self, *rest, start=cls.__init__):
            start(self, *rest)
            refs.append(weakref.ref(self))

        monkeypatch.setattr(cls, "__init__", noted)
    return refs


@pytest.mark.parametrize("where", BREAKS)
@pytest.mark.parametrize("architecture", ["gru", "lstm", "lstm-manual"])
def test_out_of_memory_in_a_decoder_leaves_nothing_behind(architecture, where, made, monkeypatch):
    """With the collector off: what a cycle holds would still be there when half the fleet starts."""
    cls, method = (part for part in BREAKS[where].split("."))
    inner, calls, left = getattr(getattr(decoder, cls), method), [], []

    def scarce(*rest):
        calls.append(1)
        if len(calls) == 4:  # the decoder's fourth step, forward or backward
            raise torch.OutOfMemoryError("no")
        return inner(*rest)

    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda: left.extend(ref for ref in made if ref() is not None))
    monkeypatch.setattr(getattr(decoder, cls), method, staticmethod(scarce))
    gc.disable()
    try:
        members = train_fleet([walk(500, seed=s) for s in (1, 2)], architecture, seeds=[1, 2], **SMALL)
    finally:
        gc.enable()
        collect()
    assert [member.report["halved_to"] for member in members] == [1, 1]
    assert len(made) > 5
    assert not left


PLAIN = {"preset": "smoke", "device": "cpu", "epochs": 3}


def test_out_of_memory_halves_the_fleet_then_the_batch(monkeypatch, caplog):
    series = [walk(600, seed=seed) for seed in range(3)]
    wanted = train_fleet(series, "linear", seeds=[1, 2, 3], dtype="float64", **PLAIN)
    step = Fleet.step

    def scarce(self, bank, origins, weight, lr):
        if len(origins) * origins.shape[1] / self.net.options.accumulate > 16:
            raise torch.OutOfMemoryError("no")
        return step(self, bank, origins, weight, lr)

    monkeypatch.setattr(Fleet, "step", scarce)
    halved = train_fleet(series, "linear", seeds=[1, 2, 3], dtype="float64", workers=1, **PLAIN)
    assert "continuing with 1" in caplog.text
    assert "2 parts" in caplog.text
    for a, b in zip(wanted, halved, strict=True):
        torch.testing.assert_close(a.rows, b.rows, rtol=1e-9, atol=1e-12)
    assert [(member.report["halved_to"], member.report["accumulate"]) for member in halved] == [(1, 2)] * 3
    assert {member.report["split_to"] for member in halved} == {2}
    assert (wanted[0].report["halved_to"], wanted[0].report["split_to"]) == (0, 0)


def test_a_batch_that_was_asked_for_in_parts_is_not_told_as_a_lack_of_memory():
    (asked,) = train_fleet([walk(600)], "linear", **PLAIN, accumulate=2)
    assert (asked.report["accumulate"], asked.report["split_to"]) == (2, 0)


def test_copies_average_where_memory_ran_out_between_them(monkeypatch):
    step, calls = Fleet.step, []

    def scarce(self, bank, origins, weight, lr):
        calls.append(self)
        if calls[0] is not self and self.net.options.accumulate == 1:
            raise torch.OutOfMemoryError("no")
        return step(self, bank, origins, weight, lr)

    monkeypatch.setattr(Fleet, "step", scarce)
    options = PLAIN | {"fleet_size": 1, "workers": 1}
    copies = train_fleet([walk(600)] * 2, "linear", seeds=[1, 2], **options)
    assert [member.report["accumulate"] for member in copies] == [1, 2]
    report = ensemble(copies).report
    assert (report["ensemble"], report["accumulate"], report["split_to"]) == (2, 2, 2)


def test_lack_of_memory_is_recognised_behind_the_error_of_a_broken_capture(monkeypatch):
    step, failed = Fleet.step, []

    def scarce(self, *rest):
        if len(rest[1]) > 1:
            try:
                failed.append(1)
                raise torch.OutOfMemoryError("no")
            finally:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        return step(self, *rest)

    monkeypatch.setattr(Fleet, "step", scarce)
    assert len(train_fleet([walk(500, seed=s) for s in (1, 2)], "linear", workers=1, **PLAIN)) == 2
    assert failed
