"""torch's undocumented parts are used through one module, which says why and for which version."""

import ast
from pathlib import Path

import pytest
import torch

from cpbmodels.arch import torch_private

PACKAGE = Path(torch_private.__file__).parent


def private_uses(path: Path) -> list[str]:
    """`torch._x`, `torch.a._b`, `torch.ops...` and imports from private modules or of private names of torch."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
            parts = ast.unparse(node).split(".")[1:]
            if parts[0] == "ops" or any(part.startswith("_") and part != "__version__" for part in parts):
                found.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += [f"{path.name}:{node.lineno} {name}" for name in names if name.startswith("_")]
        if isinstance(node, ast.Attribute) and node.attr == "_version":
            found.append(f"{path.name}:{node.lineno} {node.attr}")
    return found


def test_no_other_module_uses_them():
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "torch_private.py"]
    assert not [use for path in files for use in private_uses(path)]
    assert private_uses(PACKAGE / "torch_private.py")  # the search finds what there is


NAMES = [
    one
    for one in vars(torch_private)
    if one[0] != "_" and one not in ("annotations", "Any", "torch", "Tensor")
]


@pytest.mark.parametrize("name", NAMES)
def test_each_is_there_and_says_what_it_was_checked_with(name):
    assert callable(getattr(torch_private, name))
    source = (PACKAGE / "torch_private.py").read_text()
    assert source.count("Checked: torch") == len(NAMES)


def test_derivatives_are_those_of_autograd():
    x = torch.linspace(-3, 3, 24, dtype=torch.float64).view(4, 6).requires_grad_()
    grad = torch.linspace(1, 2, 24, dtype=torch.float64).view(4, 6)

    def expected(function):
        y = function(x)
        return y.detach(), torch.autograd.grad(y, x, grad)[0]

    for function, backward in (
        (torch.tanh, torch_private.tanh_backward),
        (torch.sigmoid, torch_private.sigmoid_backward),
    ):
        y, wanted = expected(function)
        torch.testing.assert_close(backward(grad, y), wanted)
    y, wanted = expected(torch.tanh)
    into = torch.zeros(4, 8, dtype=torch.float64)
    torch_private.tanh_backward_into(grad, y, grad_input=into.narrow(1, 2, 6))
    torch.testing.assert_close(into[:, 2:], wanted)
    assert (into[:, :2] == 0).all()
    y, wanted = expected(lambda x: torch.softmax(x, -1))
    torch.testing.assert_close(torch_private.softmax_backward(grad, y, -1, y.dtype), wanted)


def test_whether_a_cpu_has_bf16_is_a_flag():
    assert isinstance(torch_private.bf16_in_cpu_hardware(), bool)
