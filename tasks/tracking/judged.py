"""Judged models in MLflow: the newest model of each recipe, its ratios and losses."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.errors import MemberError
from schemas.identity import SeriesId
from tasks.tracking.connection import Store, find_run, find_runs, search, search_lazily
from tasks.tracking.tags import (
    FLEET,
    KEY,
    KIND,
    MARKET,
    MEMBER,
    PARENT,
    SYMBOL,
    TIMEFRAME,
    age_of,
    newest_of,
    recipe_of_run,
)
from tasks.tracking.versions import ALIAS, PREVIOUS, aliases_of, versions_of

if TYPE_CHECKING:
    from mlflow.entities import Run

MAX_RUNS_SEARCHED = 300
"""Newest runs of a series that are searched: a month of nights with ten architectures."""

MAX_HISTORIES = 7
"""Models of a fleet whose losses are shown: the number of colours in a figure."""

_NEWEST = "attributes.start_time DESC"
_NAMES = ("timeframe", "architecture", "preset")
_SHOWN = ("test_", "epochs_run", "windows_per_s", "train_seconds")


class JudgedModel(BaseModel):
    """The newest judged model of one architecture and preset, with its figures on the test span.

    `preset`: with a digest of its changed options. `data`: digest of its candles. `test_span`: the test span,
    `from/to`; null if the model's run does not record it. Figures of different spans must not be compared.
    """

    model_config = ConfigDict(frozen=True)

    architecture: str
    preset: str | None
    run_id: str
    trained_at: datetime
    as_of: str | None
    data: str | None
    test_span: str | None
    serves: Literal["champion", "previous"] | None = Field(
        None, description="its current alias in the registry"
    )
    model_version: str | None
    metrics: dict[str, float]


def judged_models(store: Store, series: SeriesId) -> list[JudgedModel]:
    """Return the newest judged model of each architecture and recipe on a series, best CRPS ratio first."""
    condition = (
        f"tags.`{KIND}` = '{MEMBER}' and tags.`{MARKET}` = '{series.market}' and tags.`{SYMBOL}` = '{series.symbol}' "
        f"and tags.`{TIMEFRAME}` = '{series.timeframe}' and attributes.status = 'FINISHED'"
    )
    runs = search_lazily(store, condition, [_NEWEST], page_size=100)
    judged = [r for r in islice(runs, MAX_RUNS_SEARCHED) if "test_crps_ratio" in r.data.metrics]
    fleets = find_runs(store, {run.data.tags[PARENT] for run in judged if PARENT in run.data.tags})
    registered = _registered(store, series)
    models = [
        _model(run, fleets.get(run.data.tags.get(PARENT, "")), *registered.get(run.info.run_id, (None, None)))
        for run in judged
    ]
    aged = zip(models, map(age_of, judged), strict=True)
    found = newest_of(((model.architecture, model.preset), age, model) for model, age in aged)
    return sorted(found.values(), key=lambda model: model.metrics["test_crps_ratio"])


def _registered(store: Store, series: SeriesId) -> dict[str, tuple[str | None, str]]:
    """Return by run the alias and name of its registered version."""
    aliases = aliases_of(store, series)
    if aliases is None:
        return {}
    alias_of = {aliases[name]: name for name in (PREVIOUS, ALIAS) if name in aliases}
    return {
        str(version.run_id): (alias_of.get(str(version.version)), f"{version.name}/{version.version}")
        for version in versions_of(store, series)
    }


def _model(run: "Run", fleet: "Run | None", alias: str | None, version: str | None) -> JudgedModel:
    # Params common to all members are stored on their fleet's run.
    tags, params = run.data.tags, {**(fleet.data.params if fleet else {}), **run.data.params}
    return JudgedModel(
        architecture=tags.get("architecture", ""),
        preset=recipe_of_run(params, tags) or None,
        run_id=run.info.run_id,
        trained_at=datetime.fromtimestamp(run.info.start_time / 1000, UTC),
        as_of=tags.get("as_of"),
        data=tags.get("data_digest"),
        test_span=_span(params),
        serves=alias,
        model_version=version,
        metrics={name: value for name, value in run.data.metrics.items() if name.startswith(_SHOWN)},
    )


def coin_ratios(store: Store, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each coin's ratio per model in some leaderboard rows: of the newest model of each recipe.

    Returns:
        `symbol timeframe architecture preset crps_ratio test_span key`, with `test_span` as in `JudgedModel`.
    """
    rows = list(rows)
    fleets = find_runs(store, {row["run_id"] for row in rows})
    members = {run_id: search(store, f"tags.`{PARENT}` = '{run_id}'") for run_id in fleets}
    models = (
        ((model["symbol"], *(row[name] for name in _NAMES)), (row["as_of"], row["started_at"]), model)
        for row in rows
        if row["run_id"] in fleets
        for model in _coins(fleets[row["run_id"]], members[row["run_id"]], row)
    )
    return list(newest_of(models).values())


def _coins(fleet: "Run", members: "Sequence[Run]", row: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = {name: row[name] or "" for name in _NAMES}
    return [
        {
            "symbol": member.data.tags.get(SYMBOL, ""),
            **names,
            "crps_ratio": member.data.metrics["test_crps_ratio"],
            "test_span": _span(fleet.data.params | member.data.params),
            "key": member.data.tags.get(KEY, ""),
        }
        for member in members
        if member.data.tags.get(TIMEFRAME) == row["timeframe"]
        and member.info.status == "FINISHED"
        and "test_crps_ratio" in member.data.metrics
    ]


def _span(params: Mapping[str, str]) -> str | None:
    """Return the test span `from/to` in a model's params; None if not recorded."""
    return "/".join(json.loads(params["bounds.test"])) if "bounds.test" in params else None


def loss_histories(store: Store, run_id: str) -> dict[str, list[dict[str, float]]]:
    """Return the losses per epoch of a member's run, or of the first members of a fleet's run, by run name.

    Raises:
        MemberError: there is no such run, or it is a flow's.
    """
    run = find_run(store, run_id)
    kind = run.data.tags.get(KIND) if run else None
    if run is None or kind not in (MEMBER, FLEET):
        raise MemberError(
            f"run {run_id} is neither a model's nor a fleet's; /api/models/SYMBOL/TIMEFRAME lists the models' runs",
            code="no-run",
        )
    runs = [run] if kind == MEMBER else search(store, f"tags.`{PARENT}` = '{run.info.run_id}'", [_NEWEST])
    return {
        member.info.run_name or member.info.run_id: _history(store, member) for member in runs[:MAX_HISTORIES]
    }


def _history(store: Store, run: "Run") -> list[dict[str, float]]:
    epochs: dict[int, dict[str, float]] = {}
    for name in ("train_loss", "val_loss"):
        for point in store.client.get_metric_history(run.info.run_id, name):
            epochs.setdefault(point.step, {"epoch": point.step})[name] = point.value
    return [epochs[step] for step in sorted(epochs)]
