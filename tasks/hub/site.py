"""A static site of a market's live record that a person without cpb can check: page, chain, rows, and a verifier.

The rows are JSON lines, a gzip file for each month file of the store, so that a later call writes only the months that
grew. The verifier rebuilds from them the bytes that the chain's digests are of: the head on the page is the head that
`cpb verify` recomputes and that `cpb publish` sends to the Hub.
"""

import gzip
import io
import shutil
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars.selectors as cs

from schemas.errors import CpbError, DamagedError, count
from schemas.identity import SIM, market_home
from tasks.figures.page import Column, Section, Table, page_bytes
from tasks.forecasting.chain import chain_lock
from tasks.forecasting.lines import (
    Chain,
    FileRecord,
    chain_path,
    first_misfit,
    last_line,
    line_hash,
    parse_line,
)
from tasks.forecasting.months import load, owner_of
from tasks.forecasting.stored_forecasts import series_with_forecasts
from tasks.forecasting.summary import ledger_rows
from tasks.hub.record import check_head
from tasks.hub.tree import SUMS, read_sums, sums_bytes
from tasks.storage.checked_files import digest_fault
from tasks.storage.files import check_writable, write_bytes

PAGE, README, CHAIN, VERIFIER = "index.html", "README.md", "chain.jsonl", "verify.py"
TITLE = "Live record of forecasts"

_DRAFT = ".cpb-draft"
"""Folder of files that are to replace those of the site."""

_README = f"""---
title: {TITLE}
sdk: static
---

# {TITLE}

`{PAGE}` shows the record. `forecasts/` and `ledger/` hold every forecast and every score as JSON lines, `{CHAIN}` the
chain of their digests. `python {VERIFIER}` checks them against each other and against the head on the page; it needs
Python 3.8 or newer and nothing else. `python {VERIFIER} HASH`, with a head that was noted earlier, also checks that
this head is still in the chain.

Made by cpb. Times are UTC, in the rows as microseconds since 1970. Not investment advice.
"""

_COLUMNS = {
    "of": Column("Forecasts of"),
    "verdict": Column("Verdict", "from the interval: below 1, above it, or around it"),
    "crps_ratio": Column(
        "CRPS ratio", "loss over that of the random walk with EWMA volatility; below 1 is better", ".4f"
    ),
    "crps_ratio_low": Column("95 % from", "the ratio's interval, valid at any time", ".4f"),
    "crps_ratio_high": Column("95 % to", "", ".4f"),
    "days": Column("Days", "whole days, scored to the last step; only these count in the ratio", ","),
    "forecasts": Column("Forecasts", "", ","),
    "rows": Column("Rows", "scored steps of the forecasts", ","),
    "tail_ratio": Column("Tails", "ratio of the losses at the quantiles of 5 and 95 %", ".4f"),
    "coverage_50": Column("In 50 %", "share of closes inside the band of 50 %", ".1%"),
    "coverage_80": Column("In 80 %", "share of closes inside the band of 80 %", ".1%"),
    "coverage_90": Column("In 90 %", "share of closes inside the band of 90 %", ".1%"),
    "first": Column("From", "first day of issue"),
    "last": Column("To", "last day of issue"),
}
_WITH_INTERVAL = ("crps_ratio", "tail_ratio")
"""Figures that are shown only once there are enough days for an interval."""


@dataclass(frozen=True)
class Site:
    """A written site: number and hash of the chain's last line, all rows, all files, and the files of this call."""

    folder: Path
    line: int
    head: str
    rows: int
    files: int
    written: tuple[str, ...]


def write_site(home: Path, market: str, folder: Path) -> Site:
    """Write the site of a market's record into a folder that is new, empty, or a site of the same record.

    Files are prepared beside those of the site and renamed at the end; unchanged files are left alone. Only row files
    that the site's list names with their digest are ever removed.

    Raises:
        CpbError: (code `no-ledger`) no forecast is stored; (code `foreign-folder`) the folder holds something else;
            (code `other-record`) the folder is the site of another chain.
        UsageError: the folder cannot be written to.
        DamagedError: the stored record is damaged.
    """
    if not series_with_forecasts(home, market):
        raise CpbError(
            f"no forecast of market {market} is stored in {home}, so there is no record to publish; "
            "`cpb train-all` and `cpb forecast` issue some",
            code="no-ledger", field="market",
        )  # fmt: skip
    old = _own_sums(folder)
    check_writable(folder)
    with chain_lock(home, market):
        chain = Chain.read(chain_path(home, market)) or Chain()
        if chain.fault:
            raise DamagedError(f"{chain_path(home, market)} is damaged ({chain.fault}): see `cpb verify`")
        before = Chain()
        with suppress(FileNotFoundError):
            before = check_head(home, market, str(folder), last_line(folder / CHAIN), field="site")
        shutil.rmtree(folder / _DRAFT, ignore_errors=True)
        try:
            return _write(home, market, folder, chain, before, old)
        finally:
            shutil.rmtree(folder / _DRAFT, ignore_errors=True)


def _own_sums(folder: Path) -> dict[str, str]:
    """Return the digests in the list of a site by path, none for a folder that is new or empty."""
    if not folder.exists() or (folder.is_dir() and {path.name for path in folder.iterdir()} <= {_DRAFT}):
        return {}
    with suppress(OSError, DamagedError):
        sums = read_sums(folder)
        if {PAGE, CHAIN, VERIFIER} <= sums.keys():
            return sums
    raise CpbError(
        f"{folder} is not empty and no site of cpb (it has no {SUMS} that names {VERIFIER}): name a new folder",
        code="foreign-folder", field="site",
    )  # fmt: skip


