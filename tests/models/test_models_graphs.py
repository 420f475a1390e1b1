"""Epochs as a GPU runs them: warm-up, one capture per bucket of rows, replays from buffers that never move.

There is no CUDA graph on a CPU, but all that a graph takes for granted can be checked: a replay here demands that
every tensor the work reads or writes still lies where it lay at capture, and then does the same work.
"""

from collections import Counter

import numpy as np
import pytest
import torch

from cpbmodels import train_fleet
from cpbmodels.fleet.fleet import Fleet
from cpbmodels.fleet.graphs import EAGER_RUNS, Graphs, StepRunner, ValidationRunner
from cpbmodels.fleet.loop import Loop
from tests.tools.candles import series_for, walk

OPTIONS = {
    "preset": "smoke",
    "device": "cpu",
    "dtype": "float64",
    "workers": 1,
    "lr": 0.03,
    "steps_per_epoch": 0,
    "batch_size": 40,
    "epochs": 12,
    "patience": 2,
    "dropout": 0.2,
    "n_layers": 2,
}
UNEQUAL = (440, 470, 500, 540, 560, 580, 610, 640, 660, 690)


class Replay:
    """Stands in for torch.cuda.CUDAGraph."""

    def __init__(self, recorder, key, work):
        self.recorder, self.key, self.work, self.addresses = recorder, key, work, recorder.addresses()

    def replay(self):
        assert self.recorder.addresses() == self.addresses
        self.recorder.done["replayed", self.key] += 1
        self.work()


class Recorder(Graphs):
    """Graphs on a CPU: the way of a GPU, counted."""

    def __init__(self, loop):
        super().__init__(torch.device("cpu"))
        self.loop, self.done = loop, Counter()

    def run(self, key, work):
        self.key = key
        super().run(key, work)

    def eager(self, work):
        self.done["eager", self.key] += 1
        work()

    def capture(self, work):
        self.done["captured", self.key] += 1
        return Replay(self, self.key, work)

    def captures(self, what):
        return {key: n for (kind, key), n in self.done.items() if kind == "captured" and key[0] == what}

    def addresses(self):
        fleet, bank, runner, check = self.loop.fleet, self.loop.bank, self.loop.runner, self.loop.validator
        tensors = [fleet.flat, fleet.grad, fleet.first, fleet.second, fleet.steps, fleet.seeds]
        tensors += [
            fleet.loss_sum,
            fleet.scaling.mean,
            fleet.scaling.inverse,
            bank.rows,
            bank.inverse_sigma,
            runner.counter,
        ]
        tensors += [
            runner.counter,
            runner.origins,
            runner.weight,
            runner.rates,
            *fleet.compute_weights.weights.values(),
        ]
        tensors += [check.origins, check.weight, check.counter, check.total, *fleet.differing.values()]
        return [tensor.data_ptr() for tensor in tensors]


@pytest.fixture
def gpu(monkeypatch):
    """Make every loop go the way of a GPU, in buckets of 4 rows; the recorders of the loops made so far."""
    made, start = [], Loop.__init__

    def like_a_gpu(self, job, fleet, monitor):
        start(self, job, fleet, monitor)
        self.graphs = Recorder(self)
        self.runner = StepRunner(fleet, job.bank, self.graphs)
        self.runner.bucket = 4
        self.validator = ValidationRunner(fleet, job.bank, self.graphs, in_flight=300)
        self.compact()
        made.append(self.graphs)

    monkeypatch.setattr(Loop, "__init__", like_a_gpu)
    return made


DIFFERENT = {
    "lr": np.linspace(0.01, 0.05, 10),
    "dropout": np.linspace(0.1, 0.5, 10),
    "weight_decay": np.linspace(0, 0.3, 10),
    "candle_weight": np.linspace(0, 1, 10),
}


