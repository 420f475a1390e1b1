"""Runs `cpb` and its trainers in children of one process that has the libraries in memory: they start in 0.1 s, not 3.

    python fork_server.py SOCKET

A client sends its arguments, folder and environment with its open files, and gets the exit code: what `cpb` in a
folder of `write_clients` does. The child runs `flows.cli.main()`, as the installed script does; its Python
(`forking-python` beside `cpb`) is a client, too: a trainer or judge that it starts is a child that goes on as one of
`multiprocessing`'s, and anything else the real Python executes. `forked-code CODE ARGUMENTS` executes code as
`python -c` does. Where a signal ends a child, its client ends by it. What libraries read of the environment when
they are imported (Prefect's settings) is that of the server.
"""

import fcntl
import gc
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

PYTHON, CODE = "forking-python", "forked-code"
CHILD = "--multiprocessing-fork"
"""The last argument of a process that `multiprocessing` starts."""
PRELOADED = (
    "mlflow.store.db.utils",
    "mlflow.store.model_registry.sqlalchemy_store",
    "mlflow.store.tracking.sqlalchemy_store",
    "huggingface_hub.file_download",
    "huggingface_hub.hf_api",
    "polars",
    "torch",
    "flows.train_all",
    "tasks.judging.judge",
    "tasks.market.simulator",
    "tasks.training.trainer",
)
"""What a training imports, also what it imports late."""

CLIENT = """#!{python} -SE
import json, os, socket, sys
name = os.path.basename(sys.argv[0])
if name == {python_name!r} and sys.argv[-1] != {child!r}:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
def is_open(number):
    try:
        return bool(os.fstat(number))
    except OSError:
        return False
files = [number for number in map(int, os.listdir("/dev/fd")) if is_open(number)]
link = socket.socket(socket.AF_UNIX)
link.connect({socket!r})
told = json.dumps([[os.path.abspath(sys.argv[0]), *sys.argv[1:]], os.getcwd(), dict(os.environ), files]).encode()
socket.send_fds(link, [len(told).to_bytes(4, "big")], files)
link.sendall(told)
code = link.recv(4)
code = int.from_bytes(code, "big", signed=True) if len(code) == 4 else 70
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def write_clients(folder, address):
    """Write the clients of the server at this address into a folder."""
    text = CLIENT.format(python=sys.executable, python_name=PYTHON, socket=str(address), child=CHILD)
    for name in ("cpb", PYTHON, CODE):
        client = folder / name
        client.write_text(text)
        client.chmod(0o755)


@contextmanager
def running(address, environment, folder):
    """Start a server and wait until it listens at this address, a path; it is killed at the end of the block."""
    # -P: beside this file lie folders of tests that have the packages' names.
    process = subprocess.Popen([sys.executable, "-P", __file__, address], env=environment, cwd=folder)
    try:
        deadline = time.monotonic() + 600
        while not address.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def serve(path: str) -> None:
    for name in PRELOADED:
        import_module(name)
    import flows.cli.app

    flows.cli.app._app()
    gc.freeze()  # children look for garbage among their own objects alone
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while True:
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            supervise(link)
        link.close()
        while True:  # children that have ended
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break


def supervise(link: socket.socket) -> None:
    """Run one command in a child and tell the client how it ended; stop it where the client is gone."""
    size, opened, _, _ = socket.recv_fds(link, 4, 250)
    told = b""
    while len(told) < int.from_bytes(size, "big"):
        told += link.recv(1 << 16)
    arguments, folder, environment, files = json.loads(told)
    child = os.fork()
    if child == 0:
        run(arguments, folder, environment, dict(zip(files, opened, strict=True)))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    link.settimeout(0.05)
    code = None
    while code is None:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        try:
            if link.recv(1) == b"":  # the client was stopped
                os.kill(child, signal.SIGTERM)
                link.settimeout(None)
                os.waitpid(child, 0)
                os._exit(0)
        except TimeoutError:
            continue
    link.sendall(code.to_bytes(4, "big", signed=True))
    os._exit(0)


def run(arguments: list[str], folder: str, environment: dict[str, str], files: dict[int, int]) -> None:
    apart = {number: fcntl.fcntl(file, fcntl.F_DUPFD, 1000) for number, file in files.items()}
    for number, file in apart.items():
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # found anew, in this environment
    program = Path(arguments[0])
    sys.argv = [program.name, *arguments[1:]]
    code = 1
    try:
        if program.name == "cpb":
            from flows.cli import main

            multiprocessing.set_executable(str(program.with_name(PYTHON)))
            main()
        elif program.name == CODE:
            sys.argv = ["-c", *arguments[2:]]
            exec(arguments[1], {"__name__": "__main__"})
        else:
            sys.argv = ["-c", CHILD]
            exec(arguments[-2], {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except Exception:  # noqa: BLE001 - a child tells every fault as Python itself would
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
