"""The published record: the chain's head with the month files of forecasts and scores.

The Hub's commit provides an independent timestamp. The published record is compared with the stored files.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from cpbmodels import ModelError
from cpbmodels.adapters.hub import fetch_file, list_models
from schemas.errors import CpbError, DamagedError
from schemas.handover import Damage
from schemas.identity import market_home
from tasks.forecasting.chain import chain_lock
from tasks.forecasting.lines import Chain, chain_path, last_line, parse_line, read_lines
from tasks.forecasting.months import MONTH_FILE, files_of_market, read_bytes
from tasks.storage.digests import file_digest
from tasks.storage.files import write_bytes

FOLDER = "ledger"
HEAD = "head.json"

_ELSEWHERE = {
    "repo": f"name another USER/NAME, or move the repository's {FOLDER} folder away",
    "site": "or name a new folder",
}

log = logging.getLogger("cpb")


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`: the commit, the line of the published head, and the numbers of equal files and rows."""

    commit: str
    line: int
    files: int
    rows: int
    damaged: tuple[Damage, ...]


def is_ledger_file(place: str) -> bool:
    """Whether a path in a published tree belongs to the record."""
    folder, _, name = place.partition("/")
    return folder == FOLDER and (name == HEAD or MONTH_FILE.fullmatch(name) is not None)


def copy_ledger(home: Path, market: str, target: Path) -> None:
    """Copy a consistent snapshot of a market's head and month files to `target`; nothing if there are no files.

    A damaged file is left out and logged.
    """
    files = [path for _, _, path in files_of_market(home, market)]
    if not files:
        return
    with chain_lock(home, market):
        write_bytes(target / HEAD, last_line(chain_path(home, market)))
        for path in files:
            try:
                write_bytes(target / path.relative_to(market_home(home, market)), read_bytes(path))
            except (DamagedError, FileNotFoundError) as error:
                log.warning("%s is damaged and not published (%s); see `cpb verify`", path, error)


def check_head(home: Path, market: str, place: str, head: bytes, field: str = "repo") -> Chain:
    """Return the stored chain up to a published head.

    Args:
        place: where it is published, for the message.
        field: the option that names the place, `repo` or `site`.

    Raises:
        CpbError: (code `other-record`) the head is not a line of the stored chain.
    """
    chain, fault = _chain_until(home, market, head)
    if fault:
        raise CpbError(
            f"{place} holds the record of another chain ({fault}), so nothing was published; restore the chain that "
            f"was published, {_ELSEWHERE[field]}",
            code="other-record", field=field,
        )  # fmt: skip
    return chain


def compare(home: Path, market: str, repo: str) -> Comparison:
    """Compare the newest published record with the stored record.

    The published head must be a line of the stored chain, byte for byte, and each published file must match the chain
    up to that line; `tasks.forecasting.check_months` checks the stored rows against the chain.

    Raises:
        CpbError: (code `hub`) the Hub cannot be reached; (code `no-ledger`) no record is published, or none is stored.
    """
    try:
        found = list_models(repo)
        names = [name for name in found.files if is_ledger_file(name)]
        if f"{FOLDER}/{HEAD}" not in names:
            raise CpbError(
                f"{repo} contains no head of a chain; `cpb publish {repo}` uploads it",
                code="no-ledger",
                field="hub",
            )
        raw = fetch_file(repo, f"{FOLDER}/{HEAD}", found.commit).read_bytes()
        chain, fault = _chain_until(home, market, raw)
        damaged = [_damage(repo, HEAD, fault)] if fault else []
        files = rows = 0
        for name in () if fault else names:
            file = name.removeprefix(f"{FOLDER}/")
            if file == HEAD or file in chain.lost:
                continue
            if reason := _file_fault(repo, name, file, found.commit, chain):
                damaged.append(_damage(repo, file, reason))
            else:
                files, rows = files + 1, rows + chain.files[file].rows
        there = {name.removeprefix(f"{FOLDER}/") for name in names}
        damaged += [
            _damage(repo, file, "it was not published") for file in sorted(chain.files.keys() - there)
        ]
    except ModelError as error:
        raise CpbError(f"{error}".rstrip("."), code="hub", field="hub") from None
    return Comparison(found.commit, chain.lines, files, rows, tuple(damaged))


def _chain_until(home: Path, market: str, head: bytes) -> tuple[Chain, str]:
    """Return the stored chain up to the published line, or the mismatch of that line."""
    chain = Chain()
    try:
        published = parse_line(head)
    except DamagedError as error:
        return chain, f"the published head does not fit: {error}"
    try:
        for line in read_lines(chain_path(home, market)):
            chain.add(line)
            if line.number == published.number:
                if line.encode() == head:
                    return chain, ""
                return Chain(), f"line {line.number} of the stored chain differs from the published line"
    except FileNotFoundError:
        raise CpbError(
            f"no chain of market {market} is stored; name the market that was published with --market",
            code="no-ledger", field="market",
        ) from None  # fmt: skip
    except DamagedError as error:
        return Chain(), f"the stored chain cannot be compared with it: {error}"
    return Chain(), f"it is line {published.number}, and the stored chain ends with line {chain.lines}"


def _file_fault(repo: str, name: str, file: str, commit: str, chain: Chain) -> str:
    """Return how a published file differs from its entry in the chain; empty if it does not differ."""
    if (record := chain.files.get(file)) is None:
        return "no line of the stored chain mentions it"
    for again in (False, True):  # download again in case the cached copy is damaged
        path = fetch_file(repo, name, commit, again=again)
        if file_digest(path) == record.file_sha256:
            return ""
    return "its sha256 differs from the recorded sha256"


def _damage(repo: str, file: str, reason: str) -> Damage:
    return Damage(
        path=f"hub:{repo}/{FOLDER}/{file}", reason=reason, command="cpb verify", repaired=False, outcome=""
    )
