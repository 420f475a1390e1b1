"""`results.json`: a row per model with its series, recipe, scores, times and memory, for people's own scripts.

In the home it has every model that `train-all` judged in a market, champion or not: of each model (architecture,
preset, series, seed) its last training. In the published folder it has the champions. Each row is made from the model's
`config.json`, so both files say the same of the same model, and writing a file again changes no byte of it.
"""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cpbmodels.data import INTERVAL_SECONDS
from cpbmodels.files import read_regular
from schemas.errors import DamagedError
from schemas.fleets import FleetSpec
from schemas.handover import FleetJudgement
from schemas.identity import SeriesId, tree_of
from tasks.storage.files import write_bytes
from tasks.storage.locks import locked
from tasks.storage.model_folder import read_config
from tasks.storage.recipes import options_read, recipe_of
from tasks.storage.records import value_digest
from tasks.tracking.champions import Champion, recorded_fleet
from tasks.tracking.experiment import Store
from tasks.tracking.metrics import CLASSIFIER
from tasks.tracking.registry import all_versions, full_name
from tasks.tracking.tags import series_tags

RESULTS = "results.json"

VERSION = 1
"""Counts changes of the fields; a file of another version is not read."""

FIELDS = {
    "market": "spot, um, cm, own for a user's tables, or sim for simulated candles",
    "symbol": "the coin, as in BTCUSDT",
    "timeframe": "candle length",
    "architecture": "name of the architecture",
    "preset": "preset of the model; after a +, a digest of the changed options",
    "overrides": "the options that were changed, and their values; null if not known",
    "copies": "number of copies with other seeds whose forecasts are averaged; null if not known",
    "recipe": "architecture, preset, and a digest of all options that differ from their defaults",
    "seed": "seed of the model; with it, two trainings of one recipe on one series are told apart",
    "version": "registered model and version when the file was written, as in cpb-BTCUSDT-1h/3; null without one",
    "run_id": "its run in MLflow",
    "verdict": "the comparison with the random walk on the test span, in words",
    "crps_ratio": "CRPS / random walk's, on the test span; below 1 is better; null of a classifier",
    "crps_ratio_low": "lower end of its 95 % interval",
    "crps_ratio_high": "upper end of its 95 % interval",
    "scores": "every score, by the names of metrics.json and MLflow; null for one that is not a number",
    "trained_from": "open of the first candle that the weights were fitted to, UTC",
    "trained_until": "open of the last one, UTC",
    "tested_from": "start of the test span, UTC; rows can be compared where symbol, start and end are the same",
    "tested_until": "end of the test span, UTC",
    "trained_at": "when its training ended, UTC",
    "train_seconds": "training time of its fleet: of all models that were trained together",
    "fleet_members": "number of models that were trained together",
    "windows_per_s": "training throughput of its fleet, windows per second",
    "epochs_run": "epochs that it was trained for; of an average, like the next two, those of its first member",
    "best_epoch": "epoch whose weights it has; 0 if none improved the validation loss",
    "stopped": "why it ended: early_stop, max_epochs, closed_form, on_request or nan",
    "device": "device of the training",
    "gpu_mem_allocated_peak_mb": "peak GPU memory of its fleet's tensors; null without a GPU",
    "gpu_mem_reserved_peak_mb": "peak GPU memory that torch reserved for its fleet; null without a GPU",
    "rss_peak_mb": "peak host memory of the process that trained it",
    "options": "the options by which models are compared, as far as the architecture reads them: context, sizes, batch "
    "size, learning rate, columns, …; of an average, a list where its members' differ",
    "data_digest": "digest of the candles that its columns were computed from",
    "weights_sha256": "sha256 of its weights",
}
"""The fields of a row and their meaning."""

_OF_ALL = ("context", "horizon", "dtype", "features")
_READ = (
    "hidden_dim",
    "n_layers",
    "n_heads",
    "ff_dim",
    "dropout",
    "location_share",
    "head",
    "loss",
    "optimizer",
    "lr",
    "weight_decay",
    "schedule",
    "batch_size",
    "accumulate",
    "epochs",
    "patience",
    "mixed_precision",
)
"""The options in a row, in so far as an architecture reads them; all others are in the model's `config.json`."""

_OF_REPORT = (
    "train_seconds",
    "fleet_members",
    "windows_per_s",
    "epochs_run",
    "best_epoch",
    "stopped",
    "device",
    "rss_peak_mb",
)
_OF_GPU = ("gpu_mem_allocated_peak_mb", "gpu_mem_reserved_peak_mb")
_SCORES = ("test_", "validation_")
_KEY = ("market", "symbol", "timeframe", "architecture", "preset", "seed")
"""The fields that identify a model."""

Row = dict[str, Any]


def results_path(home: Path, market: str) -> Path:
    """Return the path of a market's results: `HOME/results.json`, `HOME/results-um.json`, `HOME/sim/results.json`."""
    tree = tree_of(home, "results", market)
    return tree.with_name(f"{tree.name}.json")


