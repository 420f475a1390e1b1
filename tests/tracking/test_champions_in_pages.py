"""The champions of a whole registry, read in pages, are those that one series after another gives."""

from schemas.identity import SeriesId
from tasks.tracking.calls import find_run
from tasks.tracking.champions import champions, registered
from tasks.tracking.metrics import OF_MEMBERS
from tasks.tracking.registry import ALIAS
from tasks.tracking.runs import log_members
from tests.tools.mlflow_nights import model_files
from tests.tools.registering import register_champion
from tests.tools.tracked_members import fleet_of, member

SYMBOLS = ("AAAUSDT", "BBBUSDT", "CCCUSDT")


def _registry(store, tmp_path):
    """Three champions; that of the second is the older of its two versions."""
    records = [
        member(model_files(tmp_path / f"{symbol}-{n}", f"{symbol} {n}"), key=f"{symbol}{n}", symbol=symbol)
        for symbol in SYMBOLS
        for n in (1, 2)
    ]
    ids = log_members(fleet_of().run_id, records)
    for symbol, run_id in zip(SYMBOLS, ids[::2], strict=True):
        register_champion(SeriesId("spot", symbol, "1h"), run_id, reason="first", metrics={"test_crps": 0.1})
    again = SeriesId("spot", SYMBOLS[1], "1h")
    register_champion(again, ids[3], reason="second", metrics={"test_crps": 0.2})
    register_champion(again, ids[2], reason="back", metrics={"test_crps": float("nan")})
    return ids


def test_pages_give_what_single_calls_give(store, tmp_path):
    _registry(store, tmp_path)
    listed = champions(store)
    assert [champion.series.symbol for champion in listed] == list(SYMBOLS)
    single = [
        registered(store, s, str(store.client.get_model_version_by_alias(s.registered, ALIAS).version))
        for s in (champion.series for champion in listed)
    ]
    # nan is not nan
    assert [repr(champion) for champion in listed] == [repr(champion) for champion in single]
    assert [champion.version for champion in listed] == ["1", "1", "1"]


def test_a_member_logs_the_contract_and_what_lists_read_and_leaves_the_rest_to_its_files(store):
    contract = {
        "test_crps",
        "test_crps_ratio",
        "test_mae_ratio",
        "test_directional_accuracy",
        "test_coverage_80",
        "windows_per_s",
        "epochs_run",
        "gpu_mem_allocated_peak_mb",
        "gpu_mem_reserved_peak_mb",
        "gpu_util_mean",
        "gpu_power_mean_w",
        "rss_peak_mb",
    }
    assert contract <= OF_MEMBERS.keys()
    measured = dict.fromkeys([*contract, "test_width_90", "fleet_members"], 1.0)
    (plain,) = log_members(fleet_of("a").run_id, [member(metrics=measured)])
    (classes,) = log_members(
        fleet_of("b").run_id, [member(metrics={"test_accuracy": 0.4, "test_recall_up": 0.2})]
    )
    assert set(find_run(store, plain).data.metrics) == {*contract, "train_loss", "val_loss", "lr"}
    assert {"test_accuracy", "test_recall_up"} <= set(find_run(store, classes).data.metrics)
