"""The table of error codes, read from the code: every error that is made with a code, and every kind that has one."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "tasks", "flows", "webapp")
EXITS = {"EXIT_FATAL": 1, "EXIT_USAGE": 2, "EXIT_PARTIAL": 3}
HOLE = "…"
"""What stands for a value in a sentence."""


class Kind(NamedTuple):
    """What a class of errors gives those that say nothing else."""

    code: str
    exit: int


def error_codes(root: Path = ROOT) -> dict[str, tuple[list[int], list[str]]]:
    """Each code, with the exit codes that it comes with and its sentences, in which `…` stands for a value."""
    trees = [
        ast.parse(path.read_text()) for package in PACKAGES for path in sorted((root / package).rglob("*.py"))
    ]
    constants = dict(pair for tree in trees for pair in _constants(tree))
    kinds = {"CpbError": Kind("error", 1), "Failure": Kind("error", 3)}
    for node in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for base in (base.id for base in node.bases if isinstance(base, ast.Name) and base.id in kinds):
            own = dict(_constants(node))
            exit_code = EXITS.get(own.get("exit_code", ""), kinds[base].exit)
            kinds[node.name] = Kind(own.get("default_code", kinds[base].code), exit_code)

    found: dict[str, tuple[set[int], list[str]]] = {}
    for tree in trees:
        computed = {
            target.id: node.value for node, target in _assigned(ast.walk(tree)) if target.id == "code"
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            kind = kinds.get(getattr(call.func, "id", ""))
            if kind is None:
                continue
            said = {word.arg: word.value for word in call.keywords}
            sentence = _text(call.args[0] if call.args else said.get("reason"), constants)
            given = said.get("code")
            given = (
                computed.get("code", given) if isinstance(given, ast.Name) and given.id == "code" else given
            )
            choices = [given.body, given.orelse] if isinstance(given, ast.IfExp) else [given]
            for code in (_text(choice, constants) if choice else kind.code for choice in choices):
                if code.strip(HOLE):
                    exits, sentences = found.setdefault(code, (set(), []))
                    exits.add(kind.exit)
                    sentences.append(sentence)
    return {code: (sorted(exits), sentences) for code, (exits, sentences) in sorted(found.items())}


def _constants(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Names that stand for a text, or for another name, at the top of a module or class."""
    for node, target in _assigned(tree.body):
        match node.value:
            case ast.Constant(value=str(text)) | ast.Name(id=text):
                yield target.id, text


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.Assign, ast.Name]]:
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node, node.targets[0]


def _text(node: ast.expr | None, constants: dict[str, str]) -> str:
    """What an expression says, as far as it is written there."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return constants.get(name, HOLE)
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, constants) for part in parts)
        case ast.FormattedValue(value=ast.Name() as name):
            return _text(name, constants)
        case ast.BinOp(left=left, right=right):
            return _text(left, constants) + _text(right, constants)
        case _:
            return HOLE
