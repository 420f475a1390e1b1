"""Runs `cpb` and its trainers in children of one process that has the libraries in memory: they start in 0.1 s, not 3.

    python fork_server.py SOCKET

A client sends its arguments, folder and environment with its three streams, and gets the exit code: what `cpb` in the
workspace's `bin` does. The child runs `flows.cli.main()`, as the installed script does; its Python
(`CPB_DOCS_PYTHON`) is a client, too: a trainer or judge that it starts is a child that calls
`tasks.running.resident.main`, and anything else the real Python executes.
"""

import json
import os
import signal
import socket
import sys

TRAINER = "tasks.running.resident"

CLIENT = """#!{python} -SE
import json, os, socket, sys
name = os.path.basename(sys.argv[0])
if name != "cpb" and sys.argv[1:3] != ["-m", {trainer!r}]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
link = socket.socket(socket.AF_UNIX)
link.connect({socket!r})
told = json.dumps([[name, *sys.argv[1:]], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(link, [len(told).to_bytes(4, "big")], [0, 1, 2])
link.sendall(told)
code = link.recv(4)
sys.exit(int.from_bytes(code, "big") if len(code) == 4 else 70)
"""


def serve(path: str) -> None:
    import mlflow  # noqa: F401
    import polars  # noqa: F401
    import torch  # noqa: F401

    import flows.cli
    import flows.train_all
    import tasks.judging.judge
    import tasks.training.trainer  # noqa: F401

    flows.cli._app()
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
    size, streams, _, _ = socket.recv_fds(link, 4, 3)
    told = b""
    while len(told) < int.from_bytes(size, "big"):
        told += link.recv(1 << 16)
    arguments, folder, environment = json.loads(told)
    child = os.fork()
    if child == 0:
        run(arguments, folder, environment, streams)
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
    link.sendall((code if code >= 0 else 128 - code).to_bytes(4, "big"))
    os._exit(0)


def run(arguments: list[str], folder: str, environment: dict[str, str], streams: list[int]) -> None:
    for here, there in enumerate(streams):
        os.dup2(there, here)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    code = 1
    try:
        if arguments[0] == "cpb":
            from flows.cli import main

            sys.executable = environment["CPB_DOCS_PYTHON"]
            main()
        else:
            from tasks.running.resident import main as serve_orders

            os.environ["CPB_CHILD_OF"] = str(
                os.getppid()
            )  # not the process that wants it, whose end closes the pipe
            sys.argv = arguments[2:]
            serve_orders()
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
