"""The registry: one registered model per series with the aliases `champion` and `previous`, and the gate's decisions.

The registered model's name contains the market (`cpb-BTCUSDT-1h`, `cpb-um-BTCUSDT-1h`, `cpb-sim-BTCUSDT-1h`), so
models of different markets never replace each other.

A champion whose files are not those registered with it is damaged: it is never used, until it is trained again.

The registered model's tag `decision` is the newest decision on its series, whatever the outcome; the names of earlier
decisions' tags end with their time. A version's tag is the decision that made it champion, written before the alias
moves: so an alias at a version without such a decision was moved by a person in MLflow.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from schemas.decision import Decision
from schemas.errors import CpbError, DamagedError, UsageError
from schemas.fleets import FleetSpec
from schemas.home import home_folder
from schemas.identity import SeriesId
from tasks.storage.folders import new_folder
from tasks.storage.model_folder import FILES as MODEL_FILES
from tasks.storage.model_folder import damage_of, damaged
from tasks.storage.urls import local_path, public_url
from tasks.tracking.model import make_mlflow_model
from tasks.tracking.store import Store, existing, find_run, find_runs, pages, store_errors, upsert
from tasks.tracking.tags import (
    FILES,
    FLEET_SPEC,
    MLFLOW_FILES,
    SELECTED,
    digests_of,
    mlflow_text,
    series_tags,
    tag_texts,
)

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

ALIAS = "champion"
PREVIOUS = "previous"
"""Alias of the previous champion."""
_METRICS = "metrics"
"""Tag with a version's scores as JSON: separate tags would take 5 kB of the database per version."""
COPIES = "champions"
"""Folder below the home for champions fetched from a tracking server."""
DECISION = "decision"
"""Tag of a registered model and of a version: a `Decision` as JSON."""
_EARLIER = f"{DECISION}."
MAX_EARLIER = 14
"""Earlier decisions kept per series: the nights that pruning keeps in full. Listing champions reads them all."""


def registered_models(store: Store) -> "list[RegisteredModel]":
    """Return every registered model whose name starts with `cpb-`, with its aliases and tags."""
    return list(pages(store.client.search_registered_models, "name LIKE 'cpb-%'", max_results=1000))


def versions_with_alias(store: Store, alias: str) -> "dict[SeriesId, ModelVersion]":
    """Return the version that an alias points at for every series that has it, by timeframe, symbol and market.

    The registry is read in pages of a thousand models, each with its newest version; only an alias that points at an
    older version needs a separate call.
    """
    versions = {}
    for model in registered_models(store):
        series, number = series_of(model.name), model.aliases.get(alias)
        if series is None or number is None:
            continue
        newest = (v for v in model.latest_versions or () if str(v.version) == str(number))
        versions[series] = next(newest, None) or store.client.get_model_version_by_alias(model.name, alias)
    return dict(
        sorted(versions.items(), key=lambda item: (item[0].timeframe, item[0].symbol, item[0].market))
    )


def succeed(store: Store, version: "ModelVersion") -> None:
    """Make a version the champion; the old champion becomes `previous`, unless a file is damaged: that is no way back.

    The alias `champion` moves in one step, after `previous`: a kill in between leaves the old champion in place.
    """
    name, number = version.name, str(version.version)
    aliases = {k: str(v) for k, v in store.client.get_registered_model(name).aliases.items()}
    before = aliases.get(ALIAS)
    if before != number:
        series = series_of(name)
        old = registered(store, series, before) if before and series else None
        # Any damaged file, also one that no forecast reads: `previous` is never trained again.
        if old and not old.damage and not damaged(old.folder, old.files):
            upsert(store.client.set_registered_model_alias, name, PREVIOUS, before)
        upsert(store.client.set_registered_model_alias, name, ALIAS, number)


def aliases_of(store: Store, series: SeriesId) -> dict[str, str] | None:
    """Return alias -> version number of a series' registered model; None without such a model."""
    model = existing(store.client.get_registered_model, series.registered)
    return {alias: str(number) for alias, number in model.aliases.items()} if model else None


def find_version(store: Store, series: SeriesId, number: str) -> "ModelVersion | None":
    """Return a version of a series' registered model by its number, or None."""
    return existing(store.client.get_model_version, series.registered, number)


def versions_of(store: Store, series: SeriesId) -> "list[ModelVersion]":
    """Return all versions of a series' registered model, newest first; empty without such a model."""
    versions = store.client.search_model_versions(f"name = '{series.registered}'")
    return sorted(versions, key=lambda v: int(v.version), reverse=True)


