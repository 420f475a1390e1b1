"""Members of one fleet with hyper-parameters of their own: each row equals its single run, in float64."""

import numpy as np
import pytest
import torch

from cpbmodels import ModelError, predict, train_fleet
from cpbmodels.arch.options import PER_MEMBER
from tests.tools.candles import LEARNT, TINY, assert_same_training, series_for, short

SMALL = TINY | {"workers": 1, "steps_per_epoch": 4, "batch_size": 10, "epochs": 4, "patience": 4, "lr": 0.01}
VALUES = {
    "lr": [0.03, 1e-4, 3e-4],
    "weight_decay": [1e-4, 3e-4, 0.1],
    "dropout": [0.3, 0.1, 0.05],
    "clip": [0.1, 0.3, 3e-4],
    "patience": [1, 4, 2],
    "epochs": [1, 2, 3],
    "warmup_steps": [3, 7, 5],
    "location_shrink": [0.1, 0.3, 1e-4],
    "candle_weight": [1e-4, 0.1, 0.3],
    "teacher_forcing": [0.1, 0.7, 0.3],
    "schedule": ["cosine", "constant", "step"],
    "step_size": [1, 2, 3],
    "step_gamma": [0.1, 0.7, 0.3],
}
"""Values without an exact binary form, wherever an option is no whole number or word."""
TOGETHER = {name: values for name, values in VALUES.items() if name != "patience"}


