"""The light library's wheel: everything in it, the same bytes each time, carried by an installed application."""

import io
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

import cpbmodels
from tasks.storage import wheel

ROOT = Path(__file__).parents[2]


def test_it_holds_every_module_and_nothing_else():
    built = wheel.light_wheel()
    assert built.name == f"cpbmodels-{cpbmodels.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(io.BytesIO(built.data)) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = archive.read(f"cpbmodels-{cpbmodels.__version__}.dist-info/METADATA").decode()
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cpbmodels").rglob("*.py")}
    assert inside == sources | {"cpbmodels/py.typed"}
    needed = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line
    ]
    assert {line.split()[1].rstrip("<>=!0123456789.,") for line in needed} == {
        "torch",
        "numpy",
        "safetensors",
        "polars",
    }


def test_the_same_source_gives_the_same_bytes_and_a_clean_folder(tmp_path):
    first = wheel.light_wheel()
    before = {path.name for path in (ROOT / "cpbmodels").iterdir()}
    wheel.light_wheel.cache_clear()
    path = wheel.main(tmp_path)
    assert path.read_bytes() == first.data
    assert {path.name for path in (ROOT / "cpbmodels").iterdir()} == before


def test_the_wheel_that_an_installed_cpb_carries_is_the_one_that_travels(tmp_path, monkeypatch):
    built = wheel.light_wheel()
    (tmp_path / built.name).write_bytes(built.data)
    monkeypatch.setattr(wheel, "__file__", str(tmp_path / "wheel.py"))
    monkeypatch.setattr(wheel, "build_light_wheel", None)
    wheel.light_wheel.cache_clear()
    assert wheel.light_wheel() == built
    wheel.light_wheel.cache_clear()


OURS = re.compile(r"cpb(models|-forecast)?", re.IGNORECASE)


def test_nothing_of_ours_is_asked_of_an_index():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    assert len(needed) > 30
    assert not [one for one in needed if OURS.fullmatch(Requirement(one).name)]


def test_the_application_needs_all_that_its_own_library_needs():
    project, library = (
        tomllib.loads((ROOT / name).read_text())["project"]["dependencies"]
        for name in ("pyproject.toml", "cpbmodels/pyproject.toml")
    )
    asked = {requirement.name: requirement.specifier for requirement in map(Requirement, project)}
    for requirement in map(Requirement, library):
        assert requirement.name in asked
        if requirement.name == "torch":
            assert asked["torch"] == requirement.specifier


def test_a_second_library_is_told_by_every_command(tmp_path):
    folder = tmp_path / "cpbmodels-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: cpbmodels\nVersion: 0.1.0\n")
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]),
        "CPB_HOME": str(tmp_path / "data"),
    }
    told = subprocess.run(
        [sys.executable, "-m", "flows.cli", "doctor", "--quick", "--json"],
        capture_output=True,
        text=True,
        env=env,
    )
    assert "cpbmodels 0.1.0 is installed beside cpb" in told.stderr
    assert "uninstall cpbmodels" in told.stderr
    found = json.loads(told.stdout)
    assert (found["ok"], told.returncode) == (False, 1)
    assert "cpbmodels 0.1.0" in str(found["problems"])
