"""The registry: one registered model per series with the aliases `champion` and `previous`.

The registered model's name contains the market (`cpb-BTCUSDT-1h`, `cpb-um-BTCUSDT-1h`, `cpb-sim-BTCUSDT-1h`), so
models of different markets never replace each other.

A champion whose files are not those registered with it is damaged: it is never used, until it is trained again.
"""

import json
import logging
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import CpbError, DamagedError
from schemas.handover import SeriesRecord
from schemas.identity import SeriesId
from tasks.storage.model_folder import read_config
from tasks.tracking.artifacts import model_folder
from tasks.tracking.connection import Store, find_run, find_runs
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.model import link_version, make_mlflow_model
from tasks.tracking.records import tag_texts
from tasks.tracking.tags import FILES, MARKET, MLFLOW_FILES, SELECTED, digests_of, series_tags
from tasks.tracking.versions import (
    ALIAS,
    find_version,
    make_model,
    versions_with_alias,
)

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

log = logging.getLogger("cpb")

_METRICS = "metrics"
"""Tag with a version's scores as JSON: separate tags would take 5 kB of the database per version."""

MAX_GROWTH = 1.1
"""A model is continued while its series has grown by less than a tenth; then it is trained from scratch."""


@dataclass(frozen=True)
class Champion:
    """A registered model of one series: its version, its run and the folder `cpbmodels.load` reads.

    `damage` describes damaged files in that folder; a damaged champion must not be used (`check`).
    """

    series: SeriesId
    version: str
    run_id: str
    folder: Path
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    damage: str = ""

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

    def check(self) -> None:
        """Raise `DamagedError` if its files are damaged."""
        if self.damage:
            raise DamagedError(
                f"champion {self.model_version} is damaged: {self.damage}; `{training_command(self)}` trains it again",
                field=str(self.folder),
            )


def register(
    series: SeriesId,
    run_id: str,
    *,
    metrics: Mapping[str, Any] | None = None,
    tags: Mapping[str, Any] | None = None,
    store: Store | None = None,
) -> "ModelVersion":
    """Register a member run as a version of a series' model, without an alias, and return the version.

    The version is an MLflow model (`make_mlflow_model`). A run that already has a version keeps it, with updated tags.
    `metrics` are this series' own, stored with the version: a universal member serves many series.

    Raises:
        CpbError: the run is not finished, or was trained on another market than the series'.
    """
    store = store or open_store()
    run: Run = store.client.get_run(run_id)
    _check_run(run, series)
    digests = digests_of(run.data.tags)
    scores = {k: float(v) for k, v in (metrics or {}).items() if v is not None}
    known = tag_texts(
        {**(tags or {}), **series_tags(series), FILES: digests or None, _METRICS: scores or None}
    )
    make_model(store, series)
    found = store.client.search_model_versions(f"name = '{series.registered}' and run_id = '{run_id}'")
    mine = max(found, key=lambda version: int(version.version), default=None)
    if mine:
        _renew_tags(store, mine, known)
    else:
        source = run.info.artifact_uri.rstrip("/")
        mine = store.client.create_model_version(
            series.registered, source, run_id, tags=known, await_creation_for=0
        )
        link_version(store, mine)
    make_mlflow_model(store, run)
    return mine


def champions(
    series: Collection[SeriesId] | None = None, *, market: str | None = None, store: Store | None = None
) -> list[Champion]:
    """Return the current champions, by timeframe and symbol, with their model folder on this machine.

    Champions with damaged or missing files are included, with the reason in `damage`.

    Args:
        series: filter; default all.
        market: filter; default all.
    """
    return _aliased(ALIAS, series, market, store)


def registered(store: Store, series: SeriesId, number: str) -> Champion | None:
    """Return a registered version of a series by number, champion or not; None if there is none."""
    version = find_version(store, series, number)
    return _model(store, series, version, find_run(store, version.run_id)) if version else None


def _aliased(
    alias: str, series: Collection[SeriesId] | None, market: str | None, store: Store | None
) -> list[Champion]:
    store = store or open_store(create=False)
    wanted = None if series is None else set(series)
    versions = {
        s: version
        for s, version in versions_with_alias(store, alias).items()
        if (wanted is None or s in wanted) and (market is None or s.market == market)
    }
    runs = find_runs(store, [version.run_id for version in versions.values() if version.run_id])
    return [_model(store, s, version, runs.get(version.run_id or "")) for s, version in versions.items()]


def _model(store: Store, series: SeriesId, version: "ModelVersion", run: "Run | None") -> Champion:
    """Return a version as a `Champion`; `run` is None if it was deleted permanently."""
    tags = {
        **(run.data.tags if run else {}),
        **{k: v for k, v in version.tags.items() if k != _METRICS},
    }
    folder, damage = model_folder(store, version, digests_of(tags))
    return Champion(
        series=series,
        version=str(version.version),
        run_id=version.run_id or "",
        folder=folder,
        metrics={**(run.data.metrics if run else {}), **json.loads(version.tags.get(_METRICS, "{}"))},
        tags=tags,
        damage=damage,
    )


def _check_run(run: "Run", series: SeriesId) -> None:
    if run.info.status != "FINISHED":
        raise CpbError(
            f"run {run.info.run_id} is {run.info.status}, not FINISHED; "
            f"only a finished member can be {series.registered}",
            code="unfinished-run",
        )
    market = run.data.tags.get(MARKET)
    if market != series.market:
        raise CpbError(
            f"run {run.info.run_id} was trained on market {market}; it cannot be {series.registered}",
            code="market", field=MARKET,
        )  # fmt: skip


def _renew_tags(store: Store, version: "ModelVersion", tags: dict[str, str]) -> None:
    for key, value in tags.items():
        if version.tags.get(key) != value:
            store.client.set_model_version_tag(version.name, str(version.version), key, value)


def training_command(champion: Champion) -> str:
    """Return the command that trains a champion's series again, with only its architecture and preset."""
    chosen = {"--architectures": champion.architecture, "--preset": champion.preset}
    options = [f"{option} {shlex.quote(value)}" for option, value in chosen.items() if value]
    return " ".join(["cpb train-all", champion.series.options, *options])


def continued_from(architecture: str, records: Sequence[SeriesRecord]) -> dict[SeriesId, str]:
    """Return the model folder that each series continues from, for `warm_start`; damaged champions are left out.

    A champion trained on exactly this data was made by this same run before a kill: then the folder that it was
    itself continued from is returned, so that the repeated run finds its finished fleets.
    """
    known = {r.series: r for r in records}
    found = {}
    for champion in champions(list(known), store=open_store()):
        if (
            champion.architecture == architecture
            and not champion.damage
            and (folder := _origin(champion, known[champion.series]))
        ):
            found[champion.series] = folder
    if not found:
        log.warning(
            "warm start: no champion of %s fits (none yet, damaged, or its series has grown by a tenth); "
            "training starts from scratch",
            architecture,
        )
    return found


def _origin(champion: Champion, record: SeriesRecord) -> str | None:
    config = read_config(champion.folder)
    if config.data_digest == record.digest:
        before = config.warm_start
        return before if before and Path(before).exists() else None
    return str(champion.folder) if record.rows < config.rows * MAX_GROWTH else None
