"""Stands in for a program that a test does not run: looks at what the call names and does nothing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

name, *arguments = sys.argv[1:]


def main() -> None:
    if name == "curl" and any("127.0.0.1" in one for one in arguments):
        sys.exit(
            subprocess.run(["/usr/bin/curl", "--silent", "--show-error", "--fail", *arguments]).returncode
        )
    if name == "git" and arguments[:1] != ["clone"]:  # cpb itself asks for the commit that runs
        sys.exit(subprocess.run(["/usr/bin/git", *arguments]).returncode)
    if name == "pip":
        look_at_installation()
    if name == "git" and arguments[0] == "clone":  # the commands that follow enter it
        folder = Path(arguments[1].rpartition("/")[2].removesuffix(".git"))
        if not folder.exists():
            folder.symlink_to(".")


def look_at_installation() -> None:
    """A folder, a file of requirements or an extra that is named must be there."""
    assert arguments[0] == "install", arguments
    for flag, what in zip(arguments, [*arguments[1:], ""], strict=True):
        if flag in ("-r", "-c"):
            assert Path(what).is_file(), f"there is no {what}"
    for what in arguments[1:]:
        found = re.fullmatch(r"(\.[\w./-]*)?(?:\[([\w,]+)\])?", what)
        if what.startswith("-") or not found or not found[1]:
            continue
        project = Path(found[1]) / "pyproject.toml"
        assert project.is_file(), f"there is no {project}"
        extras = tomllib.loads(project.read_text())["project"].get("optional-dependencies", {})
        missing = {one for one in (found[2] or "").split(",") if one} - extras.keys()
        assert not missing, f"{project} has no extra {missing}"


main()
