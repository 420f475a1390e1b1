"""What MLflow knows about trained models, for the leaderboard, the page and figures: boards of runs, models and losses.

A row of the leaderboard is the newest run of a recipe on the same coins; a model of a list is the newest of its recipe.
Ids of runs may be typed in full or as a unique prefix.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from schemas.errors import CpbError, MemberError
from schemas.identity import (
    INTERVAL_SECONDS,
    MARKETS,
    SIM,
    SPOT,
    Market,
    SeriesId,
    coins_label,
    market_option,
)
from tasks.judging.inference import relation
from tasks.tracking.connection import Store, find_run, find_runs, search, search_lazily
from tasks.tracking.mlflow_store import dead_runs, open_store
from tasks.tracking.tags import (
    FLEET,
    FLOW,
    KEY,
    KIND,
    MARKET,
    MEMBER,
    OUTCOME,
    PARENT,
    PRUNED,
    REASON,
    STUDY,
    SYMBOL,
    TIMEFRAME,
    age_of,
    as_of,
    market_of,
    newest_of,
    recipe_of_run,
)
from tasks.tracking.versions import ALIAS, PREVIOUS, aliases_of, versions_of

if TYPE_CHECKING:
    from mlflow.entities import Run

_ASKED = ("coins", "timeframes", "architectures", "preset", "overrides", "seeds", "dtype")
"""Params of a flow run that define the models to train."""

COLUMNS = {
    "market": "spot, um, cm, own for a user's tables, or sim for simulated candles",
    "timeframe": "candle length",
    "architecture": "name of the architecture",
    "preset": "preset of the models; after a +, a digest of the changed options",
    "coins": "judged coins: names, or their number if more than three; none if all failed",
    "members": "members that were judged",
    "failed": "members that failed",
    "crps_ratio": "CRPS / random walk's: each coin weighs the same; below 1 is better",
    "crps_ratio_low": "lower end of its 95 % interval",
    "crps_ratio_high": "upper end of its 95 % interval",
    "p_value": "two-sided p of the ratio being 1, pooled over coins",
    "verdict": "better, no different or worse than the random walk with EWMA volatility",
    "better_share": "share of coins with a ratio below 1",
    "mae_ratio": "absolute error of the median / random walk's",
    "directional_accuracy": "share of correct directions; 0.5 is chance",
    "coverage_80": "share of closes inside the 80 % interval",
    "coverage_90": "share of closes inside the 90 % interval",
    "windows_per_s": "training throughput, windows per second",
    "train_seconds": "training time of the fleet",
    "rss_peak_mb": "peak host memory",
    "gpu_mem_allocated_peak_mb": "peak GPU memory of tensors; empty without a GPU",
    "as_of": "no candle that closes after this was seen (UTC): as requested, else when the run began",
    "started_at": "when the run began (UTC)",
    "flow_run": "the flow's run, which `cpb leaderboard --run` takes",
    "run_id": "the fleet's run: its config and its members' data digests reproduce the row",
}
"""The columns of a row and their meaning."""

_MEANS = {
    "crps_ratio": "test_crps_ratio",
    "mae_ratio": "test_mae_ratio",
    "directional_accuracy": "test_directional_accuracy",
    "coverage_80": "test_coverage_80",
    "coverage_90": "test_coverage_90",
    "windows_per_s": "windows_per_s",
    "train_seconds": "train_seconds",
}
_PEAKS = ("rss_peak_mb", "gpu_mem_allocated_peak_mb")


SHORT = 8
"""Characters of an id that are displayed; git displays 7 of 40, MLflow's ids have 32."""
_MIN_TYPED = 4

MAX_RUNS_SEARCHED = 300
"""Newest runs of a series that are searched: a month of nights with ten architectures."""

MAX_HISTORIES = 7
"""Models of a fleet whose losses are shown: the number of colours in a figure."""

_NEWEST = "attributes.start_time DESC"
_SHOWN = ("test_", "epochs_run", "windows_per_s", "train_seconds")


