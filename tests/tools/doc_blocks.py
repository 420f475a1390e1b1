"""The fenced blocks of the documents, and the commands in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SKILL.md",
        ROOT / "cpbmodels/README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)
EXECUTED = ("python", "toml")
"""Kinds of block that a test executes."""
SHELL = ("sh", "console")
"""Kinds whose commands a test reads: `console` is commands behind `$` with what they print."""
SHOWN = ("text", "powershell", "dockerfile")
"""Kinds that show output, a drawing, lines of another system's shell, or of another project's file."""


@dataclass(frozen=True)
class Block:
    """One fenced block: where it begins, its info string, and what it says."""

    page: str
    line: int
    kind: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    """Every fenced block of every page, in order."""
    return [block for path in PAGES for block in _blocks(path)]


def _blocks(path: Path) -> list[Block]:
    fenced, opened = [], None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = re.match(r"(\s*)(```+)(.*)", line)
        if opened is None and fence:
            opened = (number, fence[3].strip(), len(fence[1]), [])
        elif opened is not None and fence and not fence[3].strip():
            start, kind, indent, lines = opened
            text = "\n".join(text_line[indent:] for text_line in lines) + "\n"
            fenced.append(Block(path.relative_to(ROOT).as_posix(), start, kind, text))
            opened = None
        elif opened is not None:
            opened[3].append(line)
    assert opened is None, f"{path}: a fence is not closed"
    return fenced


def script(block: Block) -> str:
    """The shell script of a block; in a console only the lines behind `$ ` and their continuations."""
    if block.kind == "sh":
        return block.text
    lines, going_on = [], False
    for line in block.text.splitlines():
        if line.startswith("$ ") or going_on:
            lines.append(line.removeprefix("$ "))
            going_on = line.endswith("\\")
    return "\n".join(lines) + "\n"


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^\s*```.*?^\s*```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def cpb_commands() -> list[tuple[str, list[str]]]:
    """Every `cpb …` in code, inline or in a block, as (place, words)."""
    commands = []
    for path in PAGES:
        inline = re.findall(r"`(?:\.venv/bin/)?(cpb [^`\n]+)`", prose(path))
        commands += [(path.relative_to(ROOT).as_posix(), line) for line in inline]
    for block in blocks():
        if block.kind in SHELL:
            lines = script(block).replace("\\\n", " ").splitlines()
            hits = [re.search(r"(?:^|[\s/;&(])(cpb [a-z].*)", line) for line in lines]
            commands += [(block.place, hit[1]) for hit in hits if hit]
    return [(place, words) for place, line in commands if (words := _words(line))]


def _words(line: str) -> list[str]:
    line = re.split(r"\s(?:&&|\|\||;|\|)\s|\s#", line)[0]
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
