"""The judges of a run: resident processes on all free cores (`judge.py`), and their orders."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

from schemas.errors import CpbError
from schemas.handover import Failure, TrainedMember
from tasks.running.parallel import run_each
from tasks.running.resident import Cores, Died, Pool, Resident
from tasks.training.shard import LOG

log = logging.getLogger("cpb")

JUDGE = "tasks.judging.judge"
"""The module that the processes run."""

_AT_ONCE = 4
"""Members per order: about half a second of work, so that all cores finish at about the same time."""


class Judges:
    """A judge per core, started on first use and stopped at the end of the block.

    `cores`: the cores shared with trainers.
    """

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._pool = Pool([Resident(JUDGE, env) for _ in range(cores.number)])

    def __enter__(self) -> "Judges":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.stop()

    def judge(
        self, shard: Path, members: Sequence[TrainedMember], on_judged: Callable[[], None] = lambda: None
    ) -> list[Failure]:
        """Judge members of the shard in a folder, and write their scores there; return a failure per unjudged member.

        `on_judged`: called after each member.
        """
        orders = [tuple(members[i : i + _AT_ONCE]) for i in range(0, len(members), _AT_ONCE)]
        calls = [partial(self._judge_some, shard, some, on_judged) for some in orders]
        failures: list[Failure] = []
        for found in run_each(calls, self._cores.number):
            if isinstance(found, Exception):
                raise found
            failures += found
        return failures

    def _judge_some(
        self, shard: Path, members: Sequence[TrainedMember], on_judged: Callable[[], None]
    ) -> list[Failure]:
        order = shard.absolute(), [member.name for member in members]
        try:
            with self._pool.lent() as judge, self._cores.held(1):
                failures: list[Failure] = judge.call(order, shard.absolute() / LOG)
        except Died as end:
            if len(members) > 1:  # find the member that caused it
                log.warning("a judge ended with code %d; its members are judged singly", end.returncode)
                return [f for member in members for f in self._judge_some(shard, [member], on_judged)]
            error = CpbError(
                f"the process that judges ended with code {end.returncode}: {end.last}", code="judge-died"
            )
            failures = [Failure.of(members[0].model, "evaluate", error)]
        for _ in members:
            on_judged()
        return failures
