"""Where memory runs out in the middle of a step, nothing of that step and of its fleet stays in memory."""

import gc
import weakref

import pytest
import torch
from candles import walk

from cpbmodels import train_fleet
from cpbmodels.arch import decoder
from cpbmodels.fleet.fleet import Fleet

SMALL = {
    "preset": "smoke", "device": "cpu", "workers": 1, "batch_size": 16, "steps_per_epoch": 2, "epochs": 1,
    "n_layers": 2, "dropout": 0.2, "teacher_forcing": 0.5,
}  # fmt: skip
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
