"""The table of extremes of a trained member: how far prices went, in widths of its forecasts."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cpbmodels.data import extremes
from cpbmodels.data.prediction import Prediction
from cpbmodels.data.series import Series
from cpbmodels.fleet.member import Member
from cpbmodels.fleet.predict import predict_each

MAX_EXTREMES_ORIGINS = {True: 1_500, False: 4_000}
"""Windows that are forecast for the table of extremes of a model of one series (True), or of several. More of them
scored at most .0005 better on 20 coins at 1h."""


def with_extremes(member: Member, learned: Sequence[Series], device: str) -> Member:
    """The member with the table of extremes over training and validation windows of the series that it learned.

    Forecasts of the windows that its weights have learned are about as wide as others: tables of the validation span
    alone, 60 days of one kind of market, scored .002 worse and stated up to two points too little.
    """
    reached, widths, most = [], [], MAX_EXTREMES_ORIGINS[len(learned) == 1]
    random = np.random.default_rng(member.config["seed"])
    for series in learned:
        spans = [series.origins(split, member.context, member.horizon) for split in ("train", "validation")]
        # So many of each coin, so that a long history does not outweigh a short one.
        origins = _drawn(np.concatenate(spans), max(most // len(learned), 1), random)
        (forecast,) = predict_each([member], [series], [origins], device)
        if isinstance(forecast, Prediction) and forecast.quantiles.size:
            reached.append(extremes.reached(series, origins, member.horizon))
            widths.append(extremes.width(forecast.quantiles))
    if not reached:  # a classifier, or a training that diverged
        return member
    return replace(member, extremes=extremes.fit(np.concatenate(reached, 1), np.concatenate(widths)))


def _drawn(origins: np.ndarray, limit: int, random: np.random.Generator) -> np.ndarray:
    """At most `limit` of the origins, one drawn from each of as many equal parts.

    Coins move together, and copies of a model are averaged: if all took the same hours, 4,000 windows of 20 coins would
    say little more than 200.
    """
    if len(origins) <= limit:
        return origins
    edges = np.arange(limit + 1) * len(origins) // limit
    return origins[random.integers(edges[:-1], edges[1:])]
