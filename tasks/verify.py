"""Checks every stored artefact of one or all markets: candles, features, fleets, champions, forecasts and the ledger.

Not a step of the DAG: `cpb verify` runs it separately. Each kind has a manifest of its files
(`tasks.storage.checked_files`); the manifests of candles, forecasts, champions and the published folder are beside the
code that repairs them, the others here. If damage prevents checking one kind, the other kinds are still checked.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from schemas.errors import CpbError, DamagedError
from schemas.handover import Damage, SeriesRecord, ShardJob, ShardResult
from schemas.identity import SPOT, SeriesId, is_series_name, market_home, options_of, tree_of
from schemas.ledger import DailyState, KnownVersions, LedgerSummary
from schemas.reference import Reference
from tasks.forecasting.check_months import forecasts
from tasks.forecasting.daily import DAILY
from tasks.forecasting.drift import Watch
from tasks.hub.tree import published
from tasks.market.damage import candles
from tasks.market.klines import TREES
from tasks.promotion import by_backtest
from tasks.promotion.by_backtest import Submission, Switch
from tasks.signals.feature_files import write_features
from tasks.storage.checked_files import (
    REPAIRED,
    VERIFY,
    Asked,
    Manifest,
    Mend,
    Stored,
    damages,
    digest_fault,
    record_fault,
    record_file,
    removed,
    sound_record,
)
from tasks.storage.files import check_writable, read_json_or_none
from tasks.storage.model_folder import (
    METRICS,
    PICTURES,
    REFERENCE,
    metrics_damage,
    picture_damage,
    trained_file_damage,
)
from tasks.storage.records import member_subject, parse_record, read_npz, set_aside
from tasks.tracking.verify import champions_files
from tasks.training.files import JOB, PROGRESS, RESULT, is_training, shard_folders

log = logging.getLogger("cpb")


@dataclass
class Verification:
    """The findings: number of files checked, the damage, and a sentence for each kind that could not be checked.

    `rows_before`: by market, the forecast and score rows stored before their chain began, which therefore does not
    record their time.
    """

    checked: int = 0
    rows_before: dict[str, int] = field(default_factory=dict)
    damaged: list[Damage] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def remaining(self) -> list[Damage]:
        """The damage that was not repaired."""
        return [damage for damage in self.damaged if not damage.repaired]

    @property
    def is_good(self) -> bool:
        """Whether everything was checked and no damage remains."""
        return not self.remaining and not self.unchecked


def verify_all(
    home: Path,
    markets: Sequence[str],
    *,
    repair: bool = False,
    source: str | None = None,
    seen: Callable[[int], None] = lambda _checked: None,
) -> Verification:
    """Check all artefacts of the markets, and with `repair` fetch or recreate them where possible.

    Args:
        source: where damaged candles are fetched from; None: Binance Vision (or the simulator).
        seen: called with the number of files checked so far.

    Raises:
        UsageError: with `repair`, if the home cannot be written.
    """
    if repair:
        check_writable(home)
    result = Verification()

    def count(_path: Path) -> None:
        result.checked += 1
        seen(result.checked)

    for market in markets:
        asked = Asked(home, market, repair, source, result.rows_before)
        for kind, manifest in KINDS.items():
            try:
                for damage in damages(asked, manifest, count):
                    # The futures' candles share the spot manifest: it is reported once.
                    if damage.path not in {known.path for known in result.damaged}:
                        result.damaged.append(damage)
            except (CpbError, OSError) as error:
                result.unchecked.append(f"the {kind} of market {market} could not be checked: {error}")
    return result


def features(asked: Asked) -> Iterator[Stored]:
    """Yield stored features and their records. They are derived: damaged files are deleted and computed again.

    A feature file without a record is not damage: a run was stopped between the two, and the next run writes both.
    """
    for folder in (series.folder(asked.home, "features") for series in asked.series("features")):
        for path in sorted(folder.glob("*.json")):
            data = path.with_suffix(".parquet")
            if TREES["features"].fullmatch(data.name):
                of = data.relative_to(asked.home).as_posix()
                record = sound_record(path, SeriesRecord, of)
                remove = removed("removed; the next run computes it anew", data, path)
                yield replace(record_file(path, SeriesRecord, of, ""), mend=remove)
                if record:
                    again = partial(_compute_again, asked.home, record, remove)
                    yield Stored(data, record.file_digest, mend=again)


def _compute_again(home: Path, record: SeriesRecord, remove: Mend, reason: str) -> str:
    """Delete a damaged file with its record, and compute it again from the same candles if available."""
    outcome = remove(reason)
    first, last = (datetime.fromtimestamp(us / 1e6, UTC) for us in (record.first_us, record.last_us))
    end = last + timedelta(seconds=record.series.seconds)
    try:
        again = write_features(home, record.series, since=first, as_of=end)
    except CpbError as error:  # its candles are damaged or missing, as reported by their own check
        log.info("%s cannot be computed now: %s", record.path, error)
        return outcome
    return REPAIRED if again.path == record.path else outcome  # the candles or the code have changed


def fleets(asked: Asked) -> Iterator[Stored]:
    """Yield a market's fleets: records, models, and files added by judging; a fleet in training is left out.

    If a fleet's record or model is damaged, its record is set aside, so that the same command trains it again; damaged
    scores and pictures are deleted, as the same command recreates them from the models.
    """
    aside = "set aside; the command that trained this fleet trains it again"
    for folder in shard_folders(market_home(asked.home, asked.market)):
        job = sound_record(folder / JOB, ShardJob, folder.name)
        result = sound_record(folder / RESULT, ShardResult, folder.name)
        is_own = job or result or (folder / "worker.log").exists()
        if not is_own or is_training(folder) or _market_of(folder, job) != asked.market:
            continue
        yield record_file(folder / JOB, ShardJob, folder.name, aside)  # missing records are skipped
        yield record_file(folder / RESULT, ShardResult, folder.name, aside)
        command = _command(job) if job else VERIFY
        if (progress := folder / PROGRESS).exists():
            remove = removed("removed; only a training in progress needs it", progress)
            yield Stored(progress, mend=remove, check=partial(_progress_fault, progress))
        for member in result.members if result else ():
            place = folder / "members" / member.name
            for path, digest in ((place / "model" / name, digest) for name, digest in member.files.items()):
                again = partial(_train_again, folder, path, command)
                yield Stored(path, None, command, again, partial(trained_file_damage, path, digest))
            yield from _judged(place, command)


def _progress_fault(path: Path) -> str:
    return (
        ""
        if isinstance(read_json_or_none(path), dict)
        else "it is not the JSON object that was written there"
    )


def _market_of(folder: Path, job: ShardJob | None) -> str:
    """Return the market of a fleet, from its job or else its members' folders; spot if unknown."""
    if job:
        return job.members[0].model.series.market
    names = (path.name.split("-fold-")[0] for path in sorted(folder.glob("members/*")))
    return next((SeriesId.parse(name).market for name in names if is_series_name(name)), SPOT)


