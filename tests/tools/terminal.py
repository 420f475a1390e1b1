"""A program in a real pseudo-terminal, where Ctrl-C is a key."""

import contextlib
import fcntl
import os
import pty
import selectors
import signal
import struct
import subprocess
import termios
import time


def _as_from_a_shell():
    """Take the terminal, and heed Ctrl-C, which what was started in the background ignores, and so do its children."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """Runs a command whose terminal is ours; `screen` is what it has shown so far."""

    def __init__(self, command, columns=80, **options):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_as_from_a_shell,
            **options,
        )
        os.close(slave)
        self._selector = selectors.DefaultSelector()  # select() fails with descriptors of 1024 and more
        self._selector.register(self._master, selectors.EVENT_READ)
        self.screen = ""

    def read_until(self, done, timeout=60):
        """Read until `done()` holds; its error is the screen."""
        end = time.monotonic() + timeout
        while not done():
            ended = self.process.poll() is not None and not done()
            assert not ended, f"it ended with {self.process.returncode}; the screen:\n{self.screen[-2000:]}"
            assert time.monotonic() < end, f"waited {timeout} s in vain; the screen:\n{self.screen[-2000:]}"
            self._read(0.05)

    def type(self, text):
        """Press keys."""
        os.write(self._master, text.encode())

    def press_ctrl_c(self):
        """Press the key, wait for the end, and return the seconds that took."""
        began = time.monotonic()
        os.write(self._master, b"\x03")
        self.read_until(lambda: self.process.poll() is not None, 30)
        seconds = time.monotonic() - began
        while self._read(0):
            pass
        return seconds

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._selector.close()
        os.close(self._master)

    def _read(self, timeout):
        if not self._selector.select(timeout):
            return False
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            if data := os.read(self._master, 65536):
                self.screen += data.decode(errors="replace")
                return True
        time.sleep(min(timeout, 0.05))
        return False
