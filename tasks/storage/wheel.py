"""The light library as a wheel, built from the running source, stored with the models that it trained.

`python -m tasks.storage.wheel FOLDER` writes it to a folder (`make wheel`).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import cpbmodels
from schemas.errors import CpbError
from tasks.storage.files import write_bytes

_BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
_EPOCH = "315532800"  # 1980-01-01, the first date of the zip format: the same source gives the same bytes


@dataclass(frozen=True)
class Wheel:
    """A wheel: its file name and its bytes."""

    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        """Digest (hex) by which pip checks it: `URL#sha256=...`."""
        return sha256(self.data).hexdigest()


@cache
def light_wheel() -> Wheel:
    """Build the wheel of `cpbmodels`, once per process; takes about two seconds and 0.1 MB.

    Raises:
        CpbError: the build failed; the message includes its last line.
    """
    source = Path(cpbmodels.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        # a copy: setuptools leaves build folders beside the source, and file modes differ between clones
        copy, out = Path(folder, "cpbmodels"), Path(folder, "dist")
        shutil.copytree(
            source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
        )
        for path in copy.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": _EPOCH}
        done = subprocess.run(
            [sys.executable, "-c", _BUILD, str(out)],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise CpbError(f"the wheel of cpbmodels could not be built: {reason[:300]}", code="wheel")
        built = next(out.glob("*.whl"))
        return Wheel(built.name, built.read_bytes())


def main(folder: Path) -> Path:
    """Write the wheel to a folder and return its path."""
    wheel = light_wheel()
    path = folder / wheel.name
    write_bytes(path, wheel.data)
    return path


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
