"""The accuracy of classifiers, which have no CRPS: in figures and in words."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from schemas.handover import FleetJudgement

ACCURACY = ("test_accuracy", "test_macro_f1", "test_majority_accuracy")
"""Metrics of a classifier on its test span; the last is the accuracy of always naming the most frequent class."""


def accuracy(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return a classifier's accuracy, macro-F1 and share of the majority class from its metrics; empty of others."""
    return {name: metrics[name] for name in ACCURACY} if ACCURACY[0] in metrics else {}


def fleet_accuracy(judged: FleetJudgement) -> dict[str, float]:
    """Return the means of `accuracy` over a fleet's models; empty of models that are no classifiers."""
    found = [values for judgement in judged.judgements if (values := accuracy(judgement.metrics))]
    return {name: fmean(values[name] for values in found) for name in ACCURACY} if found else {}


def has_board(fleets: Iterable[Mapping[str, Any]]) -> bool:
    """Whether fleets (`flows.run.Run.fleets`) have rows on the leaderboard: classifiers have no CRPS, hence none."""
    return any("seconds" in fleet and not accuracy(fleet) for fleet in fleets)


def accuracy_text(metrics: Mapping[str, float]) -> str:
    """Return a classifier's accuracy in words."""
    right, f1, majority = (metrics[name] for name in ACCURACY)
    return f"accuracy {right:.4f}, macro-F1 {f1:.4f}; always the most frequent class: accuracy {majority:.4f}"
