"""The leaderboard as a table: rows of plain values from pooled scores, and their CSV form."""

import csv
import io
from collections.abc import Sequence

from tasks.judging.member import MemberScore
from tasks.judging.pool import PoolScore

Row = dict[str, str | float | int]

COLUMNS = {
    "timeframe": "candle length",
    "architecture": "model or baseline",
    "coins": "coins judged",
    "crps_ratio": "CRPS / reference's, mean over the coins; below 1 is better",
    "low": "lower end of its 95 % interval",
    "high": "upper end",
    "p": "Diebold-Mariano p of no difference",
    "coins_below_one": "share of coins with a ratio below 1",
    "mae_ratio": "MAE of the median / that of the last close",
    "direction_1": "share of correct signs one candle ahead; 0.5 is chance",
    "direction": "the same, mean over all steps",
    "coverage_80": "share within the 80 % band",
    "coverage_90": "share within the 90 % band",
    "tail_ratio": "pinball of the 5 % and 95 % quantiles / reference's",
    "n": "forecasts judged",
}
"""Columns of the leaderboard and their meaning."""

_METRICS = {
    "crps_ratio": "test_crps_ratio", "low": "test_crps_ratio_low", "high": "test_crps_ratio_high", "p": "test_p",
    "coins_below_one": "coins_below_one", "mae_ratio": "test_mae_ratio",
    "direction_1": "test_directional_accuracy_step_1", "direction": "test_directional_accuracy",
    "coverage_80": "test_coverage_80", "coverage_90": "test_coverage_90", "tail_ratio": "test_tail_pinball_ratio",
}  # fmt: skip


_TITLES = {"random-walk": "plain random walk"}
"""Display names of models whose own name could be mistaken for the reference."""


def title_of(name: str) -> str:
    """Return a model's name as shown in reports and verdicts."""
    return _TITLES.get(name, name)


def leaderboard_rows(pools: Sequence[PoolScore]) -> list[Row]:
    """Return a row per architecture and timeframe, best CRPS ratio first within a timeframe."""
    ordered = sorted(pools, key=lambda p: (p.timeframe, p.metrics["test_crps_ratio"]))
    return [_row(p, "coins", len(p.symbols)) for p in ordered]


def member_rows(members: Sequence[MemberScore]) -> list[Row]:
    """Return a row per member with its verdict, best first."""
    ordered = sorted(members, key=lambda m: (m.timeframe, m.architecture, m.metrics["test_crps_ratio"]))
    return [_row(m, "symbol", m.symbol) | {"verdict": m.verdict} for m in ordered]


def _row(score: PoolScore | MemberScore, of: str, value: str | int) -> Row:
    """Return the columns that a score has; a member has no share of coins."""
    return {
        "timeframe": score.timeframe,
        "architecture": score.architecture,
        of: value,
        **{name: round(score.metrics[key], 6) for name, key in _METRICS.items() if key in score.metrics},
        "n": int(score.metrics["test_n"]),
    }


def as_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV with a header; an empty table gives an empty text."""
    if not rows:
        return ""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
