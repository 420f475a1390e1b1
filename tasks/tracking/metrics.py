"""The metrics of runs in MLflow, by name, with their meaning; docs/mlflow.md has them as tables.

`{timeframe}` stands for a candle length (`1h`). The classifiers, which state chances of up, flat and down, have their
ranked probability score, `rps`, in place of the `crps` of each name: the two cannot be compared.
"""

from collections.abc import Mapping
from typing import Any

from schemas.chances import OUTCOMES, SCORED

RATIO = "test_crps_ratio"
"""Metric of a member's run: its CRPS against the random walk's."""
SKILL, CLASSIFIER_SKILL = "crps_skill_percent_{}", "rps_skill_percent_{}"
"""Metric of the runs of fleets and flows, by timeframe: the views of MLflow's interface are sorted by it."""

_BRIER_RATIO = {
    "": "Brier score of {} / random walk's: below 1 is better",
    "_low": "lower end of its 95 % interval",
    "_high": "upper end of its 95 % interval",
}
"""What is told of the score of a kind of chances, by the end of its name."""


def of_chances(ratio: str, p: str = "") -> dict[str, str]:
    """Return the scores of all kinds of chances with their meaning; {} in a name stands for the kind.

    Args:
        ratio: name of the ratio of Brier scores; of both ends of its interval the beginning.
        p: name of the test's p, "" to leave it out.
    """
    found: dict[str, str] = {}
    for name, chances in SCORED.items():
        found |= {f"{ratio.format(name)}{end}": text.format(chances) for end, text in _BRIER_RATIO.items()}
        if p:
            found[p.format(name)] = "two-sided p of that ratio being 1"
    return found | {ratio.format(OUTCOMES): _BRIER_RATIO[""].format("target first, stop first and neither")}


OF_FLOWS = {
    SKILL.format(
        "{timeframe}"
    ): "skill, on the test span, of the fleet that is best on the validation span; the tag "
    "`best_{timeframe}` names it",
    "members": "models that were trained and judged",
    "failed": "models, series and steps that failed",
    "device_busy_share": "share of the training's time in which the device worked, 0 to 1",
}

OF_FLEETS = {
    SKILL.format("{timeframe}"): "100 × (1 − pooled CRPS ratio): above 0 is better than the random walk",
    "pooled_crps_ratio_{timeframe}": "CRPS / random walk's, each coin with the same weight",
    "pooled_crps_ratio_{timeframe}_low": "lower end of its 95 % interval",
    "pooled_crps_ratio_{timeframe}_high": "upper end of its 95 % interval",
    "pooled_p_{timeframe}": "two-sided p of that ratio being 1",
    **of_chances("pooled_{}_brier_ratio_{{timeframe}}", "pooled_{}_p_{{timeframe}}"),
    "pooled_mae_ratio_{timeframe}": "absolute error of the median / random walk's",
    "pooled_directional_accuracy_{timeframe}": "share of correct directions",
    "pooled_coverage_80_{timeframe}": "share of closes inside the 80 % interval",
    "pooled_coverage_90_{timeframe}": "share of closes inside the 90 % interval",
    "pooled_tail_pinball_ratio_{timeframe}": "pinball loss of the 5 % and 95 % quantiles / random walk's",
    "train_seconds": "time of the training, all shards",
}

OF_EPOCHS = {
    "train_loss": "mean of the members' training losses",
    "val_loss": "mean of their validation losses",
    "lr": "learning rate",
    "members_training": "members that have not stopped yet",
    "epoch_seconds": "time of the epoch",
    "epoch_windows_per_s": "windows a second",
    "rss_mb": "memory of the trainer, MB",
    "rss_peak_mb": "its peak, MB",
    "cpu_util": "use of the cores that the trainer may use, %",
    "gpu_mem_allocated_mb": "GPU memory of tensors, MB",
    "gpu_mem_allocated_peak_mb": "its peak, MB",
    "gpu_mem_reserved_mb": "GPU memory that torch holds, MB",
    "gpu_mem_reserved_peak_mb": "its peak, MB",
    "gpu_util": "time in which a kernel ran, %",
    "gpu_power_w": "power of the GPU, W",
}
"""Of a fleet's run, with the epoch as step; those of a GPU only where a GPU trains. Each of `SYSTEM` is there twice."""

_MEGABYTES = 2**20 / 1e6
"""MLflow counts megabytes of 1e6 bytes; the trainer's, like nvidia-smi's, have 2^20."""