def leaderboard(
    parent: str | None = None,
    store: Store | None = None,
    *,
    market: str | None = None,
    symbols: Collection[str] | None = None,
    timeframes: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows by market and timeframe, the best CRPS ratio first.

    Keys are those of `COLUMNS`; a value that was not measured is None. A row has an interval if it has all coins of its
    fleet.

    Args:
        parent: run id of a flow, or its first characters, for the rows of that run alone; filters are then ignored.
        market: default: all real markets, or the simulated market if nothing real was trained.
        symbols, timeframes: filters; default all.

    Raises:
        CpbError: there is no such run, the id is ambiguous, or nothing was judged.
    """
    store = store or open_store(create=False)
    if parent is None:
        return _current(store, market, symbols, timeframes)
    flow = find_flow(store, parent)
    rows = [row for _, row in _rows(store, flow)]
    if not rows:
        raise CpbError(
            f"run {flow.info.run_id!r} holds no judged fleet, or its models were pruned; "
            "`cpb ui` shows the runs",
            code="no-run",
        )
    return sorted(rows, key=_order)


def _current(
    store: Store, market: str | None, symbols: Collection[str] | None, timeframes: Collection[str] | None
) -> list[dict[str, Any]]:
    """Return the newest row of each recipe on the same coins, over the newest finished run of each request."""
    flows = _newest_flows(store)
    trained = set(map(market_of, flows))
    shown = {market} if market else trained - {SIM} or trained
    if not shown & trained:
        which = f" of market {market}" if market else ""
        raise CpbError(
            f"no finished training run{which} in the MLflow store yet; "
            f"start one with `cpb train-all{market_option(market or SPOT)}`",
            code="no-run",
        )
    rows = [row for f in flows if market_of(f) in shown for row in _rows(store, f, symbols, timeframes)]
    if not rows:
        raise CpbError(
            "no judged model matches these markets, coins and timeframes; use fewer filters",
            code="no-run",
        )
    keyed = ((key, (row["as_of"], row["started_at"]), row) for key, row in rows)
    return sorted(newest_of(keyed).values(), key=_order)


def _newest_flows(store: Store) -> "list[Run]":
    """Return of the finished flow runs with the same request only the newest, so that a year of nights is one run."""
    return list(
        newest_of(
            # A run that does not record its request is its own group.
            ((market_of(run), *asked) if any(asked) else (run.info.run_id,), age_of(run), run)
            for run in search(
                store, f"tags.`{KIND}` = '{FLOW}' and attributes.status = 'FINISHED'", [_NEWEST]
            )
            for asked in [tuple(run.data.params.get(name) for name in _ASKED)]
        ).values()
    )


def _order(row: Mapping[str, Any]) -> tuple[int, int, float]:
    ratio = row["crps_ratio"] if row["crps_ratio"] is not None else float("inf")
    return MARKETS.index(row["market"]), INTERVAL_SECONDS[row["timeframe"]], ratio


def _rows(
    store: Store,
    flow: "Run",
    symbols: Collection[str] | None = None,
    timeframes: Collection[str] | None = None,
) -> list[tuple[Any, dict[str, Any]]]:
    """Return the rows of a flow run's fleets that have all their members, which pruning may have removed.

    Each after its key: market, timeframe, architecture, recipe, and the coins that were judged or failed.
    """
    market, (as_of, started) = market_of(flow), age_of(flow)
    rows: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {}
    # oldest first: a run continued with other shards, as on a GPU, has a second fleet
    fleets = search(store, f"tags.`{PARENT}` = '{flow.info.run_id}'", ["attributes.start_time ASC"])
    for fleet in fleets:
        if fleet.data.tags.get(KIND) != FLEET or PRUNED in fleet.data.tags:
            continue
        architecture = fleet.data.tags.get("architecture") or fleet.info.run_name or ""
        recipe = recipe_of_run(fleet.data.params, fleet.data.tags, flow.data.tags)
        members = _members(store, fleet)
        sizes = dict(members.group_by("timeframe").len().iter_rows())
        if symbols is not None:
            members = members.filter(pl.col("symbol").is_in(list(symbols)))
        if timeframes is not None:
            members = members.filter(pl.col("timeframe").is_in(list(timeframes)))
        for figures in (
            members.group_by("timeframe", maintain_order=True).agg(**_FIGURES).iter_rows(named=True)
        ):
            timeframe, tried = figures["timeframe"], figures.pop("tried")
            # Pooled figures are those of the whole fleet.
            whole = sizes[timeframe] == figures["members"] + figures["failed"]
            row = {
                **dict.fromkeys(COLUMNS),
                **figures,
                **_pooled(fleet.data.metrics if whole else {}, timeframe, figures["crps_ratio"]),
                "market": market,
                "architecture": architecture,
                "preset": recipe,
                "coins": coins_label(figures["coins"]) or "none",
                "train_seconds": fleet.data.metrics.get("train_seconds", figures["train_seconds"]),
                "as_of": as_of,
                "started_at": started,
                "flow_run": flow.info.run_id,
                "run_id": fleet.info.run_id,
            }
            rows[timeframe, architecture] = (market, timeframe, architecture, recipe, tuple(tried)), row
    return list(rows.values())


_JUDGED = pl.col("judged")
_FIGURES = {
    "coins": pl.col("symbol").filter(_JUDGED).unique().sort(),
    "tried": pl.col("symbol").unique().sort(),
    "members": _JUDGED.sum(),
    "failed": (~_JUDGED).sum(),
    "better_share": (pl.col("test_crps_ratio") < 1).mean(),
    **{name: pl.col(metric).mean() for name, metric in _MEANS.items()},
    **{name: pl.col(name).max() for name in _PEAKS},
}
"""Columns of a row from its members; metrics of failed members are null."""


def _members(store: Store, fleet: "Run") -> pl.DataFrame:
    """Return a fleet's judged and failed members: `symbol timeframe judged key test_span` and their metrics."""
    metrics = (*_MEANS.values(), *_PEAKS)
    rows = [
        {
            "symbol": run.data.tags.get(SYMBOL, ""),
            "timeframe": run.data.tags.get(TIMEFRAME, ""),
            "judged": judged,
            "key": run.data.tags.get(KEY, ""),
            "test_span": _span(fleet.data.params | run.data.params),
            **{name: run.data.metrics.get(name) if judged else None for name in metrics},
        }
        for run in search(store, f"tags.`{PARENT}` = '{fleet.info.run_id}'", ["attributes.start_time ASC"])
        if run.info.status in ("FINISHED", "FAILED")
        for judged in [run.info.status == "FINISHED"]
    ]
    texts = dict.fromkeys(("symbol", "timeframe", "key", "test_span"), pl.String)
    return pl.DataFrame(rows, {**texts, "judged": pl.Boolean, **dict.fromkeys(metrics, pl.Float64)}).sort(
        "timeframe"
    )


def _pooled(metrics: Mapping[str, float], timeframe: str, mean_ratio: float | None) -> dict[str, Any]:
    ratio, low, high = (metrics.get(f"pooled_crps_ratio_{timeframe}{end}") for end in ("", "_low", "_high"))
    p = metrics.get(f"pooled_p_{timeframe}")
    verdict = None
    if low is not None and high is not None and p is not None:
        verdict = relation(low, high, p).removesuffix(" than").removesuffix(" from")
    return {
        "crps_ratio": mean_ratio if ratio is None else ratio,
        "crps_ratio_low": low, "crps_ratio_high": high, "p_value": p, "verdict": verdict,
    }  # fmt: skip


def coin_ratios(store: Store, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each coin's ratio per model in some leaderboard rows: of the newest model of each recipe.

    Returns:
        `symbol timeframe architecture preset crps_ratio test_span key`, with `test_span` as in `JudgedModel`.
    """
    return list(newest_of(_coins(store, list(rows))).values())


def _coins(
    store: Store, rows: list[Mapping[str, Any]]
) -> Iterator[tuple[Any, tuple[str, str], dict[str, Any]]]:
    fleets = find_runs(store, {row["run_id"] for row in rows})
    members = {run_id: _members(store, fleet) for run_id, fleet in fleets.items()}
    for row in rows:
        if row["run_id"] not in fleets:
            continue
        names = {name: row[name] or "" for name in ("timeframe", "architecture", "preset")}
        of_row = members[row["run_id"]].filter(timeframe=row["timeframe"])
        for model in of_row.drop_nulls("test_crps_ratio").iter_rows(named=True):
            found = {
                "symbol": model["symbol"], **names, "crps_ratio": model["test_crps_ratio"],
                "test_span": model["test_span"], "key": model["key"],
            }  # fmt: skip
            yield (model["symbol"], *names.values()), (row["as_of"], row["started_at"]), found


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


class FlowRunInfo(BaseModel):
    """A run of the flow, or a search of `cpb tune`; the page's `FlowRun` documents the fields."""

    market: Market
    run_id: str
    kind: Literal["flow", "study"]
    name: str
    status: str
    outcome: str | None
    started_at: datetime
    ended_at: datetime | None
    preset: str | None
    coins: list[str]
    timeframes: list[str]
    architectures: list[str]
    as_of: str | None
    reason: str | None


def newest_flow_runs(store: Store, limit: int) -> list[FlowRunInfo]:
    """Return the newest flow runs and `cpb tune` searches, finished or running, newest first.

    A run whose process is dead is listed as killed, even if it is not marked yet.
    """
    runs = [
        run
        for kind in (FLOW, STUDY)  # MLflow's filters have no OR
        for run in islice(
            search_lazily(store, f"tags.`{KIND}` = '{kind}'", [_NEWEST], page_size=limit), limit
        )
    ]
    runs = sorted(runs, key=lambda run: run.info.start_time, reverse=True)[:limit]
    dead = dead_runs(store) if any(run.info.status == "RUNNING" for run in runs) else {}
    return [_info(run, dead.get(run.info.run_id)) for run in runs]


def _info(run: "Run", died: str | None) -> FlowRunInfo:
    tags, params, info = run.data.tags, run.data.params, run.info
    return FlowRunInfo(
        market=market_of(run),
        run_id=info.run_id,
        kind=tags[KIND],
        name=info.run_name or "",
        status="KILLED" if died else info.status,
        outcome=tags.get(OUTCOME),
        started_at=_time(info.start_time),
        ended_at=_time(info.end_time),
        preset=params.get("preset"),
        coins=_names(params.get("coins")),
        timeframes=_names(params.get("timeframes")),
        architectures=_names(params.get("architectures")),
        as_of=as_of(tags),
        reason=died or tags.get(REASON),
    )


def _names(text: str | None) -> list[str]:
    """Return the names in a param: MLflow stores text, a list as JSON."""
    if not text:
        return []
    return json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",")]


