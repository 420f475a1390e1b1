"""Resident child processes: started once, they process request after request, and end with their parent process.

So a trainer imports torch and opens its device only once, a judge imports numpy only once, not for every
shard. A child is a process of `multiprocessing`'s spawn context that calls a module's `serve(requests)`; requests and
answers travel through a pipe, output goes to the request's log. `ProcessPoolExecutor` is not used: there one dead
worker fails every call, and a single call cannot be ended.
"""

import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from schemas.errors import CpbError
from tasks.storage.files import open_log
from tasks.storage.interrupts import check_interrupted, let_ctrl_c_end_waits, pause

_POLL_S = 0.05
_TERM_S, _KILL_S = 1.0, 0.6
"""Seconds for a child to end after SIGTERM, and after SIGKILL: Ctrl-C takes 3 s in total."""

_TAIL_BYTES = 1 << 16
_starting = threading.Lock()


class Requests:
    """The child's side: iterate over the requests, and `answer` each; the iteration ends with the parent."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    @property
    def waiting(self) -> bool:
        """Whether a request has arrived that was not taken yet."""
        return self._pipe.poll()

    def __iter__(self) -> Iterator[Any]:
        """Yield requests as they arrive; further output of the process goes to the request's log."""
        while True:
            try:
                request, log = self._pipe.recv()
            except EOFError:
                return
            if log:
                with open_log(log) as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
            yield request

    def answer(self, value: object = None) -> None:
        """Send the request's result to the parent."""
        # Before the answer: whoever has it may read the log, or end this process.
        sys.stdout.flush()
        sys.stderr.flush()
        self._pipe.send(value)


def _serve(module: str, pipe: Connection, words: Connection) -> None:
    """Run the child; a fatal error is its last output line."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    os.dup2(words.fileno(), 1)
    os.dup2(words.fileno(), 2)
    gc.set_threshold(5000)  # as in the command line: imports take less time
    try:
        import_module(module).serve(Requests(pipe))
    except (CpbError, ValueError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _end_with_parent(pid: int) -> None:
    """End this process with its parent: nobody needs its results, and it must not hold a device.

    The sentinel tells of a parent that died before this call, the parent's pid of one whose forked child keeps the
    sentinel open.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    while os.getppid() == pid and not wait([parent.sentinel], 0.5):
        pass
    os._exit(1)


@contextmanager
def _start_of_child(env: Mapping[str, str]) -> Iterator[None]:
    """Let a child that is started in the block inherit `env`, ignore Ctrl-C, and not import the main module.

    The C library and OpenMP read their variables when a process starts. The main module of a Prefect worker takes
    seconds to import.
    """
    with _starting:
        resource_tracker.ensure_running()  # its first start would let Ctrl-C through again
        before, main = {name: os.environ.get(name) for name in env}, sys.modules["__main__"]
        # A child inherits the mask: a terminal's Ctrl-C reaches all processes of its group, and the parent alone
        # decides how its children end.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        # spawn has no parameter for it: the child inherits this process's, so changes are made and undone under a
        # lock.
        os.environ.update(env)
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Died(Exception):
    """The child ended without an answer. `returncode` as in `subprocess`; `last`: the last line that it wrote."""

    def __init__(self, returncode: int, last: str) -> None:
        super().__init__(last)
        self.returncode, self.last = returncode, last


class WorkerProcess:
    """A child that runs a module's `serve`, started by `start` or its first request, and again after its death.

    `env`: added to this process's environment.
    """

    def __init__(self, module: str, env: Mapping[str, str]) -> None:
        self.module, self.env = module, env
        self._process: SpawnProcess | None = None
        self._pipe: Connection
        self._words: IO[bytes]

    @property
    def is_running(self) -> bool:
        """Whether the child was started and has not ended."""
        return self._process is not None and self._process.is_alive()

    def start(self) -> None:
        """Start the child unless it is running."""
        if self.is_running:
            return
        self.stop()
        context = multiprocessing.get_context("spawn")
        # What it says before its first request has no log yet: a failing import is found here.
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._pipe, theirs = context.Pipe()
        words = Connection(os.dup(self._words.fileno()), readable=False)
        with theirs, words, _start_of_child(self.env):
            self._process = context.Process(target=_serve, args=(self.module, theirs, words), daemon=True)
            self._process.start()

    def call(self, request: object, log: Path | None = None, each: Callable[[], None] = lambda: None) -> Any:
        """Send a request and return the answer.

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
        self.start()
        process = self._process
        assert process is not None
        try:
            with suppress(BrokenPipeError):  # it has ended: reading the answer reports that
                self._pipe.send((request, log))
            while not self._pipe.poll(_POLL_S):
                check_interrupted()
                each()
            with suppress(EOFError, ConnectionResetError):
                answer = self._pipe.recv()
                each()
                return answer
        except BaseException:
            self.stop()
            raise
        process.join(_TERM_S)
        last = (log and _last_line(log.open("rb"), begin)) or _last_line(self._words, 0) or "it wrote nothing"
        end = Died(process.exitcode or 0, last)
        self.stop()
        raise end

    def stop(self) -> None:
        """End the child: first by SIGTERM, which keeps its last checkpoint, then by SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return
        for end, seconds in ((process.terminate, _TERM_S), (process.kill, _KILL_S)):
            end()
            # Never wait without timeout: a process that survives SIGKILL hangs in a driver and keeps its device lock.
            process.join(seconds)
        self._pipe.close()
        self._words.close()


def _last_line(file: IO[bytes], begin: int) -> str:
    with file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


class Pool:
    """Children of one kind, each lent to one caller at a time; running children are lent first, in turn.

    In turn: a child whose device another process holds is not lent again at once while another is idle.
    """

    def __init__(self, residents: Sequence[WorkerProcess]) -> None:
        self.residents = tuple(residents)
        self._idle = list(residents)
        self._lock = threading.Lock()
        let_ctrl_c_end_waits()

    @contextmanager
    def lent(self) -> Iterator[WorkerProcess]:
        """Yield an idle child, waiting for it; an interrupt ends the wait."""
        while (resident := self._lend()) is None:
            pause(_POLL_S)
        try:
            yield resident
        finally:
            with self._lock:
                self._idle.append(resident)

    def _lend(self) -> WorkerProcess | None:
        with self._lock:
            # One that runs has its libraries and its device open: a second process starts only where the first is
            # busy.
            resident = min(self._idle, key=lambda idle: not idle.is_running, default=None)
            if resident:
                self._idle.remove(resident)
            return resident

    def stop(self) -> None:
        """End all children."""
        for resident in self.residents:
            resident.stop()
