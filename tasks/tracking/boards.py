"""What MLflow knows about trained models: the leaderboard, a series' models, their losses, and the newest runs.

A row of the leaderboard is the newest run of a recipe that has scores on the same coins. MLflow takes 2 to 4 ms to read
a run, so the runs of these rows are read alone: the tag `BOARD` of a fleet's run says which fleets are of one row.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from cpbmodels.data import INTERVAL_SECONDS
from schemas.coins import coins_label
from schemas.errors import CpbError, MemberError
from schemas.identity import MARKETS, SIM, SPOT, Market, SeriesId, market_option
from tasks.judging.verdicts import relation
from tasks.tracking.metrics import RATIO
from tasks.tracking.registry import ALIAS, PREVIOUS, aliases_of, full_name, versions_of
from tasks.tracking.runs import dead_runs, search
from tasks.tracking.store import Store, find_run, find_runs, read_store
from tasks.tracking.tags import (
    AS_OF,
    BOARD,
    FLEET,
    FLOW,
    KEEP,
    KEY,
    KIND,
    MEMBER,
    NEWEST,
    NO_SCORE,
    OUTCOME,
    PARENT,
    PRUNED,
    REASON,
    STUDY,
    SYMBOL,
    TIMEFRAME,
    age_of,
    architecture_of,
    as_of,
    board_of,
    is_judged,
    market_of,
    recipe_of_run,
    series_tags,
)

if TYPE_CHECKING:
    from mlflow.entities import Run

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
    "touch_brier_ratio": "Brier score of the chance that a price is touched / random walk's; below 1 is better",
    "touch_brier_ratio_low": "lower end of its 95 % interval",
    "touch_brier_ratio_high": "upper end of its 95 % interval",
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

_TEST = ("crps_ratio", "touch_brier_ratio", "mae_ratio", "directional_accuracy", "coverage_80", "coverage_90")
_MEANS = {name: f"test_{name}" for name in _TEST} | {n: n for n in ("windows_per_s", "train_seconds")}
_PEAKS = ("rss_peak_mb", "gpu_mem_allocated_peak_mb")
_POOLED = {
    "pooled_ratio": "pooled_crps_ratio_{}",
    "crps_ratio_low": "pooled_crps_ratio_{}_low",
    "crps_ratio_high": "pooled_crps_ratio_{}_high",
    "p_value": "pooled_p_{}",
    "touch_brier_ratio_low": "pooled_touch_brier_ratio_{}_low",
    "touch_brier_ratio_high": "pooled_touch_brier_ratio_{}_high",
}
"""Metrics of a fleet's run over all its coins, by timeframe."""
_RUN = ("market", "timeframe", "architecture", "preset", "as_of", "started_at", "flow_run", "run_id")
_AGE = ("as_of", "started_at", "fleet_started")
_SCHEMA = {
    **dict.fromkeys((*_RUN, "symbol", "member_run", "key", "test_span"), pl.String),
    **dict.fromkeys((*_MEANS.values(), *_PEAKS, *_POOLED), pl.Float64),
    "fleet_started": pl.Int64,
    "flow_finished": pl.Boolean,
}
"""Columns of `read_members`."""

MAX_HISTORIES = 7  # models of a fleet whose losses are shown: the number of colours in a figure
_NEWEST = "attributes.start_time DESC"
_FLEETS = f"tags.`{KIND}` = '{FLEET}' and tags.`{PRUNED}` IS NULL"
_MAX_EXCLUDED = 20  # values in one filter, each a join: SQLite joins at most 64 tables
_FLEETS_READ = 20  # at a time, of which most are usually of values that are known after the first


