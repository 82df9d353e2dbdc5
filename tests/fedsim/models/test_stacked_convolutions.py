"""Convolutions of a stack as products of matrices, which a GPU computes faster: here on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedsim.models import compiled
from fedsim.models.compiled import compile_module


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(5, 1, 0), (3, 1, 1), (3, 2, 1), ((1, 3), (2, 1), (0, 1)), (1, 1, 0)]
)
def test_a_product_of_matrices_is_the_convolution(
    kernel: int, stride: int, padding: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients of three clients' kernels at once, and of each alone."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, kernel, stride, padding, bias=bias).double()
    (step,) = compile_module(layer, "conv")
    params = {
        f"conv.{name}": torch.randn(3, *value.shape, dtype=torch.float64, requires_grad=True)
        for name, value in layer.named_parameters()
    }
    images = torch.randn(3, 2, 3, 9, 8, dtype=torch.float64, requires_grad=True)

    def outcome() -> list[Tensor]:
        outputs = vmap(step)(params, images)
        inputs = [*params.values(), images]
        return [outputs, *torch.autograd.grad(outputs.square().sum(), inputs)]

    expected = outcome()
    called = []
    matrices = compiled.convolve_by_matrices
    monkeypatch.setattr(compiled, "multiplies_matrices", lambda *_: not called.append(1))
    monkeypatch.setattr(compiled, "convolve_by_matrices", lambda *given: matrices(*given))
    found = outcome()
    assert called
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    alone = [
        matrices(image, params["conv.weight"][n], None, layer.stride, layer.padding)
        for n, image in enumerate(images)
    ]
    shifts = params.get("conv.bias", torch.zeros(3, 4))
    torch.testing.assert_close(torch.stack(alone) + shifts[:, None, :, None, None], expected[0])


def test_an_empty_batch_has_empty_outputs() -> None:
    kernel = torch.zeros(4, 3, 5, 5)
    found = compiled.convolve_by_matrices(torch.zeros(0, 3, 9, 8), kernel, None, (1, 1), (0, 0))
    assert found.shape == (0, 4, 5, 4)


def test_outputs_are_laid_out_as_those_of_a_convolution() -> None:
    """A module of a user may call `view` on them."""
    found = compiled.convolve_by_matrices(
        torch.zeros(2, 3, 9, 8), torch.zeros(4, 3, 5, 5), None, (1, 1), (0, 0)
    )
    assert found.is_contiguous()
