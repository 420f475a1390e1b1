"""torch's undocumented parts are used through one module, which says why and for which version."""

import torch

from cpbmodels.arch import torch_private


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