def check_rows(name, vectors, **common):
    """Train three members at once and each alone; return those of the fleet."""
    series = [series_for(name, rows, seed=rows) for rows in (330, 360, 340)]
    given = SMALL | short(name) | common
    fleet = train_fleet(series, name, seeds=[3, 4, 5], **given | vectors)
    for k, (member, candles) in enumerate(zip(fleet, series, strict=True)):
        single = given | {option: values[k] for option, values in vectors.items()}
        alone = train_fleet([candles], name, seeds=[3 + k], **single)[0]
        assert_same_training(member, alone, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(member.table, alone.table, rtol=1e-10, atol=1e-10)
        assert member.config == alone.config
    return fleet


@pytest.mark.parametrize("option", VALUES)
def test_a_member_keeps_its_own_value_however_the_members_are_cut_into_fleets(option):
    """Two fleets: of two members that differ, and of one, whose value is not that of the first member of all."""
    common = {"schedule": "step"} if option.startswith("step_") else {}
    common |= {"lr": 0.05} if option == "patience" else {}
    common |= {"epochs": 3, "steps_per_epoch": 3, "fleet_size": 2}
    assert VALUES.keys() == set(PER_MEMBER)
    fleet = check_rows("gru", {option: VALUES[option]}, **{k: v for k, v in common.items() if k != option})
    assert [member.report["fleet_members"] for member in fleet] == [2, 2, 1]


@pytest.mark.parametrize("name", LEARNT)
def test_all_options_at_once_and_adam(name):
    fleet = check_rows(name, TOGETHER, optimizer="adam")
    assert [len(member.history) for member in fleet] == TOGETHER["epochs"]
    assert {member.report["fleet_members"] for member in fleet} == {3}


@pytest.mark.parametrize(("head", "loss"), [("point", "nll"), ("quantile", "nll"), ("student-t", "crps")])
def test_other_heads(head, loss):
    check_rows(
        "gru", {"location_shrink": [0.0, 1.0, 0.5], "candle_weight": [0.0, 1.0, 0.1]}, head=head, loss=loss
    )


@pytest.mark.slow
def test_a_special_value_is_a_fleet_of_its_own():
    """Without dropout no mask is drawn, at 0 and 1 no coin is: the row would get other draws than alone."""
    for option, values, sizes in (
        ("dropout", [0.0, 0.3, 0.2], [1, 2, 2]),
        ("teacher_forcing", [0.0, 1.0, 0.5], [1, 1, 1]),
    ):
        fleet = check_rows("gru", {option: values})
        assert [member.report["fleet_members"] for member in fleet] == sizes
    check_rows("transformer", {"teacher_forcing": [0.0, 1.0, 0.5]})


def test_members_of_different_size_come_back_in_the_callers_order():
    fleet = check_rows("gru", {"hidden_dim": [8, 16, 8], "n_layers": [1, 1, 1], "lr": [0.01, 0.02, 0.03]})
    assert [member.config["hidden_dim"] for member in fleet] == [8, 16, 8]
    assert [member.config["seed"] for member in fleet] == [3, 4, 5]
    assert [member.report["fleet_members"] for member in fleet] == [2, 1, 2]


def test_members_with_other_columns_and_two_workers():
    series = [series_for("gru", rows, seed=rows) for rows in (330, 360, 340)]
    first, *_, last = series[0].names[:4]
    columns = [[first, last], [last], [first, last]]
    given = SMALL | short("gru") | {"workers": 2}
    together = train_fleet(series, "gru", seeds=[3, 4, 5], features=columns, **given)
    for k, member in enumerate(together):
        alone = train_fleet([series[k]], "gru", seeds=[3 + k], features=columns[k], **given)[0]
        torch.testing.assert_close(member.rows, alone.rows, rtol=1e-9, atol=1e-11)
    assert [len(member.config["features"]) for member in together] == [2, 1, 2]


def test_universal_members_take_one_value_each():
    series = [series_for("gru", rows, seed=rows) for rows in (330, 360)]
    rates = np.array([0.01, 0.02])
    given = SMALL | short("gru") | {"scope": "universal"}
    wide = train_fleet(series, "gru", seeds=[1, 2], **given | {"lr": rates})
    for k, member in enumerate(wide):
        alone = train_fleet(series, "gru", seeds=1 + k, **given | {"lr": float(rates[k])})
        assert type(member.config["lr"]) is float
        torch.testing.assert_close(member.rows, alone[0].rows, rtol=1e-9, atol=1e-11)


def test_micro_batches_keep_rows_apart():
    vectors = {"lr": [1e-3, 0.02, 0.005], "dropout": [0.05, 0.5, 0.3], "clip": [0.01, 0.1, 1.0]}
    check_rows("gru", vectors, accumulate=2)


def test_on_step_stops_a_fleet_within_an_epoch(monkeypatch):
    monkeypatch.setattr("cpbmodels.fleet.loop.REPORT_INTERVAL_S", 0.0)
    series = [series_for("gru", 330, seed=1)]
    given = SMALL | short("gru") | {"seeds": [3], "steps_per_epoch": 4}
    (unborn,) = train_fleet(series, "gru", on_step=lambda record: True, **given)
    assert (unborn.report["stopped"], unborn.report["epochs_run"], unborn.history) == ("on_request", 0, [])
    (stopped,) = train_fleet(series, "gru", on_step=lambda record: record.epoch == 3, **given)
    (two,) = train_fleet(series, "gru", on_epoch=lambda record: [0] if record.epoch == 2 else None, **given)
    assert (stopped.report["stopped"], stopped.report["epochs_run"]) == ("on_request", 2)
    torch.testing.assert_close(stopped.rows, two.rows, rtol=0, atol=0)


def test_on_epoch_stops_the_members_it_names():
    series = [series_for("gru", rows, seed=rows) for rows in (330, 360, 340)]
    seen = []

    def stop_the_second(record):
        seen.append([member["index"] for member in record.members])
        return [1] if record.epoch == 2 else None

    given = SMALL | short("gru") | {"seeds": [3, 4, 5]}
    stopped = train_fleet(series, "gru", on_epoch=stop_the_second, **given)
    assert [member.report["stopped"] for member in stopped] == ["max_epochs", "on_request", "max_epochs"]
    assert sorted(seen[1]) == [0, 1, 2]
    assert sorted(seen[2]) == [0, 2]
    whole = train_fleet(series, "gru", **given)
    for k in (0, 2):
        torch.testing.assert_close(stopped[k].rows, whole[k].rows, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"lr": [0.1]}, "lr needs one value per member: 2, not 1"),
        ({"lr": [0.1, 5.0]}, "lr must be a number"),
        ({"schedule": ["cosine", "sine"]}, "schedule 'sine' is unknown"),
        ({"epochs": np.array([1.5, 2.0])}, "epochs must be a whole number"),
    ],
)
def test_wrong_values_are_refused_as_they_are_for_one(wrong, sentence):
    series = [series_for("gru", rows, seed=rows) for rows in (330, 360)]
    with pytest.raises(ModelError, match=sentence):
        train_fleet(series, "gru", "smoke", seeds=[1, 2], **wrong)


def test_members_with_options_of_their_own_forecast_as_one_stack():
    series = [series_for("gru", rows, seed=rows) for rows in (330, 360, 340)]
    values = {
        "location_shrink": [0.0, 1.0, 0.5],
        "lr": [1e-3, 0.02, 0.005],
        "teacher_forcing": [0.2, 0.5, 0.9],
    }
    members = train_fleet(series, "gru", seeds=[3, 4, 5], **SMALL | short("gru") | values)
    assert len({member.stacking_key for member in members}) == 1
    origins = [np.arange(300, 320)] * 3
    for k, stacked in enumerate(predict(members, series, origins)):
        alone = predict([members[k]], [series[k]], [origins[k]])[0]
        np.testing.assert_allclose(stacked.quantiles, alone.quantiles, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(stacked.candle, alone.candle, rtol=1e-12, atol=1e-15)
