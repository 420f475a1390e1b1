"""Members and fleets as a training logs them in MLflow."""

from dataclasses import replace

from schemas.identity import ModelId, SeriesId
from tasks.tracking.runs import MemberRecord, finish, log_members, log_metrics, start_fleet, start_parent


def series(symbol="BTCUSDT", timeframe="1h", market="spot"):
    return SeriesId(market, symbol, timeframe)


def member(folder=None, symbol="BTCUSDT", timeframe="1h", market="spot", architecture="gru", **changes):
    series = SeriesId(market, symbol, timeframe)
    record = MemberRecord(
        key=f"gru/{symbol}/1h",
        model=ModelId(architecture, "smoke", series, 1),
        device="cpu",
        preset="smoke",
        data_digest="abc",
        as_of="2025-06-06",
        config={"hidden": 128, "optimizer": {"name": "adam", "lr": 1e-3}, "features": ["r_open", "r_close"]},
        history=[
            {"epoch": e, "train_loss": 1 / (e + 1), "val_loss": 2 / (e + 1), "lr": 1e-3} for e in range(3)
        ],
        metrics={
            "test_crps_ratio": 0.98,
            "gpu_util_mean": None,
            "windows_per_s": 100,
            "test_rmse": float("nan"),
        },
        folder=folder,
    )
    return replace(record, **changes)


def log_member(fleet_run, record):
    return log_members(fleet_run, [record])[0]


def fleet_of(key="flow", market="spot"):
    flow = start_parent(key, {"seed": 1, "market": market})
    return start_fleet(flow.run_id, "gru", f"{key}/gru")


def flow(key, ratios, finished=True, market="spot", name="train-all", config=None):
    """One flow with a fleet per architecture; `ratios` are its members' CRPS ratios on 1h."""
    parent = start_parent(key, config or {"market": market}, name=name)
    for architecture, values in ratios.items():
        fleet = start_fleet(parent.run_id, architecture, f"{key}/{architecture}")
        records = [
            member(
                key=f"{key}/{architecture}/{i}",
                symbol=f"C{i}USDT",
                architecture=architecture,
                metrics={"test_crps_ratio": v, "windows_per_s": 10.0 * (i + 1), "rss_peak_mb": 100.0 + i},
            )
            for i, v in enumerate(values)
        ]
        log_members(fleet.run_id, records)
        log_metrics(fleet.run_id, {"train_seconds": 3.0})
        finish(fleet.run_id)
    if finished:
        finish(parent.run_id)
    return parent.run_id
