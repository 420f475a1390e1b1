"""Reads every stored file of one or all markets by its normal reader, and repairs nothing.

Not a step of the DAG: `cpb verify` runs it separately. Each kind yields its files with a function that returns the
fault, and with the command that makes or fetches the file again. If damage or an error prevents checking one file or
one kind, the others are still checked.
"""

import os
import shlex
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from cpbmodels.data.series import instant
from cpbmodels.files import open_regular
from cpbmodels.fleet.config import CONFIG
from schemas.base import Record
from schemas.errors import CpbError, DamagedError, UsageError
from schemas.handover import Damage, SeriesRecord, ShardJob, ShardResult
from schemas.identity import MARKETS, OWN, SPOT, SeriesId, market_home, options_of, stored_series, tree_of
from schemas.ledger import LedgerSummary, Settled
from schemas.reading import REMEMBERED, remembered
from tasks.forecasting import months
from tasks.forecasting.chain import ANY_ERROR, check_months, pending_path
from tasks.forecasting.daily_sums import DAILY, parse_sums
from tasks.forecasting.lines import chain_path
from tasks.forecasting.published import (
    CHAIN,
    RESTORE,
    is_restorable,
    month_name,
    record_loss,
    restore_command,
    way_back,
)
from tasks.forecasting.score import settled_path
from tasks.forecasting.watch import Watch
from tasks.hub.packaged import registry_differences
from tasks.hub.tree import SUMS, tree_faults
from tasks.market import klines
from tasks.market.layout import period_bounds
from tasks.market.manifest import MANIFEST
from tasks.market.manifest_file import intact_manifest
from tasks.market.store_files import writer_lock
from tasks.promotion import submissions, switches
from tasks.signals.feature_files import FEATURE_FILE
from tasks.storage import model_folder
from tasks.storage.folders import folders_aside
from tasks.storage.home_version import VERSION_FILE, restore_version
from tasks.storage.model_folder import NEEDED
from tasks.storage.packaged import packaged_models
from tasks.storage.records import digest_fault, parse_record
from tasks.storage.sealed import SEAL, Seal
from tasks.storage.urls import public_url
from tasks.tracking.champions import champions, training_command, undelete_command
from tasks.tracking.database import database_damage
from tasks.tracking.experiment import NO_STORE
from tasks.tracking.home_store import RECORD, TAKE, HomeStore, sqlite_path, tracking_uri
from tasks.tracking.registry import ALIAS, PREVIOUS
from tasks.tracking.results import results_fault, results_path
from tasks.tracking.store import read_store
from tasks.tracking.store_errors import store_errors
from tasks.training.progress import progress_fault
from tasks.training.shard import JOB, LOG, PROGRESS, RESULT, is_training, shard_folders

R = TypeVar("R", bound=Record)

Check = tuple[Path, Callable[[], object], str]
"""A file, the function that reads it, and the command that makes or fetches it again.

The function returns the fault as a text, empty for none, or anything else for none; a `DamagedError` or an `OSError` is
the fault too; FileNotFoundError: the file was removed since it was listed. Each file is checked before the next is
requested, under any locks held meanwhile.
"""

_FETCH = "hf download USER/NAME --local-dir copy && cpb restore"
"""Where the published record in the home is damaged and the stored one is lost, a Hub repository has the last copy."""


