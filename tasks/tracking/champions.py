"""Champions: the versions with an alias, with their files on this machine, their scores, and what is wrong with them.

A champion whose files are not those registered with it is damaged: it is never used, until it is trained again.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic import ValidationError

from schemas.base import Record
from schemas.errors import CpbError, DamagedError
from schemas.fleets import FleetSpec
from schemas.home import home_folder
from schemas.identity import SeriesId
from tasks.storage.folders import new_folder
from tasks.storage.model_folder import MODEL_FILES, damage_of, first_damage
from tasks.storage.urls import local_path, public_url
from tasks.tracking.calls import find_run, find_runs, upsert
from tasks.tracking.experiment import Store
from tasks.tracking.registry import (
    ALIAS,
    METRICS_TAG,
    PREVIOUS,
    find_version,
    series_of,
    versions_with_alias,
)
from tasks.tracking.store_errors import store_errors
from tasks.tracking.tags import (
    FLEET_SPEC,
    MLFLOW_FILES,
    RECIPE,
    SELECTED,
    digests_of,
)
from tasks.training.plan import fleet_of_recipe

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion
COPIES = "champions"
"""Folder below the home for champions fetched from a tracking server."""


def succeed(store: Store, version: "ModelVersion") -> None:
    """Make a version the champion; the old champion becomes `previous`, unless a file is damaged: that is no way back.

    The alias `champion` moves in one step, after `previous`: a kill in between leaves the old champion in place.
    """
    name, number = version.name, str(version.version)
    aliases = {k: str(v) for k, v in store.client.get_registered_model(name).aliases.items()}
    before = aliases.get(ALIAS)
    if before != number:
        series = series_of(name)
        # The way back must be usable on the day when it is needed.
        old = registered(store, series, before) if before and series else None
        # Any damaged file, also one that no forecast reads: `previous` is never trained again.
        if old and not old.damage and not first_damage(old.folder, old.files):
            upsert(store.client.set_registered_model_alias, name, PREVIOUS, before)
        upsert(store.client.set_registered_model_alias, name, ALIAS, number)


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

    @classmethod
    def of(cls, uri: str, version: "Registered") -> "Champion":
        """Return a registered version of the store at `uri`, with its files looked at."""
        folder, damage = model_folder(uri, version)
        # Files may still be there, but nothing records them any more, and `mlflow gc` may take them.
        if version.is_lost:
            damage = f"{version.run_fault}; {damage}" if damage else version.run_fault
        return cls(
            series=version.series,
            version=version.number,
            run_id=version.run_id,
            folder=folder,
            metrics=version.metrics,
            tags=version.tags,
            damage=damage,
            run_fault=version.run_fault,
        )

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
            remedy = f"`{training_command(self)}` trains it again"
            raise DamagedError.of(self.folder, self.damage, remedy, name=f"champion {self.model_version}")


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
    return [Champion.of(store.uri, version) for version in read_registered(store, alias, series, market)]


class Registered(Record):
    """A version of a series' registered model, as the registry and its run describe it.

    `number`: of the version. `source`: where its files lie. `tags`: its own over those of its run. `run_fault` as in
    `Champion`; `is_lost`: its run was deleted for good.
    """

    series: SeriesId
    number: str
    run_id: str
    source: str
    tags: dict[str, str]
    metrics: dict[str, float]
    run_fault: str
    is_lost: bool

    @classmethod
    def of(cls, series: SeriesId, version: "ModelVersion", run: "Run | None") -> "Registered":
        """Return a version as registered; `run` is None if it was deleted for good, as by `mlflow gc`."""
        # The version's tags win over its run's: a person may have changed them since.
        own = {k: v for k, v in version.tags.items() if k != METRICS_TAG}
        return cls(
            series=series,
            number=str(version.version),
            run_id=version.run_id or "",
            source=version.source or "",
            tags={**(run.data.tags if run else {}), **own},
            metrics={**(run.data.metrics if run else {}), **_own_metrics(version)},
            run_fault=_deleted_run(version, run),
            is_lost=bool(version.run_id) and run is None,
        )

    @property
    def full_name(self) -> str:
        """Registered model and version, `cpb-BTCUSDT-1h/3`."""
        return f"{self.series.registered}/{self.number}"


def read_registered(
    store: Store,
    alias: str = ALIAS,
    series: Collection[SeriesId] | None = None,
    market: str | None = None,
) -> list[Registered]:
    """Return the versions with an alias as the store describes them; no file of theirs is read.

    Args:
        series, market: filters; default all.
    """
    wanted = None if series is None else set(series)
    versions = {
        s: version
        for s, version in versions_with_alias(store, alias).items()
        if (wanted is None or s in wanted) and (market is None or s.market == market)
    }
    # One search for all runs: MLflow takes 2 to 4 ms for each that is asked for alone.
    runs = find_runs(store, [version.run_id for version in versions.values() if version.run_id])
    return [Registered.of(s, version, runs.get(version.run_id or "")) for s, version in versions.items()]


def registered(store: Store, series: SeriesId, number: str) -> Champion | None:
    """Return a registered version of a series by number, champion or not; None if there is none."""
    version = find_version(store, series, number)
    if version is None:
        return None
    return Champion.of(store.uri, Registered.of(series, version, find_run(store, version.run_id)))


def _own_metrics(version: "ModelVersion") -> dict[str, float]:
    """Return the scores in a version's tag; none if it was damaged or written by a person."""
    try:
        return {
            str(name): float(value) for name, value in json.loads(version.tags.get(METRICS_TAG, "{}")).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _deleted_run(version: "ModelVersion", run: "Run | None") -> str:
    """Return that the run of a version was deleted, and how; "" if it exists, or the version has none."""
    if run is None:
        return f"its run {version.run_id} was deleted for good from MLflow" if version.run_id else ""
    is_deleted = run.info.lifecycle_stage == "deleted"
    return (
        f"its run {run.info.run_id} is marked as deleted, and `mlflow gc` deletes its files"
        if is_deleted
        else ""
    )


def lost_champions(champions: Iterable[Registered]) -> list[DamagedError]:
    """Return an error for each champion whose run was deleted for good, with its files in the store."""
    return [
        DamagedError.of(
            champion.series.name,
            champion.run_fault,
            "the packaged copy goes on forecasting, and "
            f"`{_training_command(champion.series, champion.tags)}` trains it again",
            name=f"champion {champion.full_name}",
        )
        for champion in champions
        if champion.is_lost
    ]


def training_command(champion: Champion) -> str:
    """Return the command that trains a champion's series again, with only its recipe."""
    return _training_command(champion.series, champion.tags)


def _training_command(series: SeriesId, tags: Mapping[str, str]) -> str:
    # The recorded fleet has every option; without it architecture and preset are the best that is known.
    if fleet := recorded_fleet(tags):
        return f"cpb train-all {series.options} {fleet.options}"
    chosen = {"--architectures": tags.get("architecture"), "--preset": tags.get("preset")}
    options = [f"{option} {shlex.quote(value)}" for option, value in chosen.items() if value]
    return " ".join(["cpb train-all", series.options, *options])


def recorded_fleet(tags: Mapping[str, str]) -> FleetSpec | None:
    """Return what makes, in this release, the recipe of the version with these tags; None if it was registered by
    another program or an older cpb."""
    try:
        fleet = FleetSpec.model_validate_json(tags.get(FLEET_SPEC, ""))
    except ValidationError:
        return None
    return fleet_of_recipe(fleet, tags.get(RECIPE, ""), tags.get("timeframe", ""))


def undelete_command(store: Store, champion: Champion) -> str:
    """Return the command that restores a run marked as deleted.

    With the path of Python: an installation as a tool puts no `mlflow` on the user's PATH.
    """
    mlflow = (
        f"MLFLOW_TRACKING_URI={shlex.quote(public_url(store.uri))} {shlex.quote(sys.executable)} -m mlflow"
    )
    return f"{mlflow} runs restore --run-id {champion.run_id}"


def model_folder(uri: str, version: Registered) -> tuple[Path, str]:
    """Return the folder of a registered model on this machine, and its damage ("" for none).

    From a tracking server it is fetched once per version, and again if the local copy is damaged.

    Args:
        uri: the store's.
    """
    digests = digests_of(version.tags)
    if local := local_path(version.source):
        return local, damage_of(local, digests)
    # One folder a version, so that a copy is never of another version than its name says.
    name = copy_name(version.series.registered, version.number, version.run_id)
    target = (home_folder() / COPIES / name).absolute()
    if target.is_dir() and not damage_of(target, digests):
        return target, ""
    import mlflow

    try:
        with store_errors(uri), TemporaryDirectory() as part, new_folder(target) as draft:
            fetched = mlflow.artifacts.download_artifacts(version.source, dst_path=part, tracking_uri=uri)
            for file in Path(fetched).iterdir():
                # Only what cpb logged: a server may hold any other file beside it.
                if file.name in MODEL_FILES:
                    shutil.copyfile(file, draft / file.name)
    except CpbError as error:  # the other models are still read
        return target, str(error)
    return target, damage_of(target, digests)


def copy_name(name: str, number: str, run_id: str | None) -> str:
    """Return the name of a fetched version's folder below `COPIES`."""
    # With the run's id: another server may have a different model of the same name and number.
    return f"{name}-{number}-{(run_id or '')[:12]}"