def _time(stamp_ms: int | None) -> datetime | None:
    return datetime.fromtimestamp(stamp_ms / 1000, UTC) if stamp_ms else None


def short_id(run_id: str) -> str:
    """Return the prefix of a run's id, as commands print it and `find_flow` accepts it."""
    return run_id[:SHORT]


def find_flow(store: Store, text: str) -> "Run":
    """Return the flow run with this id or unique id prefix; for a fleet's or member's id, its flow.

    Raises:
        CpbError: no run or several runs match.
    """
    run = find_run(store, text)
    while run is not None and run.data.tags.get(PARENT):
        run = find_run(store, run.data.tags[PARENT])
    if run is not None:
        return run
    begun = text.strip().lower()
    flows = search(store, f"tags.`{KIND}` = '{FLOW}'") if len(begun) >= _MIN_TYPED else []
    found = [flow for flow in flows if flow.info.run_id.startswith(begun)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(sorted(flow.info.run_id for flow in found))
        raise CpbError(
            f"several runs begin with {text!r}: {ids}; give more characters of the id",
            code="ambiguous-run", field="run",
        )  # fmt: skip
    raise CpbError(
        f"there is no run {text!r}; `cpb ui` shows the runs (old runs are pruned; "
        f"give at least {_MIN_TYPED} characters of an id)",
        code="no-run", field="run",
    )  # fmt: skip
