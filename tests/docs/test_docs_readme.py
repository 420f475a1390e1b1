"""README shows what it says: its commands print what stands under them, its map names what there is."""

import os
import re
import shlex
import subprocess

import pytest

from tests.tools.doc_blocks import ROOT, blocks

MARKET = ROOT / "../shared/market"
AS_OF = ("--as-of", "2025-06-06")
SHOWN = [block for block in blocks() if block.page == "README.md"]
NUMBER = re.compile(r"(?<![\w-])\d[\d,]*(?:\.\d+)?(?=[ %]|$)")


def block(kind):
    (found,) = [one.text for one in SHOWN if one.kind == kind]
    return found


def read(line):
    """A line's words, and its numbers apart: their last digits depend on the processor."""
    return " ".join(NUMBER.sub("#", line).split()), [float(n.replace(",", "")) for n in NUMBER.findall(line)]


@pytest.mark.slow
@pytest.mark.skipif(not MARKET.is_dir(), reason="needs ../shared/market")
def test_the_first_command_prints_what_stands_under_it(tmp_path, forking):
    def cpb(*words):
        done = subprocess.run(
            [forking / "cpb", *words, *AS_OF],
            cwd=tmp_path,
            env={**os.environ, "CPB_HOME": str(tmp_path / "data"), "COLUMNS": "80"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    train = re.search(r"^\.venv/bin/cpb (train-all .*?)  +#", block("sh"), re.MULTILINE)[1]
    cpb(*shlex.split(train), "--source", str(MARKET))
    command, *told = [line for line in block("console").splitlines() if line not in ("", "…")]
    printed = iter(
        map(read, cpb(*shlex.split(command.removeprefix("$ .venv/bin/cpb ")), "--offline").splitlines())
    )
    assert len(told) > 10
    for words, numbers in map(read, told):
        # The next printed line like it: README leaves steps out.
        assert any(
            words == said and numbers == pytest.approx(came, rel=1e-3, abs=0.3) for said, came in printed
        )


def test_the_map_names_the_folders_and_the_steps_in_the_order_of_the_flow():
    drawn = block("text")
    assert len(drawn.splitlines()) == 6
    folders = re.findall(r"(?:^|; )(\w+)/", drawn, re.MULTILINE)
    assert {"flows", "tasks", "cpbmodels", "schemas", "webapp", "tests", "mlruns"} <= {*folders}
    ignored = (ROOT / ".gitignore").read_text()
    assert all((ROOT / name).is_dir() or f"/{name}/" in ignored for name in folders)
    steps = re.search(r"\w+(?: → \w+)+", drawn)[0].split(" → ")
    flow = (ROOT / "docs/architecture.md").read_text()
    assert steps == [name for name in re.findall(r"^\| (\w+) \|", flow, re.MULTILINE) if name in steps]