def make_model(store: Store, series: SeriesId) -> None:
    """Create a series' registered model if it is missing."""
    from mlflow.exceptions import MlflowException

    try:
        store.client.create_registered_model(series.registered, series_tags(series))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def all_versions(store: Store) -> list["ModelVersion"]:
    """Return every version of every registered model, including models not made by cpb."""
    return list(pages(store.client.search_model_versions, max_results=1000))


def full_name(version: "ModelVersion") -> str:
    """Return a version as stored with forecasts: `cpb-BTCUSDT-1h/3`."""
    return f"{version.name}/{version.version}"


def series_of(name: str) -> SeriesId | None:
    """Return the series of a registered model; None for a name `cpb-…` not made by cpb."""
    try:
        return SeriesId.parse(name)
    except UsageError:
        return None


@dataclass(frozen=True)
class Champion:
    """A registered model of one series: its version, its run and the folder `cpbmodels.load` reads.

    `damage` describes damaged files in that folder; a damaged champion must not be used (`check`). `run_fault`: that
    its run was deleted in MLflow, else empty; if it was deleted for good, that is damage, too.
    """

    series: SeriesId
    version: str
    run_id: str
    folder: Path
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    damage: str = ""
    run_fault: str = ""

    @property
    def name(self) -> str:
        """The registered model's name."""
        return self.series.registered

    @property
    def model_version(self) -> str:
        """Registered model and version, `cpb-BTCUSDT-1h/3`, as stored with forecasts."""
        return f"{self.name}/{self.version}"

    @property
    def architecture(self) -> str:
        """The architecture's name, "" if not recorded."""
        return self.tags.get("architecture", "")

    @property
    def preset(self) -> str:
        """The preset that it was trained with."""
        return self.tags.get("preset", "")

    @property
    def verdict(self) -> str:
        """The comparison with the random walk, in one sentence."""
        return self.tags.get("verdict", "")

    @property
    def selected_on(self) -> str:
        """The span of test rows on which its recipe was selected, `2025-02-06/2025-06-05`; "" for none."""
        return self.tags.get(SELECTED, "")

    @property
    def digests(self) -> dict[str, str]:
        """The sha256 of each file of the model's folder, as recorded."""
        return digests_of(self.tags)

    @property
    def mlflow_files(self) -> dict[str, str]:
        """The sha256 of each file of the folder that makes it an MLflow model."""
        return digests_of(self.tags, MLFLOW_FILES)

    @property
    def files(self) -> dict[str, str]:
        """The sha256 of each file that its folder must have: a copy fetched from a server is no MLflow model."""
        is_copy = self.folder.is_relative_to((home_folder() / COPIES).absolute())
        return self.digests | ({} if is_copy else self.mlflow_files)

    def check(self) -> None:
        """Raise `DamagedError` if its files are damaged."""
        if self.damage:
            raise DamagedError(
                f"champion {self.model_version} is damaged: {self.damage}; `{training_command(self)}` trains it again",
                field=str(self.folder),
            )


def register(
    store: Store,
    series: SeriesId,
    run_id: str,
    *,
    metrics: Mapping[str, Any] | None = None,
    tags: Mapping[str, Any] | None = None,
) -> "ModelVersion":
    """Register a member run as a version of a series' model, without an alias, and return the version.

    The version is an MLflow model (`make_mlflow_model`). A run that already has a version keeps it, with updated tags.
    `metrics` are this series' own, stored with the version: a universal member serves many series.
    """
    run: Run = store.client.get_run(run_id)
    digests = digests_of(run.data.tags)
    scores = {k: float(v) for k, v in (metrics or {}).items() if v is not None}
    # What `training_command` names must outlive the run.
    kept = {name: run.data.tags.get(name) for name in ("architecture", "preset")}
    version_tags = tag_texts(
        {**kept, **(tags or {}), **series_tags(series), FILES: digests or None, _METRICS: scores or None}
    )
    make_model(store, series)
    versions = store.client.search_model_versions(f"name = '{series.registered}' and run_id = '{run_id}'")
    version = max(versions, key=lambda v: int(v.version), default=None)
    if version:
        for key, value in version_tags.items():
            if version.tags.get(key) != value:
                upsert(store.client.set_model_version_tag, version.name, str(version.version), key, value)
    else:
        source = run.info.artifact_uri.rstrip("/")
        version = store.client.create_model_version(
            series.registered, source, run_id, tags=version_tags, await_creation_for=0
        )
    make_mlflow_model(store, run)
    return version


