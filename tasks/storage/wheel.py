"""The light library as a wheel, stored with the models that it trained.

An installed cpb has it beside this module; a clone builds it from the running source. `setup.py`, which puts it there,
runs this module too: nothing outside the standard library and this project's errors is imported.

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
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from cpbmodels.errors import pip
from schemas.errors import CpbError

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
    """Return the wheel of `cpbmodels`, 0.1 MB; a clone builds it once per process, in about two seconds.

    Raises:
        CpbError: the build failed; the message includes its last line.
    """
    if shipped := next(Path(__file__).parent.glob("cpbmodels-*.whl"), None):
        return Wheel(shipped.name, shipped.read_bytes())
    spec = find_spec("cpbmodels")
    assert spec is not None
    assert spec.origin is not None
    return build_light_wheel(Path(spec.origin).parent)


def build_light_wheel(source: Path) -> Wheel:
    """Build the wheel of `cpbmodels` from its folder; the same source and setuptools give the same bytes.

    Raises:
        CpbError: the build failed; the message includes its last line.
    """
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


def second_library() -> tuple[str, str] | None:
    """Return what is wrong and its remedy where this environment has the light library's distribution beside cpb.

    cpb contains the package `cpbmodels`: the two distributions write the same files, and which version runs is chance.
    """
    try:
        found = version("cpbmodels")
    except PackageNotFoundError:
        return None
    return (
        f"cpbmodels {found} is installed beside cpb, which contains a package of that name: either may be imported",
        f"run `{pip('uninstall', 'cpbmodels')}`, then install cpb again (`make install` in a clone does both)",
    )


def main(folder: Path) -> Path:
    """Write the wheel to a folder and return its path."""
    wheel = light_wheel()
    path = folder / wheel.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wheel.data)
    return path


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
