from dataclasses import replace

import pytest

from schemas.identity import ModelId, SeriesId
from tasks.tracking.epochs import Used, epochs_used
from tasks.tracking.runs import MemberRecord, log_members, start_fleet, start_parent

PRESETS = {"seed-gru": (100, 15), "seed-lstm": (200, 20)}


def member(symbol, epochs_run, **changed):
    record = MemberRecord(
        key=f"gru/{symbol}/1h",
        model=ModelId("gru", "seed-gru", SeriesId("spot", symbol, "1h"), 1),
        device="cpu",
        preset="seed-gru",
        data_digest="abc",
        as_of="2025-06-06",
        config={"epochs": 100, "patience": 15},
        metrics={"epochs_run": epochs_run, "test_crps_ratio": 1.0},
    )
    return replace(record, **changed)


def log(key, *records):
    flow = start_parent(key, {"seed": 1, "market": "spot"})
    log_members(start_fleet(flow.run_id, "gru", f"{key}/gru").run_id, records)


def test_the_mean_share_of_a_presets_models_without_those_that_say_nothing_of_it(store):
    assert epochs_used(store, PRESETS) == {}
    log("first", member("BTCUSDT", 20), member("ETHUSDT", 40))
    # other epochs, another patience, another preset, a failure: as many runs that do not count
    log("short", member("BTCUSDT", 5, config={"epochs": 5, "patience": 15}))
    log("patient", member("BTCUSDT", 100, config={"epochs": 100, "patience": 1000}))
    log("other", member("BTCUSDT", 9, preset="seed-gru-tuned"))
    log("failed", member("BTCUSDT", 1, reason="no candles"))
    assert epochs_used(store, PRESETS) == {"seed-gru": Used(pytest.approx(30.0), 2)}
    # of members that differ in what they share elsewhere
    log("mixed", member("BTCUSDT", 60), member("ETHUSDT", 5, config={"epochs": 5, "patience": 15}))
    assert epochs_used(store, PRESETS) == {"seed-gru": Used(pytest.approx(40.0), 3)}
