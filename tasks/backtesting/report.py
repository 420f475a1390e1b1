"""What a backtest leaves in its folder: tables, `result.json`, and the report.

The report is an HTML page with verdicts, interactive figures and tables; it makes no network requests.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from schemas.backtesting import BacktestSpec
from schemas.errors import counted
from tasks.backtesting.results import Backtest
from tasks.figures.judged import INTRODUCTION, judged_sections, members_section
from tasks.figures.page import Section, write_page
from tasks.judging.pool import leaderboard_rows, member_rows
from tasks.storage.files import write_bytes, write_json
from tasks.storage.urls import public_url
from tasks.training.plan import fleet_names


def write_results(
    spec: BacktestSpec,
    results: Backtest,
    presets: Mapping[str, str],
    notes: Sequence[str],
    answer: dict[str, Any],
) -> None:
    """Write tables, the report and `result.json` into `out`, if it is given.

    Args:
        spec: the options.
        results: the results of judging.
        presets: the label of each fleet's preset.
        notes: sentences under the report's heading.
        answer: the object that `--json` prints.
    """
    if spec.out is None:
        return
    folder, title = Path(spec.out), f"cpb backtest: {', '.join(fleet_names(spec.fleets))}"
    write_report(folder / "report.html", title, results, notes)
    tables = {"leaderboard": leaderboard_rows(results.pools), "members": member_rows(results.members)}
    for name, rows in tables.items():
        # A baseline has no preset.
        for row in rows:
            row["preset"] = presets.get(str(row["architecture"]), "")
        write_bytes(folder / f"{name}.csv", pl.DataFrame(rows, infer_schema_length=None).write_csv().encode())
    # A source may be a URL with a password in it; the file is shared.
    config = spec.model_dump(mode="json") | {"source": public_url(spec.source) if spec.source else None}
    write_json(folder / "result.json", answer | {"config": config})


def write_report(path: Path, title: str, results: Backtest, notes: Sequence[str] = ()) -> None:
    """Write the page atomically.

    Args:
        path: path of the HTML file.
        title: heading.
        results: the results of judging.
        notes: sentences under the heading: options, look-ahead check, failures.
    """
    sections = [
        Section("What this is", text=[INTRODUCTION, *notes]),
        *judged_sections(results.pools, results.members, [f"{pair.verdict}." for pair in results.pairs]),
        members_section(results.members),
    ]
    write_page(path, title, sections)


def report_notes(spec: BacktestSpec, results: Backtest) -> list[str]:
    """Return the sentences under the report's heading."""
    as_of = spec.scope.as_of
    until = f" as of {as_of:%Y-%m-%d %H:%M} UTC" if as_of else ""
    folds, presets = (
        counted(spec.folds, "fold"),
        f"Preset{'s' * (len(spec.presets) > 1)} {', '.join(spec.presets)}",
    )
    heading = f"{presets}, {folds}, trained anew on all the past for each{until}; seed {spec.seed}."
    left_out = [f"Left out: {failure.subject}: {failure.reason}" for failure in results.failures]
    return [heading, *left_out, *results.incomplete]