def write_results(
    home: Path, market: str, store: Store, fleets: Iterable[FleetJudgement]
) -> tuple[Path, int]:
    """Put the judged models of a run into a market's results, and return their path and the number of its rows.

    Rows of models that this run did not train stay: three runs with a preset each leave the rows of all three.

    Raises:
        DamagedError: the file that is there is not as cpb wrote it (code `foreign-file`), and stays as it is.
    """
    path = results_path(home, market)
    judged = [judgement for fleet in fleets for judgement in fleet.judgements]
    versions = {(version.run_id, version.name): full_name(version) for version in all_versions(store)}
    # Read, joined and written under a lock: two runs of one market may end at once.
    with locked(path.with_suffix(".lock")):
        try:
            rows = _read(path)
        except FileNotFoundError:
            rows = []
        except DamagedError as error:
            raise DamagedError(
                f"{path} is not replaced, since {error}: move it elsewhere, then run the same command again",
                code="foreign-file",
                field=str(path),
            ) from error
        rows += [
            _row(j.model.series, j.folder / "model", j.metrics, j.verdict, None, j.run_id, j.fleet)
            for j in judged
        ]
        # Every row anew: a run's model may have become a champion, or been pruned, since it was written.
        for row in rows:
            name = SeriesId(row["market"], row["symbol"], row["timeframe"]).registered
            row["version"] = versions.get((row["run_id"], name))  # None, too, once it was pruned
        rows = list({tuple(row[name] for name in _KEY): row for row in rows}.values())
        write_bytes(path, _content(market, rows))
    return path, len(rows)


def write_published_results(path: Path, market: str, models: Iterable[Champion]) -> None:
    """Write the results of the published champions."""
    rows = [
        _row(c.series, c.folder, c.metrics, c.verdict, c.model_version, c.run_id, recorded_fleet(c.tags))
        for c in models
    ]
    write_bytes(path, _content(market, rows))


def results_fault(path: Path) -> str:
    """Return why a file is not as cpb wrote it; "" if it is, or is missing."""
    try:
        _read(path)
    except FileNotFoundError:
        return ""
    except DamagedError as error:
        return str(error)
    return ""


def _read(path: Path) -> list[Row]:
    """Return the rows of a file.

    Raises:
        FileNotFoundError: it is missing.
        DamagedError: it cannot be read, or is not the file that cpb wrote.
    """
    try:
        data = read_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedError(f"it cannot be read ({error.strerror})") from error
    try:
        content = json.loads(data)
        del content["digest"]
        version, rows = content["version"], content["models"]
        is_whole = data == _sealed(content)  # byte for byte: two texts can be one number
    except (ValueError, RecursionError, TypeError, KeyError):  # another file of that name
        is_whole = False
    if not is_whole:
        raise DamagedError("it is not as cpb wrote it")
    if version != VERSION:
        raise DamagedError(f"its version is {version}, and this cpb reads version {VERSION}")
    return list(rows)


def _content(market: str, rows: Iterable[Row]) -> bytes:
    """Return the bytes of a file, in the same order whatever the order of `rows`."""
    # A fixed order: the file is compared and published byte for byte.
    ordered = sorted(rows, key=lambda row: (INTERVAL_SECONDS[row["timeframe"]], *(str(row[n]) for n in _KEY)))
    return _sealed({"version": VERSION, "market": market, "models": ordered})


def _sealed(values: Row) -> bytes:
    """Return values as JSON, with their digest."""
    text = json.dumps(values | {"digest": value_digest(values)}, indent=2, allow_nan=False)
    return f"{text}\n".encode()


def _row(
    series: SeriesId,
    folder: Path,
    metrics: Mapping[str, float],
    verdict: str,
    version: str | None,
    run_id: str,
    fleet: FleetSpec | None,
) -> Row:
    """Return the row of the model in a folder.

    Args:
        metrics: its scores; metrics of other kinds are left out.
        version: registered model and version, None if it is not registered.
        fleet: what made it; None of a version of another program or an older cpb.
    """
    config = read_config(folder)
    recipe, values = recipe_of(config), dict(config)
    report = values.get("report") or {}
    scores = {name: value for name, value in sorted(metrics.items()) if name.startswith(_SCORES)}
    if CLASSIFIER in scores:  # its loss is a ranked probability score, which is not comparable with CRPS
        scores = {name.replace("crps", "rps"): value for name, value in scores.items()}
    trained_from, trained_until = config.training_span or (None, None)
    tested_from, tested_until = config.bounds.get("test") or (None, None)
    row = {
        **series_tags(series),
        "architecture": recipe.architecture,
        "preset": values.get("recipe") or config.preset,
        "overrides": fleet and fleet.overrides,
        "copies": fleet and fleet.seeds,
        "recipe": str(recipe),
        "seed": values.get("seed"),
        "version": version,
        "run_id": run_id,
        "verdict": verdict,
        **{f"crps_ratio{end}": scores.get(f"test_crps_ratio{end}") for end in ("", "_low", "_high")},
        "scores": scores,
        **{name: report.get(name) for name in _OF_REPORT},
        "trained_from": _utc(trained_from),
        "trained_until": _utc(trained_until),
        "tested_from": _utc(tested_from),
        "tested_until": _utc(tested_until),
        "trained_at": _utc(report.get("trained_at")),
        # 0 without a GPU
        **{name: report.get(name) or None for name in _OF_GPU},
        "options": {name: values[name] for name in _OF_ALL if name in values} | options_read(values, _READ),
        "data_digest": config.data_digest,
        "weights_sha256": config.weights_sha256,
    }
    return {name: _plain(row[name]) for name in FIELDS}


def _utc(time: str | None) -> str | None:
    """Return an ISO time as `2025-06-01T00:00:00Z`."""
    return f"{datetime.fromisoformat(time).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if time else None


def _plain(value: Any) -> Any:
    """Return a value as plain JSON: null for a number that is not finite."""
    # JSON has no NaN, and readers in other languages refuse it.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
