"""The judges of a run: resident processes on all cores that are free (`judge.py`), and what they are given to do."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

from schemas.errors import CpbError
from schemas.handover import Failure, TrainedMember
from tasks.running.parallel import run_each
from tasks.running.resident import Cores, Died, Pool, Resident
from tasks.training.files import LOG

log = logging.getLogger("cpb")

JUDGE = "tasks.judging.judge"
"""The module that judges."""

_AT_ONCE = 4
"""Members of an order: about half a second of work, so that all cores end at about the same time."""


class Judges:
    """As many judges as there are cores, each started when it is first needed; ended with the block.

    Args:
        cores: what they share with trainers.
        label: for `ps`: the home whose models they judge.
    """

    def __init__(self, cores: Cores, label: Path) -> None:
        self._cores = cores
        env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._pool = Pool([Resident(JUDGE, str(label), env) for _ in range(cores.number)])

    def __enter__(self) -> "Judges":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.stop()

    def judge(
        self, shard: Path, members: Sequence[TrainedMember], on_judged: Callable[[], None] = lambda: None
    ) -> list[Failure]:
        """Judge members of the shard in a folder, where their scores lie afterwards; return a failure per other one.

        `on_judged`: called after each member.
        """
        orders = [tuple(members[i : i + _AT_ONCE]) for i in range(0, len(members), _AT_ONCE)]
        calls = [partial(self._judge_some, shard, some, on_judged) for some in orders]
        failures: list[Failure] = []
        for found in run_each(calls, len(self._pool)):
            if isinstance(found, Exception):
                raise found
            failures += found
        return failures

    def _judge_some(
        self, shard: Path, members: Sequence[TrainedMember], on_judged: Callable[[], None]
    ) -> list[Failure]:
        order = {"folder": str(shard.absolute()), "names": [member.name for member in members]}
        try:
            with self._pool.lent() as judge, self._cores.held(1):
                found = judge.call(order, shard / LOG)
        except Died as end:
            if len(members) > 1:  # which of them ended it?
                log.warning("a judge ended with code %d; its members are judged one by one", end.returncode)
                return [f for member in members for f in self._judge_some(shard, [member], on_judged)]
            error = CpbError(
                f"the process that judges ended with code {end.returncode}: {end.last}", code="judge-died"
            )
            found = [Failure.of(members[0].model, "evaluate", error).model_dump(mode="json")]
        for _ in members:
            on_judged()
        return [Failure.model_validate(one) for one in found]
