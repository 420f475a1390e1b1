"""Daily sums of realised losses, `daily.parquet` beside a series' scores: the live record without its rows.

Derived: computed from the month files of forecasts and scores, recomputed for each month whose files have changed, and
for all months if the sums are missing or damaged. So an hourly scoring reads only the month that it wrote to.

`versions.json` maps each version that has issued forecasts of a series to its recipe: rows contain only the version.

The registry no longer lists versions that were pruned; their record is kept here.
"""

import hashlib
import io
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import DamagedError
from schemas.identity import SeriesId
from schemas.ledger import DailyState, KnownVersions
from tasks.forecasting.losses import BANDS, scored_rows
from tasks.forecasting.months import FORECASTS, LEDGER, month_files, read_month, recorded_digest
from tasks.storage.files import write_bytes
from tasks.storage.locks import locked
from tasks.storage.records import file_digest, find_record, read_record, write_record

DAILY, STATE = "daily.parquet", "daily.json"
LOCK = ".lock"
"""Lock of a series' folder in the ledger, for all files derived from it; the month files have the chain's lock."""

KEY = ("day", "model_version", "role", "live")
_COUNTS = (
    "forecasts", "rows", "ref_rows", "moved", "direction_hits",
    *(f"covered_{band}" for band in BANDS), *(f"ref_covered_{band}" for band in BANDS),
)  # fmt: skip
_LOSSES = (
    "crps", "paired_crps", "ref_crps", "paired_tail", "ref_tail",
    "scaled_crps", "scaled_ref_crps", "scaled_tail", "scaled_ref_tail",
)  # fmt: skip
SUMS = (*_COUNTS, *_LOSSES)
SCHEMA: dict[str, Any] = {
    "day": pl.Date,
    "model_version": pl.String,
    "role": pl.String,
    "live": pl.Boolean,
    "horizon": pl.Int64,
    **dict.fromkeys(_COUNTS, pl.Int64),
    **dict.fromkeys(_LOSSES, pl.Float64),
}
"""One row per UTC day of `issued_at`, model version, role, and live or replay. `horizon`: steps of a forecast.

Sums over the scored rows: `crps` over all rows; `paired_…` and `ref_…` of the model and of the reference over the
`ref_rows` rows with a reference; `scaled_…` in units of the reference's width at the origin, additive across coins.
"""


def day_sums(scored: pl.DataFrame) -> pl.DataFrame:
    """Return the daily sums of scored rows of one series (`losses.scored_rows`)."""
    paired = pl.col("ref_crps").is_not_null()
    sums = [
        pl.col("horizon").max(),
        pl.col("issued_at").n_unique().alias("forecasts"),
        pl.len().alias("rows"),
        paired.sum().alias("ref_rows"),
        pl.col("direction_hit").is_not_null().sum().alias("moved"),
        pl.col("direction_hit").sum().alias("direction_hits"),
        *(pl.col(f"{whose}covered_{band}").sum() for band in BANDS for whose in ("", "ref_")),
        pl.col("crps").sum(),
        pl.col("crps").filter(paired).sum().alias("paired_crps"),
        pl.col("ref_crps").sum(),
        pl.col("tail").filter(paired).sum().alias("paired_tail"),
        pl.col("ref_tail").sum(),
        *(
            (pl.col(name) / pl.col("ref_width")).filter(paired).sum().alias(f"scaled_{name}")
            for name in ("crps", "ref_crps", "tail", "ref_tail")
        ),
    ]
    days = scored.with_columns(day=pl.col("issued_at").dt.date()).group_by(KEY).agg(sums)
    return days.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()).sort(KEY)


def daily_sums(home: Path, series: SeriesId) -> pl.DataFrame:
    """Return a series' daily sums, oldest first, updated from its month files; empty if it has no month files."""
    folder = series.folder(home, LEDGER.name)
    if not month_files(folder):
        return pl.DataFrame(schema=SCHEMA)
    with locked(folder / LOCK):  # guards the sums only; the month files may be written concurrently
        beside = series.folder(home, FORECASTS.name)
        months = {f.stem: (recorded_digest(beside / f.name), recorded_digest(f)) for f in month_files(folder)}
        known, made_of = _read(folder, series)
        changed = [month for month, digests in months.items() if made_of.get(month) != digests]
        if not changed and made_of.keys() == months.keys():
            return known
        kept = known.filter(pl.col("day").dt.strftime("%Y-%m").is_in([m for m in months if m not in changed]))
        sums = pl.concat([kept, *(_month_sums(home, series, month) for month in changed)]).sort(KEY)
        buffer = io.BytesIO()
        sums.write_parquet(buffer, compression="zstd", statistics=False)
        write_bytes(folder / DAILY, buffer.getvalue())
        state = DailyState(digest=file_digest(folder / DAILY), months=months)
        write_record(folder / STATE, state, of=series.name, compact=True)
    return sums


def read_sums(home: Path, series: SeriesId) -> pl.DataFrame:
    """Return a series' daily sums as last written, without updating them; empty if there are none."""
    return _read(series.folder(home, LEDGER.name), series)[0]


def _month_sums(home: Path, series: SeriesId, month: str) -> pl.DataFrame:
    rows, scores = (read_month(home, series, tree, month) for tree in (FORECASTS, LEDGER))
    if rows is None or scores is None:  # damaged, reported in the log
        return pl.DataFrame(schema=SCHEMA)
    return day_sums(scored_rows(rows, scores))


def _read(folder: Path, series: SeriesId) -> tuple[pl.DataFrame, dict[str, tuple[str, str]]]:
    """Return the sums and the digests of their source files; both empty if the sums are missing or damaged."""
    try:
        state = read_record(folder / STATE, DailyState, of=series.name)
        data = (folder / DAILY).read_bytes()
    except (FileNotFoundError, DamagedError):  # it is recomputed from the month files
        return pl.DataFrame(schema=SCHEMA), {}
    if hashlib.sha256(data).hexdigest() != state.digest:  # a kill between the two writes also causes this
        return pl.DataFrame(schema=SCHEMA), {}
    return pl.read_parquet(io.BytesIO(data)), dict(state.months)


_FILE = "versions.json"


def recipes_of(home: Path, series: SeriesId) -> dict[str, str]:
    """Return the known recipes by version (`cpb-BTCUSDT-1h/3`)."""
    known = find_record(series.folder(home, LEDGER.name) / _FILE, KnownVersions, of=series.name)
    return dict(known.recipes) if known else {}


def note_version(home: Path, series: SeriesId, model_version: str, recipe: str) -> None:
    """Record the recipe of a version that issues forecasts; concurrent writes by other processes are kept."""
    if recipes_of(home, series).get(model_version) == recipe:
        return
    path = series.folder(home, LEDGER.name) / _FILE
    with locked(path.with_name(LOCK)):
        known = recipes_of(home, series)
        kept = KnownVersions(recipes={**known, model_version: recipe})
        write_record(path, kept, of=series.name, compact=True)