def champions(
    store: Store,
    series: Collection[SeriesId] | None = None,
    *,
    market: str | None = None,
    alias: str = ALIAS,
) -> list[Champion]:
    """Return the current champions, by timeframe and symbol, with their model folder on this machine.

    Champions with damaged or missing files are included, with the reason in `damage`.

    Args:
        series: filter; default all.
        market: filter; default all.
        alias: the alias of the versions to return instead, as `PREVIOUS`.
    """
    wanted = None if series is None else set(series)
    versions = {
        s: version
        for s, version in versions_with_alias(store, alias).items()
        if (wanted is None or s in wanted) and (market is None or s.market == market)
    }
    runs = find_runs(store, [version.run_id for version in versions.values() if version.run_id])
    return [_model(store, s, version, runs.get(version.run_id or "")) for s, version in versions.items()]


def registered(store: Store, series: SeriesId, number: str) -> Champion | None:
    """Return a registered version of a series by number, champion or not; None if there is none."""
    version = find_version(store, series, number)
    return _model(store, series, version, find_run(store, version.run_id)) if version else None


def _model(store: Store, series: SeriesId, version: "ModelVersion", run: "Run | None") -> Champion:
    """Return a version as a `Champion`; `run` is None if it was deleted for good, as by `mlflow gc`."""
    tags = {
        **(run.data.tags if run else {}),
        **{k: v for k, v in version.tags.items() if k != _METRICS},
    }
    folder, damage = model_folder(store, version, digests_of(tags))
    run_fault = deleted_run(version, run)
    if version.run_id and run is None:
        damage = f"{run_fault}; {damage}" if damage else run_fault
    return Champion(
        series=series,
        version=str(version.version),
        run_id=version.run_id or "",
        folder=folder,
        metrics={**(run.data.metrics if run else {}), **_own_metrics(version)},
        tags=tags,
        damage=damage,
        run_fault=run_fault,
    )


