import numpy as np
import pytest
import torch
from scipy import stats

from cpbmodels import load, predict, train_fleet
from cpbmodels.arch.heads import HEADS
from cpbmodels.arch.options import Preset
from cpbmodels.arch.presets import preset
from cpbmodels.data.student_t import QUANTILES, t_quantiles
from tests.tools.candles import series_for

CPU, F64 = torch.device("cpu"), torch.float64


def make(name, **options):
    return HEADS[name](Preset(head=name, **options), CPU, F64)


@pytest.mark.parametrize("df", [0.7, 1, 2.05, 3.3, 5, 30, 200])
def test_t_quantiles_equal_scipys(df):
    levels = np.concatenate([QUANTILES, [1e-6, 0.001, 0.999]])
    np.testing.assert_allclose(
        t_quantiles(np.array(df), levels), stats.t.ppf(levels, df), rtol=1e-11, atol=1e-14
    )


def test_student_t_loss_is_the_negative_log_likelihood():
    head = make("student-t", candle_weight=0.0, horizon=3)
    raw, y = torch.randn(2, 5, 3, 5, dtype=F64), torch.randn(2, 5, 3, 4, dtype=F64)
    w = {"head.df": torch.randn(2, 1, 3, dtype=F64)}
    df = 2.05 + torch.nn.functional.softplus(w["head.df"])
    scale = 0.75 * raw[..., 1].exp()
    expected = -torch.distributions.StudentT(df, raw[..., 0] * 0.25, scale).log_prob(y[..., 3]).mean(-1)
    torch.testing.assert_close(head.loss(raw, y, w), expected)


def test_student_t_quantiles_are_scipys():
    head = make("student-t", horizon=2, location_shrink=0.5)
    raw = torch.randn(1, 4, 2, 5, dtype=F64)
    w = {"head.df": torch.tensor([[[0.3, 2.0]]], dtype=F64)}
    table = torch.as_tensor(head.table(w, None))
    df = 2.05 + np.log1p(np.exp([0.3, 2.0]))
    q = head.quantiles(raw, table)[0].numpy()
    for step in range(2):
        scale = 0.75 * np.exp(raw[0, :, step, 1].numpy())[:, None]
        location = 0.5 * raw[0, :, step, 0].numpy()[:, None]
        np.testing.assert_allclose(
            q[:, step], stats.t.ppf(QUANTILES, df[step], location, scale), rtol=1e-10, atol=1e-12
        )


def test_quantile_head_learns_by_pinball_loss():
    head = make("quantile", candle_weight=0.0, horizon=1)
    raw, y = torch.randn(1, 6, 1, 22, dtype=F64), torch.randn(1, 6, 1, 4, dtype=F64)
    q = head.quantiles(raw, raw)[0, :, 0].numpy()
    error = y[0, :, 0, 3:].numpy() - q
    expected = np.maximum(QUANTILES * error, (QUANTILES - 1) * error).mean(-1)
    np.testing.assert_allclose(head.loss(raw, y, {})[0].numpy(), expected)


def test_crps_trains_with_fixed_degrees_of_freedom(tmp_path):
    series = series_for("gru", 500)
    options = {"preset": "smoke", "loss": "crps", "device": "cpu", "epochs": 2}
    member = train_fleet([series], "gru", **options)[0]
    assert member.history[1]["train_loss"] < member.history[0]["train_loss"]
    np.testing.assert_allclose(
        member.table[0].numpy(), np.tile(t_quantiles(np.array(5.0)), (10, 1)), rtol=1e-6
    )
    forecast = load(member.save(tmp_path / "m")).forecast(series)
    assert (np.diff(forecast.close.array) > 0).all()


def test_classes_use_cross_entropy():
    head = HEADS["classes"](preset("smoke", "classifier-gru"), CPU, F64)
    y = torch.zeros(1, 3, 10, 4, dtype=F64)
    y[0, :, 0, 3] = torch.tensor([1.0, 0.1, -1.0])
    assert head.truth(y).tolist() == [[0, 1, 2]]
    raw = torch.randn(1, 3, 1, 3, dtype=F64)
    expected = torch.nn.functional.cross_entropy(raw[0, :, 0], torch.tensor([0, 1, 2]), reduction="none")
    torch.testing.assert_close(head.loss(raw, y, {})[0], expected)
    torch.testing.assert_close(head.probabilities(raw).sum(-1), torch.ones(1, 3, dtype=F64))


def test_the_hour_shifts_the_scale_alone_and_starts_at_nothing():
    series = series_for("har", 900)
    member = train_fleet([series], "har", preset="smoke", seeds=[1], device="cpu", epochs=1, lr=1e-8)[0]
    assert member.config["calendar_dim"] == 0
    rows = series.origins("validation", 1, 10)[:1]
    before = predict([member], [series], [rows])[0].quantiles
    net = member.net(torch.device("cpu"))
    table = net.layout.views(member.rows)["calendar"]
    code = int(series.columns(("hour_of_week_ny",))[rows[0], 0])
    with torch.no_grad():
        table[0, code] += 0.5
    after = predict([member], [series], [rows])[0].quantiles
    width = (after[..., 18] - after[..., 0]) / (before[..., 18] - before[..., 0])
    np.testing.assert_allclose(width, np.exp(0.5), rtol=1e-4)