@pytest.mark.parametrize(("architecture", "values"), [("gru", {}), ("linear", {}), ("gru", DIFFERENT)])
def test_a_gpus_way_gives_the_same_models_and_few_graphs(architecture, values, request):
    series = [series_for(architecture, rows, seed=rows) for rows in UNEQUAL]
    seeds = list(range(len(series)))
    given = OPTIONS | {"seeds": seeds} | values
    if architecture == "gru":
        given = {**given, "hidden_dim": 4, "context": 6, "horizon": 3, "n_layers": 1, "epochs": 7}
    plain = train_fleet(series, architecture, **given)
    made = request.getfixturevalue("gpu")
    replayed = train_fleet(series, architecture, **given)
    for ours, theirs in zip(replayed, plain, strict=True):
        assert [e["epoch"] for e in ours.history] == [e["epoch"] for e in theirs.history]
        for a, b in zip(ours.history, theirs.history, strict=True):
            assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-12)
            assert a["val_loss"] == pytest.approx(b["val_loss"], rel=1e-12)
        torch.testing.assert_close(ours.rows, theirs.rows, rtol=1e-9, atol=1e-11)
    assert len({len(member.history) for member in plain}) > 1
    assert len({-(-member.report["train_windows"] // 40) for member in plain}) > 5  # steps of an epoch
    recorder = made[0]
    steps, checks = recorder.captures("step"), recorder.captures("validation")
    assert all(n == 1 for n in (*steps.values(), *checks.values()))
    assert 1 < len({key[1] for key in steps}) <= 3  # buckets of 4, 8 and 10 rows
    assert len(steps) <= 4  # masked, and once the rows that are left are equal without a mask
    assert 1 <= len(checks) <= 3
    eager = sum(n for (what, _), n in recorder.done.items() if what == "eager")
    assert eager <= EAGER_RUNS + len({key for _, key in recorder.done})
    assert sum(n for (what, key), n in recorder.done.items() if what == "replayed" and key[0] == "step") > 20
    assert any(what == "replayed" and key[0] == "validation" for what, key in recorder.done)


@pytest.mark.parametrize("compute", ["float32", "float16"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam"])
def test_a_row_that_is_done_keeps_every_bit(optimizer, compute):
    """Momentum, decay, step count and loss scale: another step of its neighbours changes nothing of it."""
    seen = []
    step = Fleet.step

    def watched(fleet, bank, origins, weight, lr):
        step(fleet, bank, origins, weight, lr)
        if len(seen) == 3:
            return
        seen.append(1)
        before, masked = state(fleet), weight.clone()
        masked[1] = 0
        step(fleet, bank, origins, masked, lr, maskable=2)
        for old, new in zip(before, state(fleet), strict=True):
            assert torch.equal(old[1], new[1])
            assert not torch.equal(old[0], new[0])

    def state(fleet):
        parts = [fleet.flat, fleet.first, fleet.second, fleet.steps[:, None], fleet.loss_sum[:, None]]
        return [part.clone() for part in (*parts, *([fleet.scale] if fleet.scale is not None else []))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "step", watched)
        mixed = {"mixed_precision": "fp16"} if compute == "float16" else {}
        options = (
            OPTIONS | {"dtype": "float32", "epochs": 1, "optimizer": optimizer, "weight_decay": 0.1} | mixed
        )
        train_fleet([walk(500, seed=s) for s in (1, 2, 3)], "linear", seeds=[1, 2, 3], **options)
    assert len(seen) == 3


def test_a_row_that_overflows_in_fp16_does_not_move(monkeypatch):
    """As torch's GradScaler has it: only its scale is halved. Its neighbours take their step."""
    step, seen = Fleet.step, []

    def watched(fleet, bank, origins, weight, lr):
        if len(seen) == 2:
            fleet.scale[1] = 2.0**24  # times a gradient of 1e-2 and more: beyond fp16
        before = [part.clone() for part in (fleet.flat, fleet.first, fleet.second, fleet.steps[:, None])]
        step(fleet, bank, origins, weight, lr)
        after = (fleet.flat, fleet.first, fleet.second, fleet.steps[:, None])
        seen.append([torch.equal(a[1], b[1]) for a, b in zip(before, after, strict=True)])
        assert not any(torch.equal(a[0], b[0]) for a, b in zip(before, after, strict=True))
        assert all(torch.isfinite(part).all() for part in after)
        if len(seen) == 3:
            assert fleet.scale[1] == 2.0**23

    monkeypatch.setattr(Fleet, "step", watched)
    options = OPTIONS | {"dtype": "float32", "epochs": 1, "mixed_precision": "fp16", "weight_decay": 0.1}
    train_fleet([walk(500, seed=s) for s in (1, 2)], "linear", seeds=[1, 2], **options)
    assert seen[0] == [False] * 4
    assert seen[2] == [True] * 4
