"""The clients of `benchmarks.serve`, apart from it: their process, which is made anew, imports nothing else."""

import http.client
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

Times = list[tuple[str, float, int]]
"""Address, seconds and bytes of every answer."""


def get(connection: http.client.HTTPConnection, path: str) -> tuple[str, float, int]:
    """Ask once, read the answer to its end, and return the route's name, seconds and bytes."""
    begun = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    size = len(answer.read())
    assert answer.status == 200, (answer.status, path)
    return "/".join(path.partition("?")[0].split("/")[:3]), time.perf_counter() - begun, size


def load(port: int, paths: list[str], clients: int, seconds: float, pause: float) -> Times:
    """Ask from so many clients side by side, each at most once in `pause` seconds."""
    turns, start = count(), time.perf_counter()

    def client(number: int) -> Times:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        times, due = [], start + pause * number / clients
        while due < start + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            times.append(get(connection, paths[next(turns) % len(paths)]))
            due = max(due + pause, time.perf_counter())
        return times

    with ThreadPoolExecutor(clients) as pool:
        return [timing for timings in pool.map(client, range(clients)) for timing in timings]


def ask_each(port: int, paths: Sequence[str]) -> Times:
    """Ask for each path in turn, on one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    return [get(connection, path) for path in paths]


def ask_times(port: int, paths: Sequence[str], clients: int, times: int) -> Times:
    """Ask so often for the paths in turn, from so many clients side by side, five times a second each."""

    def client(number: int) -> Times:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        answers = []
        for turn in range(number, times, clients):
            answers.append(get(connection, paths[turn % len(paths)]))
            time.sleep(0.2)
        return answers

    with ThreadPoolExecutor(clients) as pool:
        return [timing for timings in pool.map(client, range(clients)) for timing in timings]