@dataclass
class Verification:
    """The findings: number of the markets' files checked, the damage, a sentence for each kind that was not checked.

    `unseen`: what is stored without a digest, so that damage of it would not be found. `behind`: packaged models that
    are no longer the champions, which is no damage.
    """

    checked: int = 0
    damaged: list[Damage] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether everything was checked and no file is damaged."""
        return not self.damaged and not self.unchecked


def verify_all(
    home: Path, markets: Sequence[str], seen: Callable[[int], None] = lambda _checked: None
) -> Verification:
    """Check all files of the markets; `seen` is called with the number of files checked so far."""
    result = Verification(unseen=unseen())
    errors: dict[tuple[str, str], list[str]] = {}  # the markets of each kind and sentence

    def check_all(kind: str, market: str, checks: Iterable[Check]) -> None:
        try:
            for check in checks:
                damage = damage_at(home, *check)
                if market:
                    result.checked += 1
                    seen(result.checked)
                # The futures' candles share the spot manifest: it is reported once.
                if damage and damage.path not in {reported.path for reported in result.damaged}:
                    result.damaged.append(damage)
        except ANY_ERROR as error:
            if getattr(error, "code", "") != NO_STORE or packaged_models(home, market):
                errors.setdefault((kind, _sentence(error)), []).append(market)

    for kind, shared in SHARED_KINDS.items():
        check_all(kind, "", shared(home))
    for market in markets:
        for kind, checks in KINDS.items():
            check_all(kind, market, checks(home, market))
        result.behind += packaged_behind(home, market)
    for (kind, text), unchecked in errors.items():
        of = f" of market {', '.join(unchecked)}" if any(unchecked) else ""
        result.unchecked.append(f"the {kind}{of} could not be checked: {text}; then run `cpb verify` again")
    return result


def _sentence(error: BaseException) -> str:
    """Return the reason why a kind could not be checked."""
    if isinstance(error, CpbError | OSError):
        return str(error)
    return (
        f"{_unexpected(error)}; this is an error of cpb, which damage may have caused: put the files of that kind back "
        "from a backup, and report this sentence"
    )


def _unexpected(error: BaseException) -> str:
    """Return the kind, text and place of an unexpected error: for a report of it, without a traceback."""
    text = (str(error).splitlines() or [""])[0][:200]
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} ({Path(place.filename).name}, line {place.lineno})"


def damage_at(home: Path, path: Path, read: Callable[[], object], command: str) -> Damage | None:
    """Return the damage of a file, None if it is intact; an unexpected error of its reader is damage, too."""
    try:
        reason = read()
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
    except DamagedError as error:
        reason = str(error)
    except ANY_ERROR as error:
        reason = f"reading it failed: {_unexpected(error)}"
    if not isinstance(reason, str) or not reason:
        return None
    place = path.relative_to(home) if path.is_relative_to(home) else path
    return Damage(path=place.as_posix(), reason=reason, command=command)


def unseen() -> list[str]:
    """Return a sentence about what of the store is not checked; empty without a store."""
    try:
        uri = tracking_uri()
    except DamagedError:  # reported by its own check
        return []
    database = sqlite_path(uri)
    if database and not database.exists():
        return []
    place = str(database) if database else public_url(uri)
    return [
        f"not checked: files of runs whose model is neither champion nor previous, and, as MLflow stores no digests of "
        f"them, params, metrics and tags in {place}; "
        + ("of the file SQLite's own check was run" if database else "nor the database behind it")
    ]


def home_version(home: Path) -> Iterator[Check]:
    """Yield the file with the home's version, which is written before any manifest."""
    roots = {market_home(home, market) for market in MARKETS}
    if any(_is_database(root / MANIFEST) for root in roots):
        path = home / VERSION_FILE
        yield path, lambda: "" if path.exists() else "it is missing", restore_version(path)


def store_record(home: Path) -> Iterator[Check]:
    """Yield the record that says which MLflow store is the home's."""
    if (path := home / RECORD).exists():
        yield path, partial(parse_record, path, HomeStore), TAKE


def mlflow_database(_home: Path) -> Iterator[Check]:
    """Yield the store's SQLite file; one that cannot be opened is reported by the check of champions."""
    database = sqlite_path(tracking_uri())
    if database and database.exists():
        yield database, partial(database_damage, database), RESTORE


def candles(home: Path, market: str) -> Iterator[Check]:
    """Yield the manifest of a market, its months, and its off-grid and provisional candles.

    Raises:
        BusyError: another process is writing in the market's home.
    """
    root = market_home(home, market)
    path, stored = root / MANIFEST, _series(home, "klines", market)
    beside = [series for series in stored_series(home, "klines") if market_home(home, series.market) == root]
    no_access = not os.access(root, os.W_OK)  # then there are no writers
    # On opening SQLite writes beside the file, which a full disk refuses: after a kill it must.
    read_only = no_access or not path.with_name(f"{path.name}-wal").exists()
    if not beside and not _is_database(path):
        return  # without any candles and in another format it may be a person's
    with (
        nullcontext() if no_access else writer_lock(root),
        intact_manifest(path, read_only=read_only) as manifest,
    ):
        named = stored or [series for series in beside if series.market == beside[0].market]
        yield path, lambda: manifest.fault, f"cpb ingest {options_of(named)}" if named else _remove(path)
        for series in sorted({*stored, *(s for s in manifest.series() if s.market == market)}):
            parts = manifest.parts(series)
            for month in sorted({*parts, *(file.stem for file in klines.part_paths(home, series))}):
                file = klines.part_path(home, series, month)
                yield file, partial(klines.damage_of, file, parts.get(month)), _fetch(series, month)
            for file in series.folder(home, "offgrid").glob("????-??.parquet"):
                yield file, partial(klines.damage_of, file), _fetch(series, file.stem)
            if (tail := series.folder(home, "provisional") / "tail.parquet").exists():
                yield tail, partial(klines.damage_of, tail), f"{klines.ingest_command(series)} --tail"