def leaderboard(
    parent: str | None = None,
    members: pl.DataFrame | None = None,
    *,
    market: str | None = None,
    symbols: Collection[str] | None = None,
    timeframes: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows by market and timeframe, the best CRPS ratio first.

    Keys are those of `COLUMNS`, None for what was not measured. A row has an interval if it has all coins of its fleet.
    A fleet without a score has no row, so that failed models replace no earlier ones.

    Args:
        parent: run id of a flow, or its first characters, for the rows of that run alone, finished or not; filters are
            then ignored.
        members: of `read_members` with the same `parent`, if they were read before.
        market: default: all real markets, or the simulated market if nothing real was trained.
        symbols, timeframes: filters; default all.

    Raises:
        CpbError: there is no such run, the id is ambiguous, or nothing was judged.
    """
    members = read_members(read_store(), parent) if members is None else members
    if parent is not None:
        return _rows(_of_run(members, parent))
    members = members.filter("flow_finished")
    trained = set(members["market"])
    markets = {market} if market else trained - {SIM} or trained
    rows = _rows(members, market=markets, symbol=symbols, timeframe=timeframes)
    if not rows:
        raise CpbError(
            "no finished run has a judged model of this market, these coins and timeframes: use fewer filters, or "
            f"train some with `cpb train-all{market_option(market or SPOT)}`",
            code="no-run",
        )
    return rows


def read_members(store: Store, run: str | None = None) -> pl.DataFrame:
    """Return the members of the fleets that a board shows, a row each, with values of their fleets and flows.

    These are the newest fleet of a finished flow of each value of `BOARD`, and newer ones of flows that have not
    finished. Metrics of failed members are null. Pruned fleets, whose remaining members are no complete fleet, are left
    out.

    Args:
        run: id of a flow, of its fleet or member, or the first characters of a flow's, for all fleets of these flows.
    """
    fleets = _newest_fleets(store) if run is None else _fleets_named(store, run)
    rows = [row for fleet in fleets for row in _rows_of(fleet)]
    return pl.DataFrame(rows, _SCHEMA).filter(pl.col(RATIO).count().over("run_id", "timeframe") > 0)


@dataclass(frozen=True)
class _Fleet:
    """A fleet's run with those of its flow and its members."""

    flow: "Run"
    run: "Run"
    members: "list[Run]"

    @property
    def key(self) -> str:
        return str(self.run.info.run_id)


def _read_fleet(store: Store, run: "Run", flows: "dict[str, Run | None]") -> _Fleet | None:
    """Return a fleet, None if its flow was deleted; `flows`: those that were read before."""
    parent = run.data.tags.get(PARENT, "")
    if parent not in flows:
        flows[parent] = find_run(store, parent)
    flow = flows[parent]
    if flow is None or flow.info.lifecycle_stage == "deleted":
        return None
    return _Fleet(flow, run, [*search(store, f"tags.`{PARENT}` = '{run.info.run_id}'")])


def _newest_fleets(store: Store) -> Iterator[_Fleet]:
    """Yield the fleets of `read_members`, and all others of their flows: a later one may be of the same models."""
    flows, read = dict[str, "Run | None"](), dict[str, _Fleet]()

    def unread(runs: "Iterable[Run]") -> Iterator[_Fleet]:
        for run in runs:
            if run.info.run_id not in read and (fleet := _read_fleet(store, run, flows)):
                read[fleet.key] = fleet
                yield fleet

    yield from unread(search(store, f"{_FLEETS} and tags.`{BOARD}` IS NULL"))  # logged by an earlier version
    for first in _first_of_each_board(store):
        board = first.data.tags[BOARD]
        # the newest began last, unless the ends of their candles were requested
        requested = first.data.tags.get(AS_OF, NEWEST) != NEWEST
        order = [f"tags.`{AS_OF}` DESC", _NEWEST] if requested else [_NEWEST]
        for fleet in unread(search(store, f"{_FLEETS} and tags.`{BOARD}` = '{board}'", order, page_size=1)):
            yield fleet
            # members may have been deleted since the tag was written
            if fleet.flow.info.status == "FINISHED" and board_of(fleet.run, fleet.members) == board:
                break
    for flow in {fleet.flow.info.run_id for fleet in read.values()}:
        yield from unread(search(store, f"{_FLEETS} and tags.`{PARENT}` = '{flow}'"))


def _first_of_each_board(store: Store) -> "Iterator[Run]":
    """Yield a fleet's run for each value of `BOARD`; known values are excluded from the next search."""
    known = [NO_SCORE]
    while True:
        excluded = known[:_MAX_EXCLUDED]
        condition = " and ".join([_FLEETS, *(f"tags.`{BOARD}` != '{board}'" for board in excluded)])
        for number, run in enumerate(search(store, condition, page_size=_FLEETS_READ), 1):
            if (board := run.data.tags[BOARD]) not in known:
                known.append(board)
                yield run
            if number == _FLEETS_READ and len(excluded) < min(len(known), _MAX_EXCLUDED):
                break  # the rest may be of known values alone
        else:
            return


def _fleets_named(store: Store, text: str) -> Iterator[_Fleet]:
    """Yield the fleets of the flows whose ids begin with a text, or whose fleet or member has it as its id."""
    begun = text.strip().lower()
    if not re.fullmatch("[0-9a-f]{1,32}", begun):
        return
    named = find_run(store, begun)
    while named and named.data.tags.get(KIND) in (FLEET, MEMBER):
        named = find_run(store, named.data.tags.get(PARENT))
    found = search(store, f"tags.`{KIND}` = '{FLOW}' and attributes.run_id LIKE '{begun}%'")
    flows: dict[str, Run | None] = {flow.info.run_id: flow for flow in (*found, *([named] if named else []))}
    for flow in [*flows]:
        for run in search(store, f"{_FLEETS} and tags.`{PARENT}` = '{flow}'"):
            if fleet := _read_fleet(store, run, flows):
                yield fleet


def _rows_of(fleet: _Fleet) -> Iterator[dict[str, Any]]:
    run, flow = fleet.run, fleet.flow
    until, started = age_of(flow)
    for member in fleet.members:
        judged = is_judged(member)
        if not judged and member.info.status != "FAILED":
            continue
        metrics, timeframe = member.data.metrics if judged else {}, member.data.tags.get(TIMEFRAME, "")
        yield (
            {name: metrics.get(name) for name in (*_MEANS.values(), *_PEAKS)}
            | {name: run.data.metrics.get(metric.format(timeframe)) for name, metric in _POOLED.items()}
            | {
                "market": market_of(flow),
                "as_of": until,
                "started_at": started,
                "flow_run": flow.info.run_id,
                "flow_finished": flow.info.status == "FINISHED",
                "run_id": fleet.key,
                "fleet_started": run.info.start_time,
                "train_seconds": run.data.metrics.get("train_seconds", metrics.get("train_seconds")),
                "architecture": architecture_of(run),
                "preset": recipe_of_run(run.data.params, run.data.tags, flow.data.tags),
                "member_run": member.info.run_id,
                "symbol": member.data.tags.get(SYMBOL, ""),
                "timeframe": timeframe,
                "key": member.data.tags.get(KEY, ""),
                "test_span": _span(run.data.params | member.data.params),
            }
        )


def _of_run(members: pl.DataFrame, text: str) -> pl.DataFrame:
    """Return the members of the flow's run with this id or unique prefix; a fleet's or member's id means its flow."""
    begun = text.strip().lower()
    named = pl.any_horizontal(pl.col("run_id", "member_run") == begun)
    members = members.filter(pl.col("flow_run").str.starts_with(begun) | named)
    ids = members["flow_run"].unique().sort()
    if len(ids) == 0:
        raise CpbError(
            f"there is no run {text!r} with a judged model, or its models were pruned; `cpb ui` shows the runs",
            code="no-run",
            field="run",
        )
    if len(ids) > 1:
        raise CpbError(
            f"several runs begin with {text!r}: {', '.join(ids)}; give more characters of the id",
            code="ambiguous-run",
            field="run",
        )
    return members


def _rows(members: pl.DataFrame, **wanted: Collection[str] | None) -> list[dict[str, Any]]:
    """Return the rows of these members: the newest run of each recipe on the same judged coins; `wanted`: values of
    columns to show. Pooled figures are only shown for complete fleets."""
    judged = pl.col(RATIO).is_not_null()
    # A flow continued with other shards, as on a GPU, has a second fleet of an architecture and preset.
    newest = pl.col("run_id").last().over("flow_run", "architecture", "preset", "timeframe")
    members = members.sort("fleet_started", maintain_order=True).filter(pl.col("run_id") == newest)
    members = members.with_columns(fleet_size=pl.len().over("run_id", "timeframe"))
    for name, values in wanted.items():
        if values is not None:
            members = members.filter(pl.col(name).is_in(list(values)))
    whole = pl.len() == pl.col("fleet_size").first()
    rows = (
        members.group_by(*_RUN, "fleet_started")
        .agg(
            **{name: pl.col(metric).mean() for name, metric in _MEANS.items()},
            **{name: pl.col(name).max() for name in _PEAKS},
            **{name: pl.when(whole).then(pl.col(name).first()) for name in _POOLED},
            better_share=(pl.col(RATIO) < 1).mean(),
            coins=pl.col("symbol").filter(judged).unique().sort().str.join(","),
            members=judged.sum(),
            failed=(~judged).sum(),
        )
        .filter(pl.col("members") > 0)
        .with_columns(crps_ratio=pl.coalesce("pooled_ratio", "crps_ratio"))
        .sort(_AGE)
        .unique(["market", "timeframe", "architecture", "preset", "coins"], keep="last", maintain_order=True)
    )
    table = []
    for row in rows.to_dicts():
        row["coins"] = coins_label(row["coins"].split(","))
        interval = row["crps_ratio_low"], row["crps_ratio_high"], row["p_value"]
        if None not in interval:
            row["verdict"] = relation(*interval).removesuffix(" than").removesuffix(" from")
        table.append({name: row.get(name) for name in COLUMNS})
    return sorted(
        table,
        key=lambda row: (MARKETS.index(row["market"]), INTERVAL_SECONDS[row["timeframe"]], row["crps_ratio"]),
    )


def coin_ratios(members: pl.DataFrame, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each coin's ratio per model in some leaderboard rows: of the newest model of each recipe.

    Returns:
        `symbol timeframe architecture preset crps_ratio test_span key`, with `test_span` as in `JudgedModel`.
    """
    shown = [f"{row['run_id']}/{row['timeframe']}" for row in rows]
    model = ("symbol", "timeframe", "architecture", "preset")
    newest = (
        members.filter(pl.concat_str("run_id", pl.lit("/"), "timeframe").is_in(shown))
        .drop_nulls(RATIO)
        .sort(_AGE)
        .unique(model, keep="last", maintain_order=True)
    )
    return newest.select(*model, pl.col(RATIO).alias("crps_ratio"), "test_span", "key").to_dicts()


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
    of_series = {"market": series.market, "symbol": series.symbol, "timeframe": series.timeframe}
    newest_runs = (
        members.filter(pl.all_horizontal(pl.col(name) == value for name, value in of_series.items()))
        .drop_nulls(RATIO)
        .sort(_AGE)
        .unique(["architecture", "preset"], keep="last", maintain_order=True)
    )
    tags = {KIND: MEMBER, **series_tags(series)}
    condition = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
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
            test_span=_span(params),
            serves=alias_of.get(str(version.version)) if version else None,
            model_version=full_name(version) if version else None,
            metrics={name: value for name, value in run.data.metrics.items() if name.startswith(shown)},
        )
    return sorted(newest.values(), key=lambda model: model.metrics[RATIO])


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
    runs = [run] if kind == MEMBER else [*search(store, f"tags.`{PARENT}` = '{run.info.run_id}'", [_NEWEST])]
    histories = {}
    for member in runs[:MAX_HISTORIES]:
        epochs: dict[int, dict[str, float]] = {}
        for name in ("train_loss", "val_loss"):
            for point in store.client.get_metric_history(member.info.run_id, name):
                epochs.setdefault(point.step, {"epoch": point.step})[name] = point.value
        histories[member.info.run_name or member.info.run_id] = [epochs[step] for step in sorted(epochs)]
    return histories


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
    """Return the newest flow runs and `cpb tune` searches, newest first; a run whose process is dead is killed."""
    top = search(store, f"tags.`{PARENT}` IS NULL", [_NEWEST], page_size=limit)
    runs = list(islice((run for run in top if run.data.tags.get(KIND) in (FLOW, STUDY)), limit))
    dead = dead_runs(store) if any(run.info.status == "RUNNING" for run in runs) else {}
    return [
        FlowRunInfo(
            market=market_of(run),
            run_id=run.info.run_id,
            kind=run.data.tags[KIND],
            name=run.info.run_name or "",
            status="KILLED" if run.info.run_id in dead else run.info.status,
            outcome=run.data.tags.get(OUTCOME),
            started_at=datetime.fromtimestamp(run.info.start_time / 1000, UTC),
            ended_at=datetime.fromtimestamp(run.info.end_time / 1000, UTC) if run.info.end_time else None,
            preset=run.data.params.get("preset"),
            coins=_names(run.data.params.get("coins")),
            timeframes=_names(run.data.params.get("timeframes")),
            architectures=_names(run.data.params.get("architectures")),
            as_of=as_of(run.data.tags),
            reason=dead.get(run.info.run_id) or run.data.tags.get(REASON),
        )
        for run in runs
    ]


def _names(text: str | None) -> list[str]:
    """Return the names in a param: MLflow stores text, a list as JSON."""
    if not text:
        return []
    return json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",")]
