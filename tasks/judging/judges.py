"""The resident processes that judge: what a run asks of them, on all cores that it shares with the trainers."""

from pathlib import Path
from types import TracebackType
from typing import Any

from schemas.errors import CpbError
from tasks.running.cores import Cores
from tasks.running.resident import Died, Pool, WorkerProcess

MEMBERS = "tasks.judging.judge"
"""The module of judges of a shard's members; a backtest's judges run `tasks.backtesting.rolling`."""


class JudgeDied(CpbError):
    """A process that judges ended without an answer; the next request starts another."""

    default_code = "judge-died"


class Judges:
    """A judge per core, started on first use and stopped at the end of the block.

    `cores`: the cores shared with trainers. `module`: its `serve` answers the requests.
    """

    def __init__(self, cores: Cores, module: str = MEMBERS) -> None:
        # Started by their first request: a run that finds all its scores starts none.
        self._cores = cores
        # One thread each: there is a judge per core already, and sums over a varying number of threads round
        # differently. No GPU: a context costs hundreds of MB on a device that is still training.
        env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._pool = Pool([WorkerProcess(module, env) for _ in range(cores.number)])

    def __enter__(self) -> "Judges":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.stop()

    @property
    def number(self) -> int:
        """How many requests are answered at once."""
        return self._cores.number

    def ask(self, request: object, log: Path | None = None) -> Any:
        """Return the answer of an idle judge, which holds a core meanwhile; called from any thread.

        Args:
            log: file to which the judge's output is appended.

        Raises:
            JudgeDied: the process ended without an answer.
        """
        try:
            # The process first: whoever held a core while waiting for a process would keep a trainer from it.
            with self._pool.lent() as judge, self._cores.held(1):
                return judge.call(request, log)
        except Died as end:
            raise JudgeDied(f"the process that judges ended with code {end.returncode}: {end.last}") from end
