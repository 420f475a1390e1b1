"""Storable identities of processes, by which a later run knows whether the writer of a mark is still running."""

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 22 - 3  # of /proc/PID/stat, counted after the name in parentheses, which may contain spaces


@dataclass(frozen=True)
class ProcessId:
    """A process of one boot of one host: pids are reused, and have no meaning on another machine.

    Args:
        boot_id: the kernel's id of this boot; empty if the system has none.
        started: start time in seconds: since boot on Linux, unaffected by clock changes, else since 1970.
    """

    host: str
    boot_id: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> "ProcessId":
        """Return the calling process."""
        return cls(socket.gethostname(), _boot_id(), os.getpid(), _start_time(os.getpid()) or 0.0)

    @classmethod
    def parse(cls, text: str) -> "ProcessId":
        """Return the process of a text made by `str`; raises `ValueError` for any other text."""
        host, boot_id, pid, started = text.split("|")
        return cls(host, boot_id, int(pid), float(started))

    def __str__(self) -> str:
        """Return `HOST|BOOT|PID|STARTED`, for labels and tags."""
        return f"{self.host}|{self.boot_id}|{self.pid}|{self.started:.2f}"

    def is_alive(self) -> bool | None:
        """Whether this process is still running; None if it belongs to another host, so that it is unknown."""
        if self.host != socket.gethostname():
            return None
        if self.boot_id != _boot_id():
            return False
        started = _start_time(self.pid)
        # stored with two decimals, and a clock tick is a hundredth of a second
        return started is not None and abs(started - self.started) < 0.02


def _start_time(pid: int) -> float | None:
    """Return the start time of a process, as in `ProcessId`; None if it has ended or is a zombie."""
    try:
        if not _BOOT_ID.exists():  # no Linux
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else round(process.create_time(), 2)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, psutil.NoSuchProcess):
        return None
    return None if fields[0] in "ZX" else int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")


@cache
def _boot_id() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
