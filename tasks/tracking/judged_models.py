"""Single models as MLflow knows them: the judged models of a series, and losses per epoch."""

from datetime import UTC, datetime
from typing import Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from schemas.errors import MemberError
from schemas.identity import SeriesId
from tasks.tracking.calls import NEWEST_FIRST, find_run, find_runs, search
from tasks.tracking.experiment import Store
from tasks.tracking.leaderboard import AGE, span_tested
from tasks.tracking.metrics import RATIO
from tasks.tracking.registry import ALIAS, PREVIOUS, aliases_of, full_name, versions_of
from tasks.tracking.tags import (
    FLEET,
    KEEP,
    KIND,
    MEMBER,
    PARENT,
    age_of,
    is_judged,
    recipe_of_run,
    series_tags,
)

MAX_HISTORIES = 7  # models of a fleet whose losses are shown: the number of colours in a figure


class JudgedModel(BaseModel):
    """The newest judged model of one architecture and preset, with its figures on the test span.

    `preset`: with a digest of its changed options. `data`: digest of its candles. `test_span`: `from/to`, null if not
    recorded; figures of different spans must not be compared.
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


def judged_models(store: Store, series: SeriesId, members: pl.DataFrame) -> list[JudgedModel]:
    """Return the newest judged model of each architecture and recipe on a series, best CRPS ratio first.

    Args:
        members: of `read_members`. The models that serve, and those that people keep, are added.
    """
    aliases = aliases_of(store, series) or {}
    versions = {str(version.run_id): version for version in versions_of(store, series)}
    newest_runs = (
        members.filter(pl.all_horizontal(pl.col(name) == value for name, value in vars(series).items()))
        .drop_nulls(RATIO)
        .sort(AGE)
        .unique(["architecture", "preset"], keep="last", maintain_order=True)
    )
    tags = {KIND: MEMBER, **series_tags(series)}
    condition = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    # A champion may be older than the newest run of its recipe, which the board shows.
    serving = [run_id for run_id, version in versions.items() if str(version.version) in aliases.values()]
    runs = [*find_runs(store, {*newest_runs["member_run"], *serving}).values()]
    runs += search(store, f"{condition} and tags.`{KEEP}` IS NOT NULL")
    judged = [
        run
        for run in runs
        if is_judged(run)
        and run.info.lifecycle_stage != "deleted"
        and all(run.data.tags.get(name) == value for name, value in tags.items())
    ]
    # Params common to all members are stored on their fleet's run.
    fleets = find_runs(store, {run.data.tags[PARENT] for run in judged if PARENT in run.data.tags})
    alias_of = {aliases[name]: name for name in (PREVIOUS, ALIAS) if name in aliases}
    newest, shown = {}, ("test_", "epochs_run", "windows_per_s", "train_seconds")
    # Oldest first, so that the newest of a recipe stays.
    for run in sorted(judged, key=age_of):
        tags, version = run.data.tags, versions.get(run.info.run_id)
        fleet = fleets.get(tags.get(PARENT, ""))
        params = {**(fleet.data.params if fleet else {}), **run.data.params}
        architecture, recipe = tags.get("architecture", ""), recipe_of_run(params, tags)
        newest[architecture, recipe] = JudgedModel(
            architecture=architecture,
            preset=recipe or None,
            run_id=run.info.run_id,
            trained_at=datetime.fromtimestamp(run.info.start_time / 1000, UTC),
            as_of=tags.get("as_of"),
            data=tags.get("data_digest"),
            test_span=span_tested(params),
            serves=alias_of.get(str(version.version)) if version else None,
            model_version=full_name(version) if version else None,
            metrics={name: value for name, value in run.data.metrics.items() if name.startswith(shown)},
        )
    return sorted(newest.values(), key=lambda model: model.metrics[RATIO])


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
    runs = (
        [run]
        if kind == MEMBER
        else [*search(store, f"tags.`{PARENT}` = '{run.info.run_id}'", [NEWEST_FIRST])]
    )
    histories = {}
    for member in runs[:MAX_HISTORIES]:
        epochs: dict[int, dict[str, float]] = {}
        for name in ("train_loss", "val_loss"):
            for point in store.client.get_metric_history(member.info.run_id, name):
                epochs.setdefault(point.step, {"epoch": point.step})[name] = point.value
        histories[member.info.run_name or member.info.run_id] = [epochs[step] for step in sorted(epochs)]
    return histories