def _own_metrics(version: "ModelVersion") -> dict[str, float]:
    """Return the scores in a version's tag; none if it was damaged or written by a person."""
    try:
        return {
            str(name): float(value) for name, value in json.loads(version.tags.get(_METRICS, "{}")).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def deleted_run(version: "ModelVersion", run: "Run | None") -> str:
    """Return that the run of a version was deleted, and how; "" if it exists, or the version has none."""
    if run is None:
        return f"its run {version.run_id} was deleted for good from MLflow" if version.run_id else ""
    is_deleted = run.info.lifecycle_stage == "deleted"
    return (
        f"its run {run.info.run_id} is marked as deleted, and `mlflow gc` deletes its files"
        if is_deleted
        else ""
    )


def lost_champions(store: Store, versions: "Mapping[SeriesId, ModelVersion]") -> list[DamagedError]:
    """Return an error for each version whose run was deleted for good, with its files in the store."""
    runs = find_runs(store, [version.run_id for version in versions.values() if version.run_id])
    return [
        DamagedError(
            f"champion {full_name(version)} is damaged: {deleted_run(version, None)}; the packaged copy goes on "
            f"forecasting, and `{_training_command(series, version.tags)}` trains it again",
            field=series.name,
        )
        for series, version in versions.items()
        if version.run_id and version.run_id not in runs
    ]


def training_command(champion: Champion) -> str:
    """Return the command that trains a champion's series again, with only its recipe."""
    return _training_command(champion.series, champion.tags)


def _training_command(series: SeriesId, tags: Mapping[str, str]) -> str:
    if fleet := recorded_fleet(tags):
        return f"cpb train-all {series.options} {fleet.options}"
    chosen = {"--architectures": tags.get("architecture"), "--preset": tags.get("preset")}
    options = [f"{option} {shlex.quote(value)}" for option, value in chosen.items() if value]
    return " ".join(["cpb train-all", series.options, *options])


def recorded_fleet(tags: Mapping[str, str]) -> FleetSpec | None:
    """Return what made the version with these tags; None if it was registered by another program or an older cpb."""
    try:
        return FleetSpec.model_validate_json(tags.get(FLEET_SPEC, ""))
    except ValidationError:
        return None


def undelete_command(store: Store, champion: Champion) -> str:
    """Return the command that restores a run marked as deleted.

    With the path of Python: an installation as a tool puts no `mlflow` on the user's PATH.
    """
    mlflow = (
        f"MLFLOW_TRACKING_URI={shlex.quote(public_url(store.uri))} {shlex.quote(sys.executable)} -m mlflow"
    )
    return f"{mlflow} runs restore --run-id {champion.run_id}"


def model_folder(store: Store, version: "ModelVersion", digests: "Mapping[str, str]") -> tuple[Path, str]:
    """Return the folder of a registered model on this machine, and its damage ("" for none).

    From a tracking server it is fetched once per version, and again if the local copy is damaged.
    """
    source = version.source or ""
    if local := local_path(source):
        return local, damage_of(local, digests)
    target = (home_folder() / COPIES / copy_name(version)).absolute()
    if target.is_dir() and not damage_of(target, digests):
        return target, ""
    import mlflow

    try:
        with store_errors(store.uri), TemporaryDirectory() as part, new_folder(target) as draft:
            fetched = mlflow.artifacts.download_artifacts(source, dst_path=part, tracking_uri=store.uri)
            for file in Path(fetched).iterdir():
                if file.name in MODEL_FILES:
                    shutil.copyfile(file, draft / file.name)
    except CpbError as error:  # the other models are still read
        return target, str(error)
    return target, damage_of(target, digests)


def copy_name(version: "ModelVersion") -> str:
    """Return the name of a fetched version's folder below `COPIES`."""
    # With the run's id: another server may have a different model of the same name and number.
    return f"{version.name}-{version.version}-{(version.run_id or '')[:12]}"


def decision_text(decision: Decision) -> str:
    """Return the tag value of a decision."""
    return mlflow_text(decision.model_dump_json(exclude_none=True))


def keep_decision(store: Store, decision: Decision) -> None:
    """Write a decision as the newest on its series; a kill in between loses no earlier decision."""
    name = decision.series.registered
    tags = store.client.get_registered_model(name).tags
    if before := decision_in(tags):
        at = f"{_EARLIER}{before.decided_at.astimezone(UTC):%Y%m%dT%H%M%S.%f}"
        upsert(store.client.set_registered_model_tag, name, at, tags[DECISION])
    upsert(store.client.set_registered_model_tag, name, DECISION, decision_text(decision))
    for old in sorted(tag for tag in tags if tag.startswith(_EARLIER))[: -MAX_EARLIER + 1]:
        store.client.delete_registered_model_tag(name, old)


def newest_decisions(store: Store) -> dict[SeriesId, Decision]:
    """Return the newest decision on each series; an alias moved in MLflow counts as a decision by hand."""
    newest = {}
    for model in registered_models(store):
        series = series_of(model.name)
        if series and (decision := _newest(store, series, model)):
            newest[series] = decision
    return newest


def decisions_on(store: Store, series: SeriesId, limit: int) -> list[Decision]:
    """Return the newest `limit` decisions on a series, newest first: those of the last nights and of every champion."""
    model = existing(store.client.get_registered_model, series.registered)
    if model is None:
        return []
    decisions = [_newest(store, series, model), decision_in(model.tags)]
    decisions += [decision_in(model.tags, tag) for tag in model.tags if tag.startswith(_EARLIER)]
    decisions += [decision_in(version.tags) for version in versions_of(store, series)]
    by_time = {(decision.decided_at, decision.rule): decision for decision in decisions if decision}
    return sorted(by_time.values(), key=lambda decision: decision.decided_at, reverse=True)[:limit]


def decision_in(tags: Mapping[str, str], name: str = DECISION) -> Decision | None:
    """Return the decision in the tags of a registered model or a version; None if missing or invalid."""
    try:
        return Decision.model_validate_json(tags[name])
    except (KeyError, ValidationError):  # missing, or written by a person
        return None


def _newest(store: Store, series: SeriesId, model: "RegisteredModel") -> Decision | None:
    recorded, number = decision_in(model.tags), model.aliases.get(ALIAS)
    serves = recorded and recorded.outcome != "retired" and recorded.version_number == str(number)
    version = None if number is None or serves else find_version(store, series, str(number))
    if version is None:
        return recorded
    promoted = decision_in(version.tags)
    if (
        promoted
        and promoted.outcome != "retired"
        and (recorded is None or promoted.decided_at > recorded.decided_at)
    ):
        return promoted  # a process was killed between the alias and the registered model's tag
    since = f" after {recorded.decided_at:%Y-%m-%d %H:%M} UTC" if recorded else ""
    made = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
    return Decision(
        series=series,
        outcome="forced",
        rule="by-hand",
        version_number=str(number),
        reason=f"it was made champion in MLflow{since}, where the alias was moved by hand",
        decided_at=max(made, recorded.decided_at)
        if recorded
        else made,  # earliest possible time: MLflow stores no time of an alias change
    )