def _is_database(path: Path) -> bool:
    with suppress(OSError), open_regular(path) as file:
        return file.read(6) == b"SQLite"
    return False


def _series(home: Path, tree: str, market: str) -> list[SeriesId]:
    return [series for series in stored_series(home, tree) if series.market == market]


def _fetch(series: SeriesId, month: str) -> str:
    end = instant(period_bounds(month)[1])
    return f"{klines.ingest_command(series)} --since {month} --as-of {end:%Y-%m-%d}"


def features(home: Path, market: str) -> Iterator[Check]:
    """Yield stored features and their records, which the next training computes again.

    A feature file without a record is not damage: a run was stopped between the two, and the next run writes both.
    """
    for series in _series(home, "features", market):
        for path in sorted(series.folder(home, "features").glob("*.json")):
            data = path.with_suffix(".parquet")
            if not FEATURE_FILE.fullmatch(data.name):
                continue
            of, command = data.relative_to(home).as_posix(), _remove(data, path)
            yield _record(path, SeriesRecord, of, command)
            if record := _find(path, SeriesRecord, of):
                yield data, partial(digest_fault, data, record.file_digest), command


def _remove(*paths: Path) -> str:
    """Return the command that deletes files which the next run makes again."""
    return f"rm -f {shlex.join(map(str, paths))}"


def _record(path: Path, kind: type[Record], of: str, command: str) -> Check:
    """Return the check of a record with the subject `of`."""
    return path, partial(parse_record, path, kind, of=of), command


def _find(path: Path, kind: type[R], of: str) -> R | None:
    """Return the record in `path`; None if it is missing, or damaged, which its own check reports."""
    with suppress(OSError, DamagedError):
        return parse_record(path, kind, of=of)
    return None


def fleets(home: Path, market: str) -> Iterator[Check]:
    """Yield a market's fleets: records, models, and files added by judging; a fleet in training is left out."""
    for folder in shard_folders(market_home(home, market)):
        job = _find(folder / JOB, ShardJob, folder.name)
        result = _find(folder / RESULT, ShardResult, folder.name)
        of = job.members[0].model.series.market if job else market
        is_ours = job or result or (folder / LOG).exists()
        if not is_ours or of != market or is_training(folder):
            continue
        command = _remove(folder / RESULT)  # the next training makes it anew
        whole = _remove(folder / JOB, folder / RESULT)  # no other training writes that job again
        if result and not (folder / JOB).exists():
            yield folder / JOB, lambda: "it is missing", whole
        yield _record(folder / JOB, ShardJob, folder.name, whole)
        yield _record(folder / RESULT, ShardResult, folder.name, command)
        if (progress := folder / PROGRESS).exists():
            yield progress, partial(progress_fault, progress), _remove(progress)
        for member in result.members if result else ():
            place = folder / "members" / member.name
            if not (place / SEAL).exists():
                yield place / SEAL, lambda: "it is missing", command
            yield _record(place / SEAL, Seal, "", command)
            if seal := _find(place / SEAL, Seal, ""):
                for name, digest in seal.files.items():
                    yield place / name, partial(digest_fault, place / name, digest), command


def champion_files(_home: Path, market: str) -> Iterator[Check]:
    """Yield the files of a market's champions and their predecessors; of a tracking server's, this machine's copies.

    Raises:
        CpbError: the MLflow store cannot be read, or (code `NO_STORE`) there is none.
    """
    store = read_store()
    for alias in (ALIAS, PREVIOUS):
        with store_errors():
            registered = champions(store, market=market, alias=alias)
        for model in registered:
            folder, command = model.folder, training_command(model)
            if alias == PREVIOUS:  # a training makes a new version
                command = RESTORE
            if model.run_fault:
                remedy = command if model.damage else undelete_command(store, model)
                yield folder, partial(str, model.run_fault), remedy
            for name, digest in (dict.fromkeys(NEEDED) | model.files).items():
                yield folder / name, partial(digest_fault, folder / name, digest), command
            if not model.digests:  # registered by a person
                yield folder / CONFIG, partial(model_folder.damage_of, folder, {}), command


def packaged_differences(home: Path, market: str) -> Iterator[Check]:
    """Yield the packaged models whose weights the registry does not know; one that cannot be read is told by the
    champions' check.
    """
    with suppress(CpbError), store_errors():
        for found in registry_differences(home, market, read_store()):
            if not found.behind:
                yield found.folder, partial(str, found.reason), found.command


