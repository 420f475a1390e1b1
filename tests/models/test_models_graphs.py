"""Epochs as a GPU runs them: warm-up, one capture per number of members, replays from buffers that never move.

There is no CUDA graph on a CPU, but all that a graph takes for granted can be checked: a replay here demands that
every tensor the step reads or writes still lies where it lay at capture, and then runs the same step.
"""

from collections import Counter

import pytest
import torch
from candles import series_for

from cpbmodels import train_fleet
from cpbmodels.graphs import WARM_UP, StepRunner
from cpbmodels.loop import Loop


class Replay:
    """Stands in for torch.cuda.CUDAGraph."""

    def __init__(self, runner, active):
        self.runner, self.active, self.addresses = runner, active, addresses(runner)

    def replay(self):
        assert addresses(self.runner) == self.addresses
        self.runner.done["replayed", self.active] += 1
        self.runner._body(self.active)


class Recorder(StepRunner):
    """A StepRunner that goes the way of a GPU."""

    def __init__(self, fleet, bank, graph):
        super().__init__(fleet, bank, graph=False)
        self.graph, self.done = True, Counter()

    def _eager_step(self, active):
        self.done["eager", active] += 1
        self._body(active)
        self.warm[active] += 1

    def _capture(self, active):
        self.done["captured", active] += 1
        self.graphs[active] = Replay(self, active)


def addresses(runner):
    fleet, bank = runner.fleet, runner.bank
    tensors = [fleet.flat, fleet.grad, fleet.first, fleet.second, fleet.steps, fleet.seeds, fleet.loss_sum]
    tensors += [fleet.scaling.mean, fleet.scaling.inverse, bank.rows, bank.inverse_sigma, runner.counter]
    tensors += [runner.origins, runner.weight, runner.rates, *fleet.compute_weights.weights.values()]
    return [tensor.data_ptr() for tensor in tensors]


@pytest.mark.parametrize("architecture", ["gru", "linear"])
def test_replays_find_everything_in_place_and_stopped_rows_change_nothing(architecture, monkeypatch):
    series = [series_for(architecture, rows, seed=rows) for rows in (440, 470, 500, 540, 560)]
    options = {
        "preset": "smoke", "seeds": [1, 2, 3, 4, 5], "device": "cpu", "dtype": "float64", "workers": 1, "lr": 0.03,
        "steps_per_epoch": 0, "batch_size": 40, "epochs": 12, "patience": 2, "dropout": 0.2, "n_layers": 2,
    }  # fmt: skip
    plain = train_fleet(series, architecture, **options)
    made, start = [], Loop.__init__

    def like_a_gpu(loop, fleet, bank, *rest):
        start(loop, fleet, bank, *rest)
        loop.runner, loop.bucket = Recorder(fleet, bank, True), 2
        loop.compact()
        made.append(loop.runner)

    monkeypatch.setattr(Loop, "__init__", like_a_gpu)
    found = train_fleet(series, architecture, **options)
    for ours, theirs in zip(found, plain, strict=True):
        assert [e["epoch"] for e in ours.history] == [e["epoch"] for e in theirs.history]
        for a, b in zip(ours.history, theirs.history, strict=True):
            assert a["val_loss"] == pytest.approx(b["val_loss"], rel=1e-12)
        torch.testing.assert_close(ours.rows, theirs.rows, rtol=1e-9, atol=1e-11)
    assert len({len(member.history) for member in plain}) > 1
    done = made[0].done
    sizes = {active for _, active in done}
    assert len(sizes) > 1
    assert sum(n for (what, _), n in done.items() if what == "eager") <= WARM_UP + len(sizes)
    assert all(done["captured", active] <= 1 for active in sizes)
    assert sum(n for (what, _), n in done.items() if what == "replayed") > 20
