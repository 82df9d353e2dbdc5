"""Layers that fedsim adds to torch's: maps averaged to fewer or more places."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from fedsim.models import layers
from fedsim.models.layers import average_by_matrices, average_maps


@pytest.mark.parametrize(("height", "width", "size"), [(7, 7, 3), (1, 1, 7), (4, 6, 4), (5, 9, 8), (8, 8, 4)])
def test_matrices_average_as_torch_does(height: int, width: int, size: int) -> None:
    x = torch.randn(2, 3, height, width, requires_grad=True)
    pull = torch.randn(2, 3, size, size)
    expected, found = F.adaptive_avg_pool2d(x, size), average_by_matrices(x, size)
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad((y * pull).sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*slopes)


def test_matrices_are_mapped_over() -> None:
    x = torch.randn(4, 2, 1, 5, 5)
    torch.testing.assert_close(
        vmap(lambda each: average_by_matrices(each, 3))(x),
        torch.stack([F.adaptive_avg_pool2d(each, 3) for each in x]),
    )


def test_only_overlapping_windows_off_the_cpu_are_averaged_by_matrices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU torch adds the gradients of such windows up in any order; on a CPU no bit changes."""
    by_matrices: list[tuple[str, int]] = []

    def noted(x: torch.Tensor, size: int) -> torch.Tensor:
        by_matrices.append((x.device.type, size))
        return average_by_matrices(x, size)

    monkeypatch.setattr(layers, "average_by_matrices", noted)
    for device in ("cpu", "meta"):
        x = torch.ones(1, 1, 8, 8, device=device)
        assert [average_maps(x, size).shape[-1] for size in (4, 3, 16)] == [4, 3, 16]
    assert by_matrices == [("meta", 3), ("meta", 16)]
    x = torch.randn(2, 3, 7, 7)
    assert torch.equal(average_maps(x, 4), F.adaptive_avg_pool2d(x, 4))
