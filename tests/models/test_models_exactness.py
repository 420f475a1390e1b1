"""A fleet of K is K models: in float64, with clipping, decay, dropout, unequal windows and early stops."""

import gc
import weakref

import numpy as np
import pytest
import torch

from cpbmodels import architectures, load, predict, train_fleet
from cpbmodels.arch.decoder import DeferredAttention, DeferredLinear
from cpbmodels.arch.layers import Draws, attend, softmax
from cpbmodels.arch.recurrent import gru, lstm
from cpbmodels.fleet.fleet import Fleet
from tests.tools.candles import LEARNT, TINY, assert_same_training, series_for, short, walk
from tests.tools.gpu_on_cpu import gpu_path

HARD = TINY | {
    "clip": 0.05,
    "weight_decay": 0.01,
    "steps_per_epoch": 0,
    "batch_size": 20,
    "epochs": 5,
    "patience": 2,
    "lr": 0.02,
}


@pytest.fixture
def clipped(monkeypatch):
    """For every step, which members' gradients were longer than allowed."""
    seen, clip = [], Fleet._clip

    def noted(fleet, count):
        seen.extend((fleet.grad[:count].norm(dim=1) > fleet.net.options.clip).tolist())
        clip(fleet, count)

    monkeypatch.setattr(Fleet, "_clip", noted)
    return seen


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=pytest.mark.slow) if name == "lstm-manual" else name for name in LEARNT],
)
def test_a_fleet_equals_single_runs(architecture, clipped):
    """Five members, unequal windows; each is compared with itself alone, epoch by epoch."""
    series = [series_for(architecture, rows, seed=rows) for rows in (420, 460, 500, 520, 560)]
    seeds = [3, 5, 9, 6, 7]
    fleet = train_fleet(series, architecture, seeds=seeds, workers=1, **HARD | short(architecture))
    assert sum(clipped) / len(clipped) > 0.05
    for member, candles, seed in zip(fleet, series, seeds, strict=True):
        assert_same_training(
            member, train_fleet([candles], architecture, seeds=[seed], **HARD | short(architecture))[0]
        )
    windows = {member.report["train_windows"] for member in fleet}
    assert len(windows) == 5
    assert max(-(-m.report["train_windows"] // 20) * len(m.history) for m in fleet) >= 50
    assert len({member.report["epochs_run"] for member in fleet}) > 1


@pytest.mark.parametrize("architecture", ["har", "classifier-gru"])
def test_universal_members_beside_others_equal_themselves_alone(architecture, clipped):
    series = [series_for(architecture, rows, seed=rows) for rows in (430, 470, 500)]
    mixed = train_fleet(
        series, architecture, seeds=[5, 6, 5], scope="both", workers=1, **HARD | short(architecture)
    )
    assert any(clipped)
    assert [member.config["symbol"] for member in mixed] == ["AAAUSDT"] * 3 + ["ALL"] * 2
    wide = train_fleet(series, architecture, seeds=[6], scope="universal", **HARD | short(architecture))[0]
    assert_same_training(mixed[4], wide)
    assert_same_training(
        mixed[1], train_fleet(series[1:2], architecture, seeds=6, **HARD | short(architecture))[0]
    )


@pytest.mark.parametrize("architecture", architectures())
def test_an_exported_row_forecasts_the_same_bits(architecture, tmp_path):
    series = [series_for(architecture, 400, seed=seed) for seed in (1, 2)]
    members = train_fleet(series, architecture, "smoke", seeds=[1, 2], epochs=1)
    members[1].save(tmp_path / "model", extra={"data_digest": "abc"})
    loaded = load(tmp_path / "model")
    assert loaded.config["data_digest"] == "abc"
    ours, theirs = members[1].forecast(series[1]), loaded.forecast(series[1])
    np.testing.assert_array_equal(ours.candle, theirs.candle)
    np.testing.assert_array_equal(ours.close.array, theirs.close.array)
    if architecture == "classifier-gru":
        np.testing.assert_array_equal(ours.probabilities, theirs.probabilities)


def test_forecasting_keeps_no_weights():
    """A process that stays, as a trainer, would otherwise hold those of every model that it has forecast with."""
    series = walk(500)
    member = train_fleet([series], "linear", "smoke", epochs=1)[0]
    member.forecast(series)
    weights = weakref.ref(member.rows)
    del member
    gc.collect()
    assert weights() is None


def test_a_live_forecast_is_the_prediction_from_the_newest_origin():
    series = walk(900)
    member = train_fleet([series], "gru", "smoke", epochs=1)[0]
    newest, live = predict([member], [series], [np.array([899])])[0], member.forecast(series)
    np.testing.assert_allclose(np.log(live.candle / series.prices[-1, 3]), newest.candle[0], atol=1e-9)
    assert live.issued_row == 899


def test_cached_decoding_equals_decoding_all_steps_again():
    """Feed the cached decoder's own medians to the parallel, masked decoder: the same outputs."""
    from cpbmodels.arch.base import Batch
    from cpbmodels.arch.presets import preset
    from cpbmodels.fleet.net import Net

    net = Net(
        "transformer",
        preset("smoke", "transformer", teacher_forcing=1.0, n_layers=2),
        torch.device("cpu"),
        torch.float64,
    )
    w = net.layout.views(torch.as_tensor(np.stack([net.layout.initial(s) for s in (1, 2)])))
    inputs, start = torch.randn(2, 3, 30, 6, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    stepwise = net.architecture.forward(Batch(inputs, start), w, None)
    reads = torch.cat([start.unsqueeze(2), net.head.feedback(stepwise[:, :, :-1])], 2)
    memory = net.architecture.memories(net.architecture.encode(Batch(inputs, start), w, None), w)
    torch.testing.assert_close(net.architecture.decode(reads, memory, w, None), stepwise)


@pytest.mark.parametrize("kind", ["gru", "lstm", "lstm-manual", "lstm-onednn"])
def test_recurrent_layers_equal_torchs(kind):
    members, batch, steps, inputs, hidden = 3, 4, 6, 5, 64 if kind == "lstm-onednn" else 8
    torch.manual_seed(0)
    cls = torch.nn.GRU if kind == "gru" else torch.nn.LSTM
    nets = [cls(inputs, hidden, 2, batch_first=True).double() for _ in range(members)]
    w = {}
    for layer in range(2):
        for ours, theirs in (
            ("w_ih", "weight_ih"),
            ("w_hh", "weight_hh"),
            ("b_ih", "bias_ih"),
            ("b_hh", "bias_hh"),
        ):
            stacked = torch.stack([getattr(net, f"{theirs}_l{layer}").detach() for net in nets])
            rows = stacked if ours.startswith("w") else stacked[:, None]
            w[f"{layer}.{ours}"] = rows.clone().requires_grad_()
    x = torch.randn(members, batch, steps, inputs, dtype=torch.float64, requires_grad=True)
    if kind == "gru":
        out, last = gru(x, w, ["0", "1"], 0.0, None)
        total = out.sin().sum() + sum(state.square().sum() for state in last)
    else:
        out, last = lstm(x, w, ["0", "1"], 0.0, None, manual=kind == "lstm-manual")
        total = out.sin().sum() + sum(h.square().sum() + c.exp().sum() for h, c in last)
    grads = torch.autograd.grad(total, [x, *w.values()])
    expected = x.new_zeros(())
    for k, net in enumerate(nets):
        theirs, state = net(x[k])
        torch.testing.assert_close(out[k], theirs)
        h, c = (state, None) if kind == "gru" else state
        expected = expected + theirs.sin().sum() + h.square().sum() + (c.exp().sum() if c is not None else 0)
    params = [p for net in nets for p in net.parameters()]
    theirs = torch.autograd.grad(expected, [x, *params])
    torch.testing.assert_close(grads[0], theirs[0])
    for k in range(members):
        for j, grad in enumerate(grads[1:]):
            torch.testing.assert_close(grad[k].reshape_as(theirs[1 + 8 * k + j]), theirs[1 + 8 * k + j])


@pytest.mark.parametrize("head", ["point", "student-t"])
@pytest.mark.parametrize("architecture", ["transformer", "gru", "lstm", "har"])
def test_a_training_the_way_of_a_gpu_equals_the_cpus(architecture, head):
    """Every line that a GPU would run, in float64 on a CPU, against the CPU's own lines."""
    series = [series_for(architecture, rows, seed=rows) for rows in (420, 500)]
    given = HARD | short(architecture) | {"epochs": 2, "head": head, "seeds": [1, 2], "workers": 1}
    plain = train_fleet(series, architecture, **given)
    with gpu_path():
        fused = train_fleet(series, architecture, **given)
    for ours, theirs in zip(fused, plain, strict=True):
        assert_same_training(ours, theirs)


def test_an_lstms_kernels_equal_every_gate_by_hand():
    """Encoder and decoder, and their gradients."""
    given = HARD | short("lstm") | {"epochs": 2}
    ours, by_hand = (train_fleet([walk(420)], name, **given)[0] for name in ("lstm", "lstm-manual"))
    assert_same_training(ours, by_hand)


def test_deferred_maps_and_attention_have_autograds_gradients():
    torch.manual_seed(1)
    weight, bias = torch.randn(2, 3, 3, dtype=torch.float64), torch.randn(2, 1, 3, dtype=torch.float64)
    keys, values = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    x = torch.randn(2, 1, 3, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (weight, bias, keys, values, x)]

    def run(step, look):
        h = x
        for _ in range(3):
            h = torch.tanh(step(h)) + look(h)
        return h.square().sum()

    ours = run(DeferredLinear(weight, bias), DeferredAttention(keys, values))
    plain = run(lambda h: torch.baddbmm(bias, h, weight.transpose(1, 2)), lambda h: attend(h, keys, values))
    torch.testing.assert_close(ours, plain)
    for a, b in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(plain, leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_draws_belong_to_member_and_step_alone():
    seeds, steps = torch.tensor([3, 4, 5]), torch.tensor([0, 9, 2])
    together, alone = Draws(seeds, steps), Draws(seeds[1:2], steps[1:2])
    for _ in range(3):
        a, b = together.bits(1000), alone.bits(1000)
        assert torch.equal(a[1:2], b)
    assert not torch.equal(Draws(seeds, steps).bits(50)[1], Draws(seeds, steps + 1).bits(50)[1])


def test_draws_are_uniform_and_uncorrelated():
    draws = Draws(torch.arange(20), torch.zeros(20, dtype=torch.long))
    halves = torch.stack([draws.bits(2500).view(torch.int16) for _ in range(4)])  # as `below` reads them
    u = (halves.double() + 0.5) / 2**16 + 0.5
    counts = torch.histc(u.flatten(), 50, 0, 1)
    assert ((counts - 8000).square() / 8000).sum() < 100  # chi-square, 49 degrees of freedom: p < 1e-5
    flat = u.reshape(80, 5000)
    correlation = torch.corrcoef(flat) - torch.eye(80, dtype=torch.float64)
    assert correlation.abs().max() < 0.08
    assert abs(torch.corrcoef(torch.stack([flat[:, 1:].flatten(), flat[:, :-1].flatten()]))[0, 1]) < 0.01
    kept = Draws(torch.arange(20), torch.ones(20, dtype=torch.long)).below(0.7, torch.Size([20, 4999]))
    assert kept.shape == (20, 4999)
    assert abs(kept.double().mean() - 0.7) < 0.005


@pytest.mark.parametrize("width", [10, 30, 32])
def test_bf16_attention_shares_and_gradients_agree_with_float32(width):
    torch.manual_seed(0)
    mask = torch.full((width, width), -torch.inf).triu(1)
    scores = (torch.randn(8, width, width) * 3 + mask).bfloat16()
    grad = torch.randn(8, width, width).bfloat16()
    half, full = scores.clone().requires_grad_(), scores.float().requires_grad_()
    (got,) = torch.autograd.grad(softmax(half), half, grad)
    (want,) = torch.autograd.grad(torch.softmax(full, -1), full, grad.float())
    torch.testing.assert_close(softmax(half).float(), torch.softmax(full, -1), atol=4e-3, rtol=1e-2)
    torch.testing.assert_close(got.float(), want, atol=2e-2, rtol=5e-2)
