"""The published record: a market's chain, its rows as JSON lines, and a verifier that needs Python alone.

The verifier rebuilds from the JSON lines the bytes that the chain's digests are of, so the head that it prints is the
one that `cpb verify` recomputes. The date of the Hub's commit is a witness of time that is not the publisher's.
"""

import gzip
import io
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from cpbmodels.files import read_regular
from schemas.errors import DamagedError
from schemas.failure import Failure
from schemas.forecast_rows import ADDED_COLUMNS, FORECAST_SCHEMA, LEDGER_SCHEMA, OF_BEFORE
from schemas.identity import market_home
from tasks.forecasting.chain import chain_lock
from tasks.forecasting.lines import Chain, FileRecord, chain_path, first_misfit
from tasks.forecasting.months import files_of_market, load, owner_of
from tasks.forecasting.published import (
    CHAIN,
    ROWS,
    month_name,
    published_files,
    published_rows,
    restore_command,
    rows_name,
    way_back,
)
from tasks.storage.files import write_bytes
from tasks.storage.records import digest_fault

VERIFIER = "verify.py"

_SCHEMAS = {"forecasts": FORECAST_SCHEMA, "ledger": LEDGER_SCHEMA}
"""Columns and types of the rows, by the name of their folder without its market."""


def is_record_file(place: str) -> bool:
    """Whether a path in a published folder belongs to the record."""
    return place in (CHAIN, VERIFIER) or month_name(place) is not None


def data_set_metadata(tree: Path) -> dict[str, Any]:
    """Return the metadata of a card by which the library `datasets` reads a published record; empty without one.

    Its types are given: of a column that is null in a whole file none can be inferred, and times are integers there.
    Format: https://huggingface.co/docs/hub/datasets-manual-configuration.
    """
    globs = {
        kind: f"{folder.name}/*/*/*{ROWS}" for kind in _SCHEMAS for folder in sorted(tree.glob(f"{kind}*"))
    }
    if not globs:
        return {}
    return {
        "configs": [{"config_name": kind, "data_files": files} for kind, files in globs.items()],
        "dataset_info": [
            {
                "config_name": kind,
                "features": [{"name": name, "dtype": _arrow_name(t)} for name, t in _SCHEMAS[kind].items()],
            }
            for kind in globs
        ],
    }


def _arrow_name(kind: Any) -> str:
    return f"timestamp[us, tz={kind.time_zone}]" if kind == pl.Datetime else str(kind).lower()


def write_record(
    home: Path,
    market: str,
    target: Path,
    old: Path,
    sums: Mapping[str, str],
    report: Callable[[Failure], object],
) -> None:
    """Write a market's record as stored at this moment into `target`; nothing if none is stored or published.

    Rows of a month that has not grown are copied from `old`, also where the store's are damaged. The whole published
    record stays where the stored chain does not go on from it, since it is never replaced by a shorter one; and where
    rows of the stored chain cannot be read, since a chain without its rows could neither be checked nor restored.

    Args:
        old: the published folder that `target` will replace; may be missing.
        sums: sha256 of the files in `old`, by path.
        report: called with each damaged month, or with the chain that is damaged or another one.
    """
    published = [*published_files(old)]
    if not published and not any(files_of_market(home, market)):
        return

    def keep(place: str) -> None:
        if (old / place).is_file():
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(old / place, target / place)

    try:
        chain = _copied_chain(home, market, target / CHAIN)
        _check_not_shorter(home, market, old, sums, chain)
    except (DamagedError, FileNotFoundError) as error:
        report(Failure.of(None, "publish", error))
        chain, is_whole = Chain(), False
    else:
        is_whole = True
    before = Chain.read(old / CHAIN) or Chain()
    for name, record in chain.files.items():
        place = rows_name(name)
        stored, copy = market_home(home, market) / name, old / place
        # Three facts: the chain says the same of the month, the stored file is that one, and the copy is as
        # it was listed.
        is_same = before.files.get(name) == record and not digest_fault(stored, record.file_sha256)
        if is_same and place in sums and not digest_fault(copy, sums[place]):
            keep(place)
            continue
        try:
            write_bytes(target / place, _json_lines(home, market, name, record))
        except DamagedError as error:
            report(Failure.of(None, "publish", error))
            keep(place)
            is_whole = is_whole and before.files.get(name) == record
    # The published record as a whole, never a mixture: its chain must fit its rows.
    if not is_whole:
        for place in (CHAIN, *map(rows_name, chain.files)):
            (target / place).unlink(missing_ok=True)
        for place in published:
            keep(place)
    if is_whole or published:
        write_bytes(target / VERIFIER, (files("tasks.hub") / "static" / VERIFIER).read_bytes())


