"""Which torch build fits a driver and a chip, and the command that installs it."""

import json
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from cpbmodels.doctor import builds

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("targets", "capability", "runs"),
    [
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_80"], (9, 0), False),
        (["compute_80"], (9, 0), True),
        (["compute_90"], (8, 0), False),
        (["sm_90a"], (9, 0), True),
        (["sm_100a"], (10, 3), False),
        (["sm_100f"], (10, 3), True),
        (["sm_100f"], (11, 0), False),
        (["compute_90a"], (10, 0), False),
        (["sm_100", "sm_120"], (12, 0), True),
        (["gfx90a", "nonsense", ""], (9, 0), False),
        # torch 2.11's builds, as `torch.cuda.get_arch_list()` lists them: a P100, and Kaggle's T4
        (["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"], (6, 0), False),
        (["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"], (7, 5), True),
        (["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"], (6, 0), True),
    ],
)
def test_code_runs_on_the_chips_that_cuda_promises(targets, capability, runs):
    assert builds.supports(targets, capability) is runs


T4, P100, V100, H100, BLACKWELL, K80, KEPLER = (7, 5), (6, 0), (7, 0), (9, 0), (12, 0), (3, 7), (3, 5)


@pytest.mark.parametrize(
    ("driver", "chip", "machine", "tag"),
    [
        ("580.159.03", T4, "x86_64", "cu130"),
        ("580.159.03", P100, "x86_64", "cu126"),  # CUDA 13 has no Pascal and no Volta
        ("580.159.03", V100, "x86_64", "cu126"),
        ("550.54.15", T4, "x86_64", "cu126"),
        ("550.54.15", None, "x86_64", "cu126"),
        ("570.86.10", BLACKWELL, "x86_64", "cu128"),  # CUDA 12.6 has no Blackwell
        ("580.65.06", BLACKWELL, "x86_64", "cu130"),
        ("470.223.02", P100, "x86_64", "cu118"),
        ("470.223.02", K80, "x86_64", "cu118"),
        ("440.33.01", T4, "x86_64", None),
        ("470.223.02", KEPLER, "x86_64", None),
        ("580.159.03", H100, "aarch64", "cu130"),
        ("580.159.03", T4, "aarch64", None),
        ("470.223.02", H100, "aarch64", None),
        ("580.159.03", None, "ppc64le", None),
    ],
)
def test_the_build_for_a_driver_and_a_chip(driver, chip, machine, tag, monkeypatch):
    monkeypatch.setattr(builds.platform, "machine", lambda: machine)
    build = builds.build_for(driver, chip)
    assert (build and build.tag) == tag


def test_what_no_driver_helps_is_told_from_what_a_newer_one_does(monkeypatch):
    monkeypatch.setattr(builds.platform, "machine", lambda: "x86_64")
    assert builds.oldest_driver(T4) == "450.80"
    assert builds.oldest_driver(BLACKWELL) == "525.60"
    assert builds.oldest_driver(KEPLER) is None


@given(
    driver=st.tuples(st.integers(300, 700), st.integers(0, 200)),
    capability=st.tuples(st.integers(3, 12), st.integers(0, 9)),
    newer=st.integers(0, 100),
)
def test_a_newer_driver_takes_no_build_away(driver, capability, newer):
    build = builds.build_for(f"{driver[0]}.{driver[1]}", capability)
    later = builds.build_for(f"{driver[0] + newer}.{driver[1]}", capability)
    assert build is None or later is not None


def test_the_version_is_kept_where_it_has_the_build(monkeypatch):
    by_tag = {build.tag: build for build in builds.BUILDS}
    assert by_tag["cu126"].version("2.11.0+cpu") == "2.11.0"
    assert by_tag["cu128"].version("2.13.0+cu130") == "2.11.0"
    assert by_tag["cu118"].version("2.6.0") == "2.6.0"
    assert by_tag["cu126"].version("2.15.0.dev20261001+cu130") == builds.NEWEST
    assert by_tag["cu130"].version("2.13.1") == builds.NEWEST


def test_the_command_names_the_build_and_conda_lets_go_first(monkeypatch, tmp_path):
    build = next(build for build in builds.BUILDS if build.tag == "cu126")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    pip = f"{sys.executable} -m pip install torch==2.13.0+cu126 --index-url https://download.pytorch.org/whl/cu126"
    assert builds.install_command(build, "2.13.0+cpu") == pip
    assert not builds.in_conda()
    (tmp_path / "conda-meta").mkdir()
    assert builds.in_conda()
    assert builds.install_command(build, "2.13.0+cpu") == pip
    (tmp_path / "conda-meta" / "pytorch-2.9.0-cpu.json").write_text(json.dumps({}))
    assert (
        builds.install_command(build, "2.13.0") == f"conda remove --yes --prefix {tmp_path} pytorch && {pip}"
    )


def test_every_build_is_of_a_torch_that_cpb_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch = next(r for r in map(Requirement, project["dependencies"]) if r.name == "torch").specifier
    assert f">={builds.OLDEST}" in str(torch)
    assert f"<={builds.NEWEST}" in str(torch)
    assert all(torch.contains(version) for b in builds.BUILDS for version in (b.oldest, b.newest))


def test_the_page_on_installing_has_the_table_of_builds():
    page = (ROOT / "docs" / "install.md").read_text()
    for build in builds.BUILDS:
        driver = builds.MIN_DRIVER[build.cuda]
        command = f"pip install torch=={build.newest}+{build.tag} --index-url {builds.INDEX}/{build.tag}"
        row = next(line for line in page.splitlines() if f"`{command}`" in line)
        assert driver in row
        chips = [target for target in build.targets["x86_64"] if target.startswith("sm_")]
        assert chips[0] in row
        assert chips[-1] in row