def packaged_behind(home: Path, market: str) -> list[str]:
    """Return a sentence for each champion that is not packaged yet; what cannot be read is told by other checks."""
    with suppress(CpbError), store_errors():
        return [
            f"{found.folder.relative_to(home)}: {found.reason}; the next forecast or `{found.command}` brings it up to "
            "date"
            for found in registry_differences(home, market, read_store())
            if found.behind
        ]
    return []


def forecasts(home: Path, market: str) -> Iterator[Check]:
    """Yield a market's chain and its months of forecasts and scores, which come back from a published record alone."""
    for path, fault in check_months(home, market):
        command = RESTORE
        if fault and path == pending_path(home, market):
            command = _remove(path)
        elif fault and is_restorable(home, market, path):
            command = restore_command(home, market)
        elif fault and path != chain_path(home, market):
            command = way_back(home, market, path.relative_to(market_home(home, market)).as_posix())
        yield path, partial(str, fault), command


def published_record(home: Path, market: str) -> Iterator[Check]:
    """Yield a market's chain if it lacks what is published in the home, which is then the last copy."""
    if reason := record_loss(home, market):
        yield chain_path(home, market), partial(str, reason), restore_command(home, market)


def ledger_records(home: Path, market: str) -> Iterator[Check]:
    """Yield the records beside the ledger: drift watch, versions, derived figures, switches and submissions.

    Without scores no file there is provably cpb's.
    """
    ledger, stored = tree_of(home, "ledger", market), _series(home, "ledger", market)
    if stored:
        again = f"cpb forecast {options_of(stored)}"
        yield _record(ledger / "summary.json", LedgerSummary, market, again)
        yield _record(ledger / "watch.json", Watch, market, again)
    for series in stored:
        folder, again = series.folder(home, "ledger"), months.forecast_command(series)
        yield folder / DAILY, partial(parse_sums, folder / DAILY), again
        yield _record(settled_path(home, series), Settled, series.name, _remove(settled_path(home, series)))
    for path in switches.switch_files(home, market):
        yield _record(path, switches.Switch, switches.record_subject(path), RESTORE)
    for path in submissions.register_files(home, market):
        yield _record(path, submissions.Submission, switches.record_subject(path), RESTORE)


def published(home: Path, market: str) -> Iterator[Check]:
    """Yield each file of the published folder: models, card, library, record."""
    tree = tree_of(home, "hub", market)
    option = "" if market == SPOT else f" --market {market}"
    command = f"cpb publish --dry-run{option}"
    if not tree.exists() and (aside := folders_aside(tree)):
        yield tree, partial(str, f"a run that was killed left it as {aside[-1].name}"), command
    if not (tree / SUMS).exists() and not any(tree.glob(f"*/*/{CONFIG}")):
        return  # without list and models it was not written by cpb
    is_last_copy = bool(record_loss(home, market))
    for name, fault in tree_faults(tree).items():
        # the last copy is not made from the stored record
        is_kept = is_last_copy and (name == CHAIN or month_name(name))
        yield tree / name, partial(str, fault), f"{_FETCH}{option} --record copy" if is_kept else command


def results(home: Path, market: str) -> Iterator[Check]:
    """Yield a market's `results.json`, which is not replaced if it is not as cpb wrote it."""
    path = results_path(home, market)
    if path.exists():
        aside = path.with_name(f"{path.name}.aside")
        yield path, partial(results_fault, path), f"mv {shlex.join(map(str, (path, aside)))}"


def table_readings(home: Path, market: str) -> Iterator[Check]:
    """Yield how tables are read, as remembered from the commands that said so."""
    path = market_home(home, OWN) / REMEMBERED
    if market != OWN or not path.exists():
        return

    def fault() -> str:
        try:
            remembered(home)
        except UsageError as error:
            return str(error.__cause__)[:120]
        return ""

    yield path, fault, f"rm {shlex.quote(str(path))}"


SHARED_KINDS: dict[str, Callable[[Path], Iterator[Check]]] = {
    "version of the home": home_version,
    "record of the home's store": store_record,
    "MLflow store": mlflow_database,
}
"""The kinds of files that all markets share."""

KINDS: dict[str, Callable[..., Iterator[Check]]] = {
    "candles": candles,
    "readings of tables": table_readings,
    "features": features,
    "champions": champion_files,
    "packaged models": packaged_differences,
    "fleets": fleets,
    "published record": published_record,
    "forecasts": forecasts,
    "records of the ledger": ledger_records,
    "results": results,
    "published models": published,
}
"""The kinds of files, in the order of checking."""