def _check_not_shorter(home: Path, market: str, old: Path, sums: Mapping[str, str], chain: Chain) -> None:
    """Raise `DamagedError` if the published rows are more than those of the chain, although its end is in the chain.

    So it is if the published chain is not as it was written: cut off, or missing.
    """
    if CHAIN in sums and not digest_fault(old / CHAIN, sums[CHAIN]):
        return
    for place in published_files(old):
        if (name := month_name(place)) is None:
            continue
        number = published_rows(old, name)  # a damaged file is replaced
        if number > chain.files.get(name, FileRecord()).rows:
            raise DamagedError(
                f"{old / place} has {number:,} rows, which are more than those of {chain_path(home, market)}, and "
                f"the published {CHAIN} is not as it was written: the published record stays as it is. Fetch it "
                f"from where it was published and run `{restore_command(home, market)} --record FOLDER`, or move "
                "this file away",
                code="other-record",
                field=str(old / place),
            )


def _copied_chain(home: Path, market: str, target: Path) -> Chain:
    """Copy the chain, without a pending batch, and return it.

    Raises:
        DamagedError: it is damaged or missing, or (code `other-record`) it does not go on from the published one.
    """
    stored = chain_path(home, market)
    with chain_lock(home, market):  # completes a pending batch; rows that are appended later have later lines
        write_bytes(target, read_regular(stored))
    chain = Chain.read(target) or Chain()
    if chain.fault:
        raise DamagedError.of(stored, chain.fault, "see `cpb verify`")
    return chain


def _json_lines(home: Path, market: str, name: str, record: FileRecord) -> bytes:
    """Return a month's rows up to the chain's end as compressed JSON lines, times as microseconds since 1970.

    Raises:
        DamagedError: the month is missing, or its rows are not those of the chain.
    """
    if not (owner := owner_of(name, market)):
        raise DamagedError(f"the chain names {name}, which is no month file: see `cpb verify`")
    path = market_home(home, market) / name
    try:
        rows = load(home, *owner, path)[: record.rows]
    except FileNotFoundError:
        raise DamagedError(
            f"{path.relative_to(home)} is missing, though the chain has rows of it: "
            f"{way_back(home, market, name)}",
            field=name,
        ) from None
    # Rows that differ from the chain are never published: a verifier would call the record forged.
    if misfit := first_misfit(rows, record.slices):
        raise DamagedError(f"row {misfit[0] + 1} of {name} is not the row of the chain: see `cpb verify`")
    lines = io.BytesIO()
    for part in _runs(rows.with_columns(cs.datetime().to_physical())):
        part.write_ndjson(lines)
    return gzip.compress(lines.getvalue(), 6, mtime=0)  # level 9: 2 % smaller, twice the time


def _runs(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the rows in order, those stored by older versions without the columns that these did not know.

    So their lines stay byte for byte when newer rows are appended to their month.
    """
    if not ADDED_COLUMNS.keys() <= set(rows.columns):
        yield rows
        return
    runs = rows.with_columns(run=OF_BEFORE.rle_id()).partition_by(
        "run", maintain_order=True, include_key=False
    )
    for run in runs:
        yield run.drop(ADDED_COLUMNS) if run.select(OF_BEFORE.first()).item() else run
