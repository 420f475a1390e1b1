"""The light library's wheel: everything in it, the same bytes each time, carried by an installed application."""

import io
import tomllib
import zipfile
from pathlib import Path

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


def test_the_application_needs_the_library_of_this_source():
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"cpbmodels=={cpbmodels.__version__}" in needed
