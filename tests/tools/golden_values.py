"""What a training run leaves, as named items: a sha256 over the bits, and a few numbers for other machines."""

import hashlib
import json
import math
import platform
import re
from pathlib import Path

import numpy as np
import polars as pl
import torch
from safetensors.numpy import load_file

FIGURES = (
    "crps_ratio",
    "crps_ratio_low",
    "crps_ratio_high",
    "p_value",
    "better_share",
    "mae_ratio",
    "directional_accuracy",
    "coverage_80",
    "coverage_90",
)
TOLERANCE = 1e-6


def machine():
    """The CPU and what computes on it: where they are the same, so is every bit."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    said = [re.search(rf"^{name}\s*: (.*)$", text, re.M) for name in ("model name", "cpu family", "model")]
    cpu = " / ".join(match[1] for match in said if match) or platform.processor()
    return {
        "cpu": f"{cpu}, {torch.backends.cpu.get_cpu_capability()}",
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def item(arrays, text=""):
    """An item of arrays by name; `text` is compared on every machine."""
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        array = np.ascontiguousarray(array)
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    numbers = [
        np.nan_to_num(a.ravel().astype(float)) for _, a in sorted(arrays.items()) if a.dtype.kind == "f"
    ]
    flat = np.concatenate([*numbers, []])
    few = [flat.mean(), np.abs(flat).mean(), flat[0], flat[-1]] if len(flat) > 4 else flat
    return {"sha256": digest.hexdigest(), "text": text, "numbers": [float(f"{x:.9g}") for x in few]}


def differences(golden, items, same_machine=True):
    """One line for each item that is not as it was."""
    lines = [f"{name}: is gone" for name in sorted(golden.keys() - items.keys())]
    lines += [f"{name}: is new" for name in sorted(items.keys() - golden.keys())]
    for name in sorted(golden.keys() & items.keys()):
        old, new = golden[name], items[name]
        pairs = list(zip(old["numbers"], new["numbers"], strict=False))
        near = len(old["numbers"]) == len(new["numbers"]) and all(
            math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for a, b in pairs
        )
        if old["text"] != new["text"]:
            lines.append(f"{name}: {old['text']!r} is now {new['text']!r}")
        elif not near or (same_machine and old["sha256"] != new["sha256"]):
            lines.append(f"{name}: {old['numbers']} is now {new['numbers']} ({new['sha256'][:12]})")
    return lines


def fleet_items(folders):
    """Weights and score arrays of every model of these fleets' folders."""
    items = {}
    for config in sorted(path for folder in folders for path in folder.glob("members/*/model/config.json")):
        about = json.loads(config.read_text())
        scope = "" if about["scope"] == "per-series" else f"-{about['scope']}"
        name = f"{about['architecture']}{scope}/{about['symbol']}-{about['timeframe']}"
        weights = load_file(config.with_name("model.safetensors"))
        (scores,) = config.parents[1].glob("score-*.npz")
        with np.load(scores) as kept:
            arrays = {key: kept[key] for key in kept.files if kept[key].dtype.kind in "fi"}
        metrics = json.loads(config.with_name("metrics.json").read_text())
        metrics = {k: np.float64(v) for k, v in metrics.items() if isinstance(v, float)}
        parts = {"weights": weights, "metrics": metrics}
        for part in ("losses", "steps"):
            parts[part] = {key: array for key, array in arrays.items() if key.startswith(f"{part}.")}
        # What is of chances (touched, reached first, closed above) is an item of its own.
        parts["chances"] = {
            key: of.pop(key)
            for of in parts.values()
            for key in [*of]
            if any(word in key for word in ("touch", "first_", "above_", "extremes"))
        }
        if parts["losses"]:
            parts["losses"]["times"] = arrays["times"]
        items |= {f"{part}/{name}": item(of) for part, of in parts.items() if of}
    return items


def forecast_items(folder):
    """The champions' forecast rows by series, in the order of their columns' names."""
    items = {}
    for path in sorted(folder.glob("interval=*/symbol=*/*.parquet")):
        rows = (
            pl.read_parquet(path)
            .filter(pl.col("role") == "champion")
            .sort("issued_at", "model_version", "step")
        )
        words = rows.select("symbol", "timeframe", "model_version").unique(maintain_order=True).rows()
        times = rows.select(pl.col("issued_at", "target_time").to_physical())
        # `standing`, which came later, is of the candles before a forecast and no figure of it.
        numbers = rows.drop("standing").select(pl.selectors.float() | pl.selectors.integer())
        arrays = {column.name: column.to_numpy() for column in (*times, *numbers)}
        symbol, timeframe = words[0][:2]
        items[f"forecasts/{symbol}-{timeframe}/{path.stem}"] = item(arrays, f"{len(rows)} rows {words}")
    return items


def decision_items(champions):
    """The gate's decisions from the answer of `cpb champions --json`, without sentences, runs' ids and times."""
    items = {}
    for champion in champions:
        decision = champion["decision"]
        # recipes end in a digest of options
        pair = [
            decision.get(side, {}).get("recipe", "-").rpartition("/")[0]
            for side in ("candidate", "incumbent")
        ]
        verdict = re.split(" (?:than|from) ", champion["verdict"])[0]
        text = (
            f"{decision['outcome']} by {decision['rule']}: version {champion['version']} {champion['architecture']}/"
            f"{champion['preset']}, {verdict}; candidate {pair[0]}, incumbent {pair[1]}"
        )
        compared = {k: v for k, v in decision.get("compared", {}).items() if isinstance(v, int | float)}
        figures = {name: champion[name] for name in FIGURES if name in champion} | compared
        arrays = {name: np.float64(value) for name, value in figures.items()}
        items[f"decisions/{champion['symbol']}-{champion['timeframe']}"] = item(arrays, text)
    return items


def board_items(rows):
    """The leaderboard's rows from the answer of `cpb leaderboard --json`, without speeds and the run's id."""
    return {
        f"leaderboard/{row['architecture']}/{row['timeframe']}": item(
            {name: np.float64(row[name]) for name in FIGURES},
            f"{row['coins']}: {row['verdict']}, {row['members']} members, {row['failed']} failed",
        )
        for row in rows
    }