def _train_again(folder: Path, path: Path, command: str, _reason: str) -> str:
    """Set the result of a fleet with a damaged model aside, if not done yet."""
    if (record := folder / RESULT).exists():
        set_aside(record, f"{path} is damaged, so this shard is trained again")
    return f"set aside; `{command}` trains it again"


def _judged(place: Path, command: str) -> Iterator[Stored]:
    """Yield the scores and pictures of a member; without a score it is judged again, which rewrites all of them."""
    scores = sorted(place.glob("score-*.npz"))
    judged = (place / "model" / name for name in (METRICS, REFERENCE, *PICTURES))
    for path in [*place.glob("*.npz"), *judged]:
        if path.is_file():
            mend = removed(f"removed; `{command}` makes it anew", path, *scores)
            yield Stored(path, None, command, mend, partial(_judged_fault, path))


def _judged_fault(path: Path) -> str:
    if path.name == METRICS:
        return metrics_damage(path.parent)
    if path.name == REFERENCE:
        return record_fault(path, Reference, member_subject(path))
    if path.suffix == ".npz":
        try:
            read_npz(path)
        except DamagedError as error:
            raise DamagedError("its arrays are not those that were written there") from error
        return ""
    return picture_damage(path)


def _command(job: ShardJob) -> str:
    """Return a command that trains these models again, on the candles up to the same time.

    Options of the first run, such as seeds and source, must be added by the user.
    """
    scope = options_of([member.model.series for member in job.members])
    command = "backtest" if any(member.fold for member in job.members) else "train-all"
    end = max(member.features.last_us + member.model.series.seconds * 1_000_000 for member in job.members)
    until = datetime.fromtimestamp(end / 1e6, UTC).strftime("%Y-%m-%dT%H:%M")
    return f"cpb {command} {scope} --architectures {job.architecture} --preset {job.preset} --as-of {until}"


def ledger_records(asked: Asked) -> Iterator[Stored]:
    """Yield the records beside the ledger: evidence of pairs, drift watch, versions, derived figures.

    Without scores no file there is provably cpb's.
    """
    again, series = "set aside; the next `cpb forecast` makes it again", asked.series("ledger")
    known = "set aside; versions that forecast again are noted again, the recipes of older ones are lost"
    ledger = tree_of(asked.home, "ledger", asked.market)
    if series:
        yield record_file(ledger / "summary.json", LedgerSummary, asked.market, again)
        yield record_file(
            ledger / "watch.json", Watch, asked.market, "set aside; the drift watch begins anew"
        )
    for one, folder in ((one, one.folder(asked.home, "ledger")) for one in series):
        daily = record_file(folder / "daily.json", DailyState, one.name, again)
        yield replace(daily, check=partial(_daily_fault, daily.path, one))
        yield record_file(folder / "versions.json", KnownVersions, one.name, known)
    for path in by_backtest.switch_files(asked.home, asked.market):
        coins = "set aside; coins that have not followed the switch keep their champions"
        yield record_file(path, Switch, by_backtest.about_switch(path), coins)
    for path in by_backtest.register_files(asked.home, asked.market):
        outcome = "set aside; its recipes still count as submitted"
        yield record_file(path, Submission, by_backtest.about(path), outcome)


def _daily_fault(path: Path, series: SeriesId) -> str:
    digest = parse_record(path, DailyState, of=series.name).digest
    beside = digest_fault(path.with_name(DAILY), digest)
    return beside and f"{DAILY} beside it is not the file that was recorded"


KINDS: dict[str, Manifest] = {
    "candles": candles,
    "features": features,
    # Before the fleets: a champion's files are copied back from its fleet.
    "champions": champions_files,
    "fleets": fleets,
    "forecasts": forecasts,
    "records of the ledger": ledger_records,
    "published models": published,
}
"""The kinds of artefacts, in the order of checking."""
