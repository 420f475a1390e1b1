"""Models and runs as they stand in MLflow now: the newest judged model of each architecture, the newest flow runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

from schemas.identity import SeriesId
from tasks.tracking.connection import Store, search_lazily
from tasks.tracking.tags import FLOW, KIND, MARKET, MEMBER, OUTCOME, REASON, SYMBOL, TIMEFRAME, market_of
from tasks.tracking.versions import ALIAS, CHALLENGER, PREVIOUS, aliases_of

if TYPE_CHECKING:
    from mlflow.entities import Run

MAX_RUNS_LOOKED_AT = 300
"""Runs of one series that are searched for architectures, the newest first: a month of nights of ten architectures."""

_SHOWN = ("test_", "epochs_run", "windows_per_s", "train_seconds")


@dataclass(frozen=True)
class JudgedModel:
    """A model of one series and its figures. `data`: digest of its candles; `serves`: the alias that it has now."""

    architecture: str
    preset: str | None
    run_id: str
    trained_at: datetime
    as_of: str | None
    data: str | None
    serves: str | None
    model_version: str | None
    metrics: dict[str, float]


@dataclass(frozen=True)
class FlowRunInfo:
    """A run of the flow. `coins`, `timeframes`, `architectures`: as they were asked for."""

    run_id: str
    market: str
    name: str
    status: str
    outcome: str | None
    started_at: datetime
    ended_at: datetime | None
    preset: str | None
    coins: str | None
    timeframes: str | None
    architectures: str | None
    as_of: str | None
    reason: str | None


def judged_models(store: Store, series: SeriesId) -> list[JudgedModel]:
    """Return the newest judged model of each architecture on a series, the best CRPS ratio first."""
    condition = (
        f"tags.`{KIND}` = '{MEMBER}' and tags.`{MARKET}` = '{series.market}' and tags.`{SYMBOL}` = '{series.symbol}' "
        f"and tags.`{TIMEFRAME}` = '{series.timeframe}' and attributes.status = 'FINISHED'"
    )
    runs = search_lazily(store, condition, ["attributes.start_time DESC"], page_size=100)
    newest: dict[str, Run] = {}
    for run in islice(runs, MAX_RUNS_LOOKED_AT):
        if "test_crps_ratio" in run.data.metrics:
            newest.setdefault(run.data.tags.get("architecture", ""), run)
    registered = _registered(store, series)
    found = [_model(run, *registered.get(run.info.run_id, (None, None))) for run in newest.values()]
    return sorted(found, key=lambda one: one.metrics["test_crps_ratio"])


def newest_flow_runs(store: Store, limit: int) -> list[FlowRunInfo]:
    """Return the newest runs of the flow, those at work included, newest first."""
    runs = search_lazily(store, f"tags.`{KIND}` = '{FLOW}'", ["attributes.start_time DESC"], page_size=limit)
    return [_flow(run) for run in islice(runs, limit)]


def _registered(store: Store, series: SeriesId) -> dict[str, tuple[str | None, str]]:
    """Return alias and name of the version that each run of a series was registered as."""
    aliases = aliases_of(store, series)
    if aliases is None:
        return {}
    alias_of = {aliases[name]: name for name in (PREVIOUS, CHALLENGER, ALIAS) if name in aliases}
    return {
        str(version.run_id): (alias_of.get(str(version.version)), f"{version.name}/{version.version}")
        for version in store.client.search_model_versions(f"name = '{series.registered}'")
    }


def _model(run: "Run", alias: str | None, version: str | None) -> JudgedModel:
    tags = run.data.tags
    return JudgedModel(
        architecture=tags.get("architecture", ""),
        preset=tags.get("preset"),
        run_id=run.info.run_id,
        trained_at=_time(run.info.start_time),
        as_of=tags.get("as_of"),
        data=tags.get("data_digest"),
        serves=alias,
        model_version=version,
        metrics=_chosen(run.data.metrics.items()),
    )


def _flow(run: "Run") -> FlowRunInfo:
    tags, params = run.data.tags, run.data.params
    return FlowRunInfo(
        run_id=run.info.run_id,
        market=market_of(run),
        name=run.info.run_name or "",
        status=run.info.status,
        outcome=tags.get(OUTCOME),
        started_at=_time(run.info.start_time),
        ended_at=_time(run.info.end_time) if run.info.end_time else None,
        preset=params.get("preset"),
        coins=params.get("coins"),
        timeframes=params.get("timeframes"),
        architectures=params.get("architectures"),
        as_of=tags.get("as_of"),
        reason=tags.get(REASON),
    )


def _chosen(metrics: Iterable[tuple[str, float]]) -> dict[str, float]:
    return {name: value for name, value in metrics if name.startswith(_SHOWN)}


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