SYSTEM = {
    "cpu_util": ("system/cpu_utilization_percentage", 1.0),
    "rss_mb": ("system/system_memory_usage_megabytes", _MEGABYTES),
    "gpu_util": ("system/gpu_{gpu}_utilization_percentage", 1.0),
    "gpu_mem_reserved_mb": ("system/gpu_{gpu}_memory_usage_megabytes", _MEGABYTES),
    "gpu_power_w": ("system/gpu_{gpu}_power_usage_watts", 1.0),
}
"""Metric per epoch -> its name on MLflow's page "System metrics" and the factor to MLflow's unit."""

OF_MEMBERS = {
    RATIO: "CRPS / random walk's: below 1 is better",
    "test_crps_ratio_low": "lower end of its 95 % interval",
    "test_crps_ratio_high": "upper end of its 95 % interval",
    "test_p": "two-sided p of the ratio being 1 (Diebold-Mariano)",
    "test_p_holm": "that p, corrected for the number of models of the architecture (Holm)",
    "test_n": "origins of forecasts that were judged",
    "test_crps": "CRPS (mean over steps)",
    "test_mae_ratio": "absolute error of the median / random walk's",
    "test_directional_accuracy": "share of correct directions; 0.5 is chance",
    "test_coverage_80": "share of closes inside the 80 % interval",
    "test_coverage_90": "share of closes inside the 90 % interval",
    **of_chances("test_{}_brier_ratio", "test_{}_p"),
    "validation_crps_ratio": "CRPS / random walk's on the validation span: the gate ranks recipes by it",
    "epochs_run": "epochs until it stopped",
    "windows_per_s": "windows a second in training",
    "rss_peak_mb": "peak memory of its trainer, MB",
    "gpu_mem_allocated_peak_mb": "peak GPU memory of tensors, MB; 0 on a CPU, like the next three",
    "gpu_mem_reserved_peak_mb": "peak GPU memory that torch held, MB",
    "gpu_util_mean": "mean time in which a kernel ran, %; left out where the driver does not say it, like the next",
    "gpu_power_mean_w": "mean power of the GPU, W",
}
"""All that a member's run has, read by people, lists and gates.

A metric of a run costs SQLite 380 bytes of rows and indexes (six of them), and a night over the whole exchange has
thousands of members. All other metrics are beside the model, in `metrics.json` and `config.json`.
"""

OF_MEMBER_EPOCHS = {
    "train_loss": "training loss",
    "val_loss": "validation loss",
    "lr": "learning rate",
}
"""Of a member's run, with the epoch as step."""

OF_CLASSIFIERS = {
    "test_accuracy": "share of correct classes",
    "test_majority_accuracy": "that of always naming the most frequent class of the training span",
    "test_macro_f1": "F1, the classes with the same weight",
    "test_confusion_{actual}_{stated}": "forecasts of the class `stated` where `actual` happened",
    "test_p_holm_models": "number of models for which `test_p_holm` is corrected",
    "accuracy": "share of correct classes in the validation windows",
    "best_epoch": "epoch of the weights, 0 for those before the first",
    "best_val_loss": "validation loss of that epoch",
    "train_windows": "windows to train on",
    "validation_windows": "windows to validate on",
    "train_seconds": "time of the training of its fleet, or of its shard",
    "fleet_members": "members trained together",
    "halved_to": "members that were left together when memory ran out, 0 if it did not",
    "accumulate": "parts of a batch that go through the device one after the other",
    "split_to": "what that became when memory ran out for a single member, 0 if it did not",
}
"""What a classifier's run has besides. There are few classifiers, so all their metrics are logged."""

OF_TRIALS = {
    "crps_ratio": "mean CRPS / random walk's over the validation folds",
    "epochs_run": "epochs until it stopped",
    "val_loss": "best validation loss so far, mean over the folds; step: the epoch, where bad trials are stopped",
}
"""Of a trial's run, below the run of `cpb tune`."""

CLASSIFIER = "test_accuracy"
"""A metric that only classifiers have."""


def with_system(epoch: Mapping[str, float], gpu: int) -> dict[str, float]:
    """Return the metrics of an epoch, those of the device also under MLflow's names; `gpu`: the number of the GPU."""
    return {**epoch} | {
        name.format(gpu=gpu): factor * epoch[ours] for ours, (name, factor) in SYSTEM.items() if ours in epoch
    }


def logged(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a member that are logged in MLflow."""
    if CLASSIFIER in metrics:
        return dict(metrics)
    return {name: value for name, value in metrics.items() if name in OF_MEMBERS}
