"""The leaderboard: architectures against the random walk, from the runs of judged fleets.

A row of the leaderboard is the newest run of a recipe that has scores on the same coins. MLflow takes 2 to 4 ms to read
a run, so the runs of these rows are read alone: the tag `BOARD` of a fleet's run says which fleets are of one row.
`read_members` reads them, `read_board` makes the rows.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from cpbmodels.data import INTERVAL_SECONDS
from schemas.chances import OUTCOMES, SCORED
from schemas.coins import coins_label
from schemas.errors import CpbError
from schemas.identity import MARKETS, SIM, SPOT, market_option
from tasks.judging.verdicts import relation
from tasks.tracking.calls import NEWEST_FIRST, find_run, search
from tasks.tracking.experiment import Store
from tasks.tracking.metrics import RATIO, of_chances
from tasks.tracking.store import read_store
from tasks.tracking.tags import (
    AS_OF,
    BOARD,
    FLEET,
    FLOW,
    KEY,
    KIND,
    MEMBER,
    NEWEST,
    NO_SCORE,
    PARENT,
    PRUNED,
    SYMBOL,
    TIMEFRAME,
    age_of,
    architecture_of,
    board_of,
    is_judged,
    market_of,
    recipe_of_run,
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
    **of_chances("{}_brier_ratio"),
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

_TEST = (
    "crps_ratio",
    *(f"{name}_brier_ratio" for name in (*SCORED, OUTCOMES)),
    "mae_ratio",
    "directional_accuracy",
    "coverage_80",
    "coverage_90",
)
_MEANS = {name: f"test_{name}" for name in _TEST} | {n: n for n in ("windows_per_s", "train_seconds")}
_PEAKS = ("rss_peak_mb", "gpu_mem_allocated_peak_mb")
_POOLED = {
    "pooled_ratio": "pooled_crps_ratio_{}",
    "crps_ratio_low": "pooled_crps_ratio_{}_low",
    "crps_ratio_high": "pooled_crps_ratio_{}_high",
    "p_value": "pooled_p_{}",
    **{
        f"{name}_brier_ratio_{end}": f"pooled_{name}_brier_ratio_{{}}_{end}"
        for name in SCORED
        for end in ("low", "high")
    },
}
"""Metrics of a fleet's run over all its coins, by timeframe."""
_RUN = ("market", "timeframe", "architecture", "preset", "as_of", "started_at", "flow_run", "run_id")
AGE = ("as_of", "started_at", "fleet_started")
_SCHEMA = {
    **dict.fromkeys((*_RUN, "symbol", "member_run", "key", "test_span"), pl.String),
    **dict.fromkeys((*_MEANS.values(), *_PEAKS, *_POOLED), pl.Float64),
    "fleet_started": pl.Int64,
    "flow_finished": pl.Boolean,
}
"""Columns of `read_members`."""

_FLEETS = f"tags.`{KIND}` = '{FLEET}' and tags.`{PRUNED}` IS NULL"
_MAX_EXCLUDED = 20  # values in one filter, each a join: SQLite joins at most 64 tables
_FLEETS_READ = 20  # at a time, of which most are usually of values that are known after the first


def read_board(
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
    # Simulated and real candles are never on one board: a ratio on a simulated market would look like a
    # result.
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
    # A fleet of which all members failed has no figure: it must not replace an earlier one that has.
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
        order = [f"tags.`{AS_OF}` DESC", NEWEST_FIRST] if requested else [NEWEST_FIRST]
        # One at a time: nearly always the first is of a finished flow, and no other is read.
        for fleet in unread(search(store, f"{_FLEETS} and tags.`{BOARD}` = '{board}'", order, page_size=1)):
            yield fleet
            # members may have been deleted since the tag was written
            if fleet.flow.info.status == "FINISHED" and board_of(fleet.run, fleet.members) == board:
                break
    for flow in {fleet.flow.info.run_id for fleet in read.values()}:
        yield from unread(search(store, f"{_FLEETS} and tags.`{PARENT}` = '{flow}'"))


def _first_of_each_board(store: Store) -> "Iterator[Run]":
    """Yield a fleet's run for each value of `BOARD`; known values are excluded from the next search."""
    # MLflow cannot say which values a tag has: runs of values that are known are excluded, a few at a time.
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
    # The text goes into a filter: nothing but an id may.
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
        # Members that are still being logged are neither judged nor failed.
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
                "test_span": span_tested(run.data.params | member.data.params),
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
    # An interval over all coins says nothing about the coins that a filter leaves.
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
        # The pooled ratio weighs coins alike; of a part of a fleet the mean of the coins' ratios is the
        # nearest.
        .with_columns(crps_ratio=pl.coalesce("pooled_ratio", "crps_ratio"))
        .sort(AGE)
        # By coins too: a run on one coin replaces no row of the whole universe.
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
        `symbol timeframe architecture preset crps_ratio test_span key`, with `test_span` as in `JudgedModel`; models in
        the order of `rows`.
    """
    shown = [f"{row['run_id']}/{row['timeframe']}" for row in rows]
    model = ("symbol", "timeframe", "architecture", "preset")
    name = pl.concat_str("run_id", pl.lit("/"), "timeframe")
    newest = (
        members.filter(name.is_in(shown))
        .drop_nulls(RATIO)
        .sort(AGE)
        .unique(model, keep="last", maintain_order=True)
        .sort(name.cast(pl.Enum(shown)), maintain_order=True)
    )
    return newest.select(*model, pl.col(RATIO).alias("crps_ratio"), "test_span", "key").to_dicts()


def span_tested(params: Mapping[str, str]) -> str | None:
    """Return the test span `from/to` in a model's params; None if not recorded."""
    return "/".join(json.loads(params["bounds.test"])) if "bounds.test" in params else None
