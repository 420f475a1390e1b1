"""Trains planned fleets: their shards in one queue, on whatever the run's engine has."""

from collections.abc import Sequence

from flows.runner import Runner
from schemas.handover import FleetPlan, FleetResult
from schemas.run import RunSpec
from tasks.train import train
from tasks.training.engine import Engine
from tasks.training.executor import EngineLost
from tasks.training.planning import job_key, shards_of
from tasks.training.told import FleetTold


def train_fleets(
    spec: RunSpec, steps: Runner, engine: Engine, fleets: Sequence[FleetPlan], *, again: bool = True
) -> list[list[FleetResult | Exception]]:
    """Train the fleets and leave the engine; return what became of each one's shards, in order, or the step's error.

    `again`: what was trained before is used, also by other machines (`CPB_STORE`); False to train anew.

    Raises:
        EngineLost: the run's engine is gone; what was finished is used by the next call.
    """
    queue, told = shards_of(fleets), {fleet.architecture: FleetTold(fleet) for fleet in fleets}
    executor = engine.executor(len(queue), again=again)
    calls = [
        (shard, spec.scope.root, executor, spec.train_timeout_s, told[shard.architecture]) for shard in queue
    ]
    found = dict(zip(map(job_key, queue), steps.each(train, calls, workers=executor.calls), strict=True))
    engine.leave()
    if lost := next((one for one in found.values() if isinstance(one, EngineLost)), None):
        raise lost
    return [[found[job_key(shard)] for shard in fleet.shards] for fleet in fleets]
