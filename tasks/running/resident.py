"""Resident child processes: started once, they process order after order, and end with their parent process.

So a trainer imports torch and opens its device only once, a judge imports numpy and matplotlib only once, not for every
shard. Orders and answers are lines of JSON: on the child's standard input, and on its original standard output (output
of libraries goes to the order's log). `ProcessPoolExecutor` is not used: there one dead worker fails every call, and a
single call cannot be ended. The child is `python -m tasks.running.resident MODULE LABEL`, which calls the module's
`serve(orders)`; it watches its parent from before that module's heavy imports.
"""

import gc
import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from schemas.errors import CpbError
from tasks.storage.files import open_log
from tasks.storage.locks import check_interrupted, let_ctrl_c_end_waits, pause

_PARENT = "CPB_CHILD_OF"
_POLL_S = 0.05
_TERM_S, _KILL_S = 1.0, 0.6
"""Seconds for a child to end after SIGTERM, and after SIGKILL: Ctrl-C takes 3 s in total."""

_TAIL_BYTES = 1 << 16

Order = dict[str, Any]


class Orders:
    """The child's side: iterate over the orders, and `answer` each; the process ends with its parent.

    The results of a child with a dead parent are not needed: it must neither hold a device, nor race with the child
    started when the same command is repeated. The kernel closes the pipe of orders however the parent dies. A process
    forked by the parent keeps it open: hence the check of the parent's pid, which changes for an orphan.
    """

    def __init__(self) -> None:
        self._parent = int(os.environ.pop(_PARENT, "0"))
        self._answers = os.dup(1)
        os.dup2(2, 1)
        self._orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True, name="orders").start()

    def _read(self) -> None:
        half = b""
        while os.getppid() == self._parent:
            if select.select([0], [], [], 0.5)[0]:
                if not (found := os.read(0, 1 << 16)):
                    break
                *lines, half = (half + found).split(b"\n")
                for line in lines:
                    self._orders.put(line)
        os._exit(1)

    @property
    def waiting(self) -> bool:
        """Whether an order has arrived that was not taken yet."""
        return not self._orders.empty()

    def __iter__(self) -> Iterator[Order]:
        """Yield orders as they arrive; further output of the process goes to the order's log."""
        while True:
            order = json.loads(self._orders.get())
            if log := order.pop("log", None):
                with open_log(Path(log)) as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
            yield order

    def answer(self, value: object = None) -> None:
        """Report to the parent that the order is done, with its result (JSON)."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(self._answers, json.dumps(value).encode() + b"\n")  # fits into the pipe: a single write


class Died(Exception):
    """The child ended without an answer. `returncode` as in `subprocess`; `last`: the last line that it wrote."""

    def __init__(self, returncode: int, last: str) -> None:
        super().__init__(last)
        self.returncode, self.last = returncode, last


class Resident:
    """A child that runs a module's `serve`, started by `start` or its first order, and again after its death.

    Args:
        label: shown by `ps`, to identify the parent.
        env: added to this process's environment.
        fds: descriptors that the child inherits.
    """

    def __init__(self, module: str, label: str, env: Mapping[str, str], fds: Sequence[int] = ()) -> None:
        self.module = module
        self._command = [sys.executable, "-m", "tasks.running.resident", module, label]
        self._env, self._fds = env, tuple(fds)
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the child was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the child unless it is running."""
        if self.is_running:
            return
        self.stop()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - output before the first order; closed by `stop`
        self._process = subprocess.Popen(
            self._command, env=os.environ | self._env | {_PARENT: str(os.getpid())}, pass_fds=self._fds,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words, start_new_session=True,
        )  # fmt: skip

    def call(self, order: Order, log: Path | None = None, each: Callable[[], None] = lambda: None) -> Any:
        """Send an order and return the answer.

        Args:
            log: file to which the child's output is appended meanwhile.
            each: called every 0.05 s while the child is working; an error that it raises ends the child.

        Raises:
            Died: the child ended without an answer.
            CpbError: the log cannot be written.
        """
        begin = 0
        if log:
            with open_log(log) as file:
                begin = os.fstat(file.fileno()).st_size
            order = order | {"log": str(log.absolute())}
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # it has ended: reading the answer reports that
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()
            ready = select.poll()  # not `select.select`, which is limited to descriptors below 1024
            ready.register(process.stdout, select.POLLIN)
            while not ready.poll(_POLL_S * 1000):
                check_interrupted()
                each()
            if line := process.stdout.readline():
                each()
                return json.loads(line)
        except BaseException:
            self.stop()
            raise
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERM_S)
        end = Died(process.poll() or 0, self._last_words(log, begin))
        self.stop()
        raise end

    def _last_words(self, log: Path | None, begin: int) -> str:
        """Return the child's last output line since the order, or else since its start."""
        if log and (found := _last_line(log.open("rb"), begin)):
            return found
        assert self._words is not None
        return _last_line(self._words, 0) or "it wrote nothing"

    def stop(self) -> None:
        """End the child: first by SIGTERM, which keeps its last checkpoint, then by SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return
        for end, seconds in ((process.terminate, _TERM_S), (process.kill, _KILL_S)):
            if process.poll() is not None:
                break
            end()
            # Never wait without timeout: a process that survives SIGKILL hangs in a driver and keeps its device lock.
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        for pipe in (process.stdin, process.stdout, self._words):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def _last_line(file: IO[bytes], begin: int) -> str:
    with file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


class Cores:
    """The cores of this machine, shared by trainers and judges: the cores held never exceed the total."""

    def __init__(self, number: int) -> None:
        self.number, self._free = number, number
        self._changed = threading.Condition()

    @contextmanager
    def held(self, wanted: int) -> Iterator[None]:
        """Hold `wanted` cores (at most all) during the block, waiting for them; an interrupt ends the wait."""
        wanted = min(wanted, self.number)
        with self._changed:
            while self._free < wanted:
                self._changed.wait(0.2)
                check_interrupted()
            self._free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()


class Pool:
    """Children of one kind, each lent to one caller at a time; running children are lent first."""

    def __init__(self, residents: Sequence[Resident]) -> None:
        self._all = tuple(residents)
        self._idle = list(residents)
        self._lock = threading.Lock()
        let_ctrl_c_end_waits()

    def __len__(self) -> int:
        """Return the number of children."""
        return len(self._all)

    def start(self) -> None:
        """Start all children, in the background."""
        for one in self._all:
            one.start()

    @contextmanager
    def lent(self, usable: Callable[[Resident], bool] = lambda one: True) -> Iterator[Resident]:
        """Yield an idle child that is `usable`, waiting for it; an interrupt ends the wait."""
        while (one := self._take(usable)) is None:
            pause(_POLL_S)
        try:
            yield one
        finally:
            with self._lock:
                self._idle.append(one)

    def _take(self, usable: Callable[[Resident], bool]) -> Resident | None:
        with self._lock:
            for one in sorted(self._idle, key=lambda one: not one.is_running):
                if usable(one):
                    self._idle.remove(one)
                    return one
        return None

    def stop(self) -> None:
        """End all children."""
        for one in self._all:
            one.stop()


def main() -> None:
    """Run the child; a fatal error is its last output line."""
    gc.set_threshold(5000)  # as in the command line: imports take less time
    orders = Orders()
    try:
        import_module(sys.argv[1]).serve(orders)
    except (CpbError, ValueError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