def _write(home: Path, market: str, folder: Path, chain: Chain, before: Chain, old: dict[str, str]) -> Site:
    digests: dict[str, str] = {}
    written: list[str] = []

    def put(name: str, data: bytes) -> None:
        digests[name] = sha256(data).hexdigest()
        if digest_fault(folder / name, digests[name]):
            write_bytes(folder / _DRAFT / name, data)
            written.append(name)

    for name, record in sorted(chain.files.items()):
        place = f"{name.removesuffix('.parquet')}.jsonl.gz"
        written_of = before.files[name].file_sha256 if name in before.files else ""
        sources = ((market_home(home, market) / name, written_of), (folder / place, old.get(place, "")))
        if written_of == record.file_sha256 and not any(digest_fault(*source) for source in sources):
            digests[place] = old[place]
        else:
            put(place, _json_lines(home, market, name, record))
    rows = list(digests)
    put(CHAIN, (path := chain_path(home, market)).read_bytes())
    put(VERIFIER, (files("tasks.hub") / "static" / VERIFIER).read_bytes())
    put(README, _README.encode())
    put(PAGE, page_bytes(TITLE, _sections(home, market, chain, rows)))
    put(SUMS, sums_bytes(digests))
    # The list first: a call that is killed between two renames leaves a folder that the next call knows.
    for name in reversed(written):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / _DRAFT / name).replace(folder / name)
    for name in old.keys() - digests.keys():
        if owner_of(name.replace(".jsonl.gz", ".parquet"), market) and not digest_fault(
            folder / name, old[name]
        ):
            (folder / name).unlink()
    total = sum(record.rows for record in chain.files.values())
    return Site(folder, chain.lines, line_hash(last_line(path)), total, len(digests), tuple(written))


def _json_lines(home: Path, market: str, name: str, record: FileRecord) -> bytes:
    """Return a month file's rows as compressed JSON lines in the order of the schema, times as microseconds.

    Raises:
        DamagedError: they are not the rows of the chain.
    """
    if not (owner := owner_of(name, market)):
        raise DamagedError(f"the chain names {name}, which is no month file: see `cpb verify`")
    rows = load(home, *owner, market_home(home, market) / name)
    if misfit := first_misfit(rows, record.slices):
        raise DamagedError(
            f"row {misfit[0] + 1} of {name} is not the row of the chain: see `cpb verify`", field=name
        )
    lines = io.BytesIO()
    rows.with_columns(cs.datetime().to_physical()).write_ndjson(lines)
    return gzip.compress(lines.getvalue(), 6, mtime=0)  # level 9: 2 % smaller, twice the time


def _sections(home: Path, market: str, chain: Chain, rows: list[str]) -> list[Section]:
    line = last_line(chain_path(home, market))
    total = count(sum(record.rows for record in chain.files.values()), "row")
    earlier = f", of which {chain.rows_before:,} were there before the chain" if chain.rows_before else ""
    scored = [row for row in ledger_rows(home, market) if row["kind"] in ("pooled", "series")]
    live, replays = ([_row(row) for row in scored if row["live"] == kind] for kind in (True, False))
    what = [
        f"Market {market}. Forecasts that were stored before their candles closed, against the random walk with EWMA "
        "volatility from the same origin. What is forecast is the width of the distribution; nothing here claims to "
        "know the direction."
    ]
    if market == SIM:
        what.append("The candles are simulated: this record says nothing about a real market.")
    if not live:
        what.append("No live forecast has been scored yet.")
    check = [
        f"Head of the chain: {line_hash(line)}",
        f"It is the hash of line {chain.lines:,}, of {parse_line(line).time[:16].replace('T', ' ')}. A line has the "
        "digests of a batch of rows and the hash of the line before it, so the head stands for everything up to it: "
        f"{total}{earlier}.",
        f"Download this folder and run in it: python {VERIFIER}. All digests are computed again from the rows. It "
        "needs Python 3.8 or newer and nothing else; read its 40 lines first.",
        f"Note the head. Later, python {VERIFIER} HASH checks that it is still in the chain. Without a head that was "
        "noted elsewhere, by you or in the history of a repository, nobody can tell whether the owner of this folder "
        "has made all of it anew.",
    ]
    past = Section("Replays: forecasts made after the fact", table=Table(_COLUMNS, replays), folded=True)
    return [
        Section("Live forecasts", text=what, table=Table(_COLUMNS, live) if live else None),
        *([past] if replays else []),
        Section("Check it", text=check, links=[VERIFIER, CHAIN, SUMS]),
        Section("All rows, as JSON lines", links=rows, folded=True),
    ]


def _row(row: dict[str, Any]) -> dict[str, Any]:
    of = f"{row['symbol']} {row['timeframe']}" if row["kind"] == "series" else f"all coins {row['timeframe']}"
    hidden = _WITH_INTERVAL if row["crps_ratio_low"] is None else ()
    verdict = row["verdict"].removesuffix(" than the random walk")
    return row | {"of": of, "verdict": verdict} | dict.fromkeys(hidden)
