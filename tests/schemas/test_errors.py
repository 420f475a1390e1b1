"""What messages name as the command that installs a missing package."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from cpbmodels import errors
from cpbmodels.errors import pip_install
from schemas.errors import install_extra

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["tune", "postgres", "ray", "wandb"])
def test_an_extra_is_installed_for_the_running_interpreter_at_the_pinned_versions(extra, monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda name: name == "pip")  # also where uv made the environment
    command = install_extra(extra)
    words = shlex.split(command.strip("`"))
    assert words[:6] == [sys.executable, "-m", "pip", "install", "-c", str(ROOT / "constraints.txt")]
    assert [_parts(requirement) for requirement in words[6:]] == [
        _parts(requirement) for requirement in EXTRAS[extra]
    ]


def _parts(requirement):
    name, limits = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
    return name, set(limits.split(","))


def test_without_pip_it_is_uv_and_without_a_clone_nothing_is_pinned(monkeypatch, tmp_path):
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    assert pip_install("ray").startswith(f"uv pip install --python {sys.executable} -c ")
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "cpbmodels/errors.py"))
    assert pip_install("ray", "optuna>=4") == f"uv pip install --python {sys.executable} ray 'optuna>=4'"
