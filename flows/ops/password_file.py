"""A random password in a file that only its owner can read; created once and kept over restarts.

Processes read the file themselves or inherit the password in their environment; it never appears on a command line, in
a unit file or in a log.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import CpbError
from tasks.storage.files import read_private, write_secret

USER = "cpb"


@dataclass(frozen=True)
class PasswordFile:
    """The path of a password, and instructions for a missing or unsafe file.

    Args:
        missing: why the file may be missing, and what creates it.
        remedy: how an unsafe file is replaced.
    """

    path: Path
    missing: str
    remedy: str

    def make(self) -> str:
        """Return `USER:PASSWORD`; create a random password if there is none yet."""
        if not self.path.is_symlink() and not self.path.exists():
            write_secret(self.path, f"{USER}:{secrets.token_urlsafe(32)}\n")
        return self.read()

    def read(self) -> str:
        """Return `USER:PASSWORD`.

        Raises:
            CpbError: the file does not exist, or other users could have read or written it.
        """
        try:
            text = read_private(self.path, 1000).strip()
        except FileNotFoundError as error:
            raise CpbError(
                f"{self.path} does not exist: {self.missing}", code="no-auth-file", field=str(self.path)
            ) from error
        except OSError as error:
            raise self._unsafe(error.strerror or "it cannot be opened") from error
        if not text.partition(":")[2]:
            raise self._unsafe("it contains no password")
        return text

    def _unsafe(self, why: str) -> CpbError:
        return CpbError(
            f"the password file {self.path} is not safe to use: {why}; {self.remedy}",
            code="auth-file-unsafe", field=str(self.path),
        )  # fmt: skip
