"""What a person is told of a training beside its figures."""

from flows.sentences import fleet_warnings, member_warnings
from schemas.handover import ShardResult, TrainedMember
from schemas.identity import ModelId, SeriesId

FINE = {"stopped": "max_epochs", "halved_to": 0, "accumulate": 1, "split_to": 0, "device_warning": ""}


def member(symbol, **report):
    series = SeriesId("spot", symbol, "1h")
    return TrainedMember(
        model=ModelId("gru", "smoke", series, 1), name=series.name, history=(), report=FINE | report
    )


def test_a_training_that_went_as_asked_has_none():
    assert member_warnings(FINE) == []
    assert member_warnings(FINE | {"accumulate": 2}) == []  # as `--set accumulate=2` asks
    assert fleet_warnings([ShardResult(key="k", architecture="gru", members=(member("BTCUSDT"),))]) == []
    assert fleet_warnings([ShardResult(key="k", architecture="gru")]) == []


def test_what_went_otherwise_is_said():
    report = {"stopped": "nan", "reason": "epoch 3", "halved_to": 1, "split_to": 4}
    report |= {"device_warning": "busy only 3 %"}
    assert member_warnings(report) == [
        "stopped early: epoch 3",
        "memory ran out: the fleet was halved, to 1 model at once",
        "memory ran out: each batch was split into 4 parts",
        "busy only 3 %",
    ]


def test_a_fleet_says_each_thing_once_and_of_how_many():
    first = member("BTCUSDT", split_to=2, device_warning="busy only 3 %")
    second = member("ETHUSDT", device_warning="busy only 3 %")
    shards = [
        ShardResult(key=key, architecture="gru", members=(trained,))
        for key, trained in (("a", first), ("b", second))
    ]
    assert fleet_warnings(shards) == [
        "memory ran out: each batch was split into 2 parts (1 of 2 models)",
        "busy only 3 %",
    ]
