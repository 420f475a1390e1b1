"""Step 3, plan: the fleets to train, decided before anything is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from schemas.errors import DamagedError, MemberError
from schemas.handover import Failure, FleetPlan, JobMember, SeriesRecord
from schemas.identity import ModelId
from schemas.run import RunSpec
from tasks.forecasting.staleness import STOPPED_AFTER
from tasks.promotion.night import idle_architectures
from tasks.running.step import step
from tasks.signals.feature_files import load_series
from tasks.signals.splits import split_bounds
from tasks.training.plan import member_seed, plan_fleet, preset_label


@dataclass(frozen=True)
class Plan:
    """The series that can be trained, a fleet per architecture, and why the other series are left out.

    `stopped`: series no longer traded, which is not a failure. `idle`: what a run with `serving` leaves
    out, in a sentence.
    """

    series: tuple[SeriesRecord, ...]
    fleets: tuple[FleetPlan, ...]
    failures: tuple[Failure, ...]
    stopped: tuple[SeriesRecord, ...]
    idle: str


@step("plan")
def plan(spec: RunSpec, records: Sequence[SeriesRecord], gpus: bool = False) -> Plan:
    """Return the fleets of a run; they depend only on the specification and the data, not on the machine.

    With `serving` they also depend on the registry.

    `gpus`: the shards are to be trained on GPUs, and are sized for them.
    """
    newest = max((r.last_us for r in records), default=0)
    oldest = newest - STOPPED_AFTER // timedelta(microseconds=1)
    stopped = [r for r in records if r.last_us < oldest]
    records = [r for r in records if r.last_us >= oldest]
    timeframes = dict.fromkeys(r.series.timeframe for r in records)
    bounds = {t: split_bounds([r for r in records if r.series.timeframe == t]) for t in timeframes}
    usable, failures = [], []
    for record in records:
        try:
            load_series(spec.scope.home, record, bounds[record.series.timeframe])
            usable.append(record)
        except (MemberError, DamagedError) as error:
            failures.append(Failure.of(record.series, "plan", error))
    idle = idle_architectures(spec, [r.series for r in usable])
    fleets = []
    for name in spec.names:
        label = preset_label(spec, name)
        members = [
            JobMember(
                model=ModelId(name, label, r.series, member_seed(spec.seed, name, r.series)),
                features=r,
                bounds=bounds[r.series.timeframe],
            )
            for r in usable
            if name not in idle.get(r.series.timeframe, ())
        ]
        if members:
            fleets.append(plan_fleet(spec, name, members, gpu=gpus))
    return Plan(tuple(usable), tuple(fleets), tuple(failures), tuple(stopped), idle_sentence(idle))


def idle_sentence(idle: Mapping[str, Sequence[str]]) -> str:
    """Return a sentence on the architectures that are not trained, by timeframe; "" without any."""
    left = "; ".join(f"{', '.join(names)} at {timeframe}" for timeframe, names in idle.items())
    return f"not trained, as they serve no coin there: {left}" if left else ""
