"""A folder of wheels from which the project installs without an index: stand-ins of the packages it needs.

A stand-in has the name and version of the package that the tests run with, none of its own requirements and none of its
files, which a .pth file leads to. A package that is not among them cannot be installed.
"""

import base64
import hashlib
import os
import sys
import zipfile
from importlib.metadata import Distribution, distribution

from packaging.requirements import Requirement

WHOLE = ("setuptools",)
"""Packages whose wheels hold their files: a build runs in an environment of its own."""


def fill(folder, requirements):
    """Write a wheel for each required distribution, and those that a build needs; return the folder."""
    folder.mkdir()
    for name in {Requirement(one).name for one in requirements} | set(WHOLE):
        _write(folder, name, distribution(name), whole=name in WHOLE)
    return folder


def environment():
    """The variables of this process without those by which pip and uv are told of other places to install from."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}


def _write(folder, name, found: Distribution, *, whole):
    stem = f"{name.replace('-', '_')}-{found.version}"
    keep = [
        line for line in str(found.read_text("METADATA")).splitlines() if not line.startswith("Requires-Dist")
    ]
    files = {
        f"{stem}.dist-info/METADATA": "\n".join(keep).encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}.dist-info/entry_points.txt": str(found.read_text("entry_points.txt") or "").encode(),
    }
    if whole:
        for path in found.files or ():
            if ".dist-info" not in path.parts[0] and path.parts[0] != ".." and path.suffix != ".pyc":
                files[path.as_posix()] = path.read_binary()
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    files[record] = "\n".join([*lines, f"{record},,\n"]).encode()
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)


def _digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def lead_to_packages(site_packages):
    """Let an environment import the packages of the Python that runs the tests, behind its own.

    The .pth files in those folders, which lead to the clone, are not read.
    """
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site_packages / "third_party.pth").write_text("\n".join(folders))
