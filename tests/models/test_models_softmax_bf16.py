import pytest
import torch

from cpbmodels.arch.layers import softmax


@pytest.mark.parametrize("width", [10, 30, 32])
def test_bf16_attention_shares_and_gradients_agree_with_float32(width):
    torch.manual_seed(0)
    mask = torch.full((width, width), -torch.inf).triu(1)
    scores = (torch.randn(8, width, width) * 3 + mask).bfloat16()
    grad = torch.randn(8, width, width).bfloat16()
    half, full = scores.clone().requires_grad_(), scores.float().requires_grad_()
    (got,) = torch.autograd.grad(softmax(half), half, grad)
    (want,) = torch.autograd.grad(torch.softmax(full, -1), full, grad.float())
    torch.testing.assert_close(softmax(half).float(), torch.softmax(full, -1), atol=4e-3, rtol=1e-2)
    torch.testing.assert_close(got.float(), want, atol=2e-2, rtol=5e-2)
