"""`make install` says which build of torch comes and how large it is, then what the folder has, and what is next."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.tools.doc_blocks import ROOT


def made(tmp_path, *, torch="", machine="Linux x86_64"):
    """The lines of `make install` where pip installs nothing; `torch`: what lies in .venv, by its version file."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    programs, others = tmp_path / ".venv/bin", tmp_path / "others"
    for folder, name, text in (
        # no packages but those in this folder
        (programs, "python", f'PYTHONPATH={others} exec {sys.executable} -S "$@"'),
        (programs, "pip", "exit 0"),
        (others, "uname", f"echo {machine}"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    if torch:
        (others / "torch").mkdir(exist_ok=True)
        (others / "torch/__init__.py").write_text("raise ImportError('it takes seconds')")
        (others / "torch/version.py").write_text(f"__version__ = '2.13.0'\n{torch}\n")
    env = os.environ | {"PATH": f"{others}:{os.environ['PATH']}", "MAKEFLAGS": ""}
    done = subprocess.run(
        ["make", "--silent", "install", "UV=0"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("torch", "machine", "first"),
    [
        ("cuda = None", "Linux x86_64", ("with the CPU build of torch that is there", " 2 GB on disk")),
        ("cuda = '13.0'", "Linux x86_64", ("with the GPU build of torch that is there", " 6 GB on disk")),
        ("cuda = None\nhip = '6.4'", "Linux x86_64", ("with the GPU build of torch that is there", " 6 GB")),
        ("", "Linux x86_64", ("with torch's CUDA build", " 6 GB on")),
        ("", "Darwin arm64", ("with torch's CPU build, the only one for macOS", " 2 GB on disk")),
        ("", "Linux aarch64", ("2 GB on disk; with a CUDA build of torch 3 and 6 GB",)),
    ],
)
def test_it_says_first_which_build_comes_and_its_size(tmp_path, torch, machine, first):
    said = made(tmp_path, torch=torch, machine=machine)[0]
    assert said.startswith("Installing cpb into .venv")
    assert all(part in said for part in first), said


@pytest.mark.parametrize(
    ("torch", "build"),
    [("cuda = None", "CPU"), ("cuda = '13.0'", "CUDA"), ("cuda = None\nhip = '6.4'", "ROCm")],
)
def test_it_ends_with_what_this_machine_has_and_what_is_next(tmp_path, torch, build):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/large").write_bytes(os.urandom(300_000_000))
    *_, has, following = made(tmp_path, torch=torch)
    assert has == f"cpb is installed: .venv has 0.3 GB, with torch's {build} build."
    assert following == "Next: make demo"
