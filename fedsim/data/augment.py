"""Augmentation of stored image batches: crops, flips, rotations and colours, the whole batch at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedsim.base import tree

Step: TypeAlias = Literal["crop", "reflect_crop", "flip", "rotate", "color"]
Steps: TypeAlias = tuple[Step, ...]

_PADDING = 4
_DEGREES = 15.0
_STRENGTH = 0.4
_GREY = (0.2989, 0.587, 0.114)


@dataclass(frozen=True)
class Augment:
    """Apply steps in order; every example of a batch draws its own random numbers.

    Attributes:
        steps: "crop" (4 black pixels around, then a random crop of the old size), "reflect_crop" (the same
            with the border mirrored), "flip" (left-right, for half of them), "rotate" (up to 15 degrees
            either way), "color" (brightness, contrast, saturation and sharpness, each times 0.6 to 1.4).
    """

    steps: Steps

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augment a batch.

        Args:
            x: [B, C, H, W] as stored, any type and device; not changed.
            generator: draws the random numbers; it may be on another device than the batch.

        Returns:
            A batch of the same shape, type and device.
        """
        for step in self.steps:
            x = _STEPS[step](x, generator)
        return x


def make_augment(steps: Sequence[Step]) -> Augment | None:
    """The augmentation with these steps; None for no steps."""
    return Augment(tuple(steps)) if steps else None


def _draw_uniform(x: Tensor, generator: torch.Generator) -> Tensor:
    """One number from [0, 1) for each example, on the batch's device."""
    return tree.send_to_device(torch.rand(len(x), generator=generator, device=generator.device), x.device)


def _crop(x: Tensor, generator: torch.Generator) -> Tensor:
    down, across = _shift_positions(x, generator)
    moved = _gather_pixels(x, down.clamp(0, x.shape[-2] - 1), across.clamp(0, x.shape[-1] - 1))
    inside = ((down >= 0) & (down < x.shape[-2]))[:, :, None] & ((across >= 0) & (across < x.shape[-1]))[
        :, None
    ]
    return moved * inside[:, None].to(x.dtype)


def _reflect_crop(x: Tensor, generator: torch.Generator) -> Tensor:
    down, across = _shift_positions(x, generator)
    return _gather_pixels(x, _mirror_positions(down, x.shape[-2]), _mirror_positions(across, x.shape[-1]))


def _shift_positions(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The rows [B, H] and columns [B, W] that a random crop reads; some are outside the image."""
    places = []
    for size in x.shape[-2:]:
        shift = (_draw_uniform(x, generator) * (2 * _PADDING + 1)).long() - _PADDING
        places.append(torch.arange(size, device=x.device) + shift[:, None])
    return places[0], places[1]


def _mirror_positions(place: Tensor, size: int) -> Tensor:
    """Mirror positions outside the image back into it, without repeating the border pixel."""
    return ((size - 1) - ((size - 1) - place.abs()).abs()).clamp(0, size - 1)


def _gather_pixels(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels of each example at its own rows and columns."""
    example = torch.arange(len(x), device=x.device)[:, None, None]
    return (
        x.permute(0, 2, 3, 1)[example, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
    )


def _flip(x: Tensor, generator: torch.Generator) -> Tensor:
    chosen = _draw_uniform(x, generator) < 0.5
    return torch.where(chosen[:, None, None, None], x.flip(-1), x)


def _rotate(x: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate with nearest pixels, and black outside the image: values stay values of the image."""
    angle = (2 * _draw_uniform(x, generator) - 1) * math.radians(_DEGREES)
    height, width = x.shape[-2:]
    zero, ratio = torch.zeros_like(angle), width / height
    first = torch.stack([angle.cos(), angle.sin() / ratio, zero], dim=1)
    second = torch.stack([-angle.sin() * ratio, angle.cos(), zero], dim=1)
    grid = torch.nn.functional.affine_grid(
        torch.stack([first, second], dim=1), list(x.shape), align_corners=False
    )
    turned = torch.nn.functional.grid_sample(x.float(), grid, mode="nearest", align_corners=False)
    return turned.to(x.dtype)


def _color(x: Tensor, generator: torch.Generator) -> Tensor:
    """Blend each image with black, its mean grey, its grey image and its blur, as torchvision does."""
    image = x.float()
    for make_reference in (torch.zeros_like, lambda y: _grey(y).mean((1, 2, 3), keepdim=True), _grey, _blur):
        factor = (1 + _STRENGTH * (2 * _draw_uniform(x, generator) - 1)).view(-1, 1, 1, 1)
        image = (factor * image + (1 - factor) * make_reference(image)).clamp(0, 255)
    return image.round().to(x.dtype)


def _grey(x: Tensor) -> Tensor:
    """The grey image of colours, with one channel; images of other numbers of channels as they are."""
    if x.shape[1] != len(_GREY):
        return x
    return (x * x.new_tensor(_GREY).view(-1, 1, 1)).sum(1, keepdim=True)


def _blur(x: Tensor) -> Tensor:
    """The mean of each pixel, five times, and its eight neighbours; pixels of the border stay."""
    if min(x.shape[-2:]) < 3:
        return x
    kernel = x.new_ones(3, 3)
    kernel[1, 1] = 5
    kernels = (kernel / kernel.sum()).expand(x.shape[1], 1, 3, 3)
    blurred = x.clone()
    blurred[..., 1:-1, 1:-1] = torch.nn.functional.conv2d(x, kernels, groups=x.shape[1])
    return blurred


_STEPS: Mapping[Step, Callable[[Tensor, torch.Generator], Tensor]] = {
    "crop": _crop,
    "reflect_crop": _reflect_crop,
    "flip": _flip,
    "rotate": _rotate,
    "color": _color,
}
