"""Checks every trained fleet: its records, its models against the trainer's digests, and what judging added to them.

A fleet with a damaged record or model loses its record, so that the same command trains it again; scores and pictures
are deleted, as the same command makes them again from the models.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import Damage, FleetJob, FleetResult
from schemas.identity import SPOT, SeriesId, is_series_name, market_home
from tasks.storage.damage import VERIFY, Seen, damage_at, unseen
from tasks.storage.model_folder import (
    METRICS,
    PICTURES,
    REFERENCE,
    metrics_damage,
    picture_damage,
    read_reference,
)
from tasks.storage.npz import read_npz
from tasks.storage.records import member_subject, parse_record, set_aside
from tasks.training.files import JOB, RESULT, damaged_files, fleet_folders, is_training

_SET_ASIDE = "set aside; the command that trained this fleet trains it again"


def verify(home: Path, market: str = SPOT, *, repair: bool = False, seen: Seen = unseen) -> Iterator[Damage]:
    """Yield each damaged file of a market's fleets; a fleet that is being trained is left out.

    Args:
        repair: set a damaged record, and the result of a fleet with a damaged model, aside; delete damaged scores
            and pictures. The command that trained the fleet makes them again.
        seen: called with each file that is checked.
    """
    for folder in fleet_folders(market_home(home, market)):
        if _market_of(folder) == market and not is_training(folder):
            yield from _verify_fleet(home, folder, repair, seen)


def _market_of(folder: Path) -> str:
    """Return the market of a fleet by its members' names, since its records may be damaged; spot where none tells."""
    for name in (folder / JOB, folder / RESULT):
        try:
            return str(json.loads(name.read_bytes())["body"]["members"][0]["model"]["series"]["market"])
        except (OSError, ValueError, LookupError, TypeError):
            continue
    members = folder / "members"
    for member in sorted(members.iterdir()) if members.is_dir() else ():
        if is_series_name(series := member.name.split("-fold-")[0]):
            return SeriesId.parse(series).market
    return SPOT


def _verify_fleet(home: Path, folder: Path, repair: bool, seen: Seen) -> Iterator[Damage]:
    records, faults = {}, {}
    for name, kind in ((JOB, FleetJob), (RESULT, FleetResult)):
        path = folder / name
        seen(path)
        try:
            records[name] = parse_record(path, kind, of=folder.name)
        except FileNotFoundError:
            continue  # not trained yet, or set aside
        except DamagedError as error:
            faults[path] = str(error)
    if not records and not (folder / "worker.log").exists():
        return  # nothing says that it is cpb's
    for path, fault in faults.items():
        if repair:
            set_aside(path, fault)
        reason = f"the record is not what was written: {fault}"
        yield damage_at(home, path, reason, VERIFY, repair, outcome=_SET_ASIDE)
    job, result = records.get(JOB), records.get(RESULT)
    command = _command(job) if isinstance(job, FleetJob) else VERIFY
    if isinstance(result, FleetResult):
        yield from _verify_models(home, folder, result, command, repair, seen)
        yield from _verify_judged(home, folder, result, command, repair, seen)


def _verify_models(
    home: Path, folder: Path, result: FleetResult, command: str, repair: bool, seen: Seen
) -> Iterator[Damage]:
    for member in result.members:
        for name in member.files:
            seen(folder / "members" / member.name / "model" / name)
    found = list(damaged_files(folder, result))
    if found and repair:
        record = folder / RESULT
        set_aside(record, f"{found[0][0]} is damaged, so this fleet is trained again")
    for path, reason in found:
        yield damage_at(
            home, path, reason, command, repair, outcome=f"set aside; `{command}` trains it again"
        )


def _verify_judged(
    home: Path, folder: Path, result: FleetResult, command: str, repair: bool, seen: Seen
) -> Iterator[Damage]:
    judged = (METRICS, REFERENCE, *PICTURES)
    for member in result.members:
        place = folder / "members" / member.name
        scores = sorted(place.glob("score-*.npz"))
        derived = [*place.glob("*.npz"), *(place / "model" / name for name in judged)]
        for path in (p for p in derived if p.is_file()):
            seen(path)
            if not (reason := _derived_damage(path)):
                continue
            if repair:  # without a score the member is judged again, which writes all of these
                for one in (path, *scores):
                    one.unlink(missing_ok=True)
            yield damage_at(
                home, path, reason, command, repair, outcome=f"removed; `{command}` makes it anew"
            )


def _derived_damage(path: Path) -> str:
    try:
        if path.suffix == ".npz":
            read_npz(path)
        elif path.suffix == ".png":
            return picture_damage(path)
        elif path.name == REFERENCE:
            return _reference_damage(path)
        else:
            return metrics_damage(path.parent)
    except DamagedError:
        return "its arrays are not those that were written there"
    except FileNotFoundError:  # a run at work has just judged it, or replaced it
        pass
    return ""


def _reference_damage(path: Path) -> str:
    try:
        read_reference(path.parent, of=member_subject(path))
    except DamagedError as error:
        return str(error).removeprefix(f"{path} is damaged: ")
    return ""


def _command(job: FleetJob) -> str:
    """Return a command that trains these models again (options of the first run, such as seeds, are its user's)."""
    series = [member.model.series for member in job.members]
    first = series[0]
    coins = ",".join(dict.fromkeys(s.symbol for s in series))
    timeframes = ",".join(dict.fromkeys(s.timeframe for s in series))
    every = f"{coins} --timeframes {timeframes}"
    scope = first.options.replace(f"{first.symbol} --timeframes {first.timeframe}", every)
    command = "backtest" if any(member.fold for member in job.members) else "train-all"
    return f"cpb {command} {scope} --architectures {job.architecture} --preset {job.preset}"
