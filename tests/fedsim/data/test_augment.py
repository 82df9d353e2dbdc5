import numpy as np
import pytest
import torch

from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.data.augment import Augment, make_augment


def batch(n: int = 64, size: int = 12, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 256, (n, channels, size, size), dtype=torch.uint8, generator=generator)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("step", ["crop", "reflect_crop", "flip", "rotate", "color"])
def test_shape_type_and_input_are_kept_and_the_seed_decides(step):
    x = batch()
    before = x.clone()
    first, second, other = (Augment((step,))(x, seeded(s)) for s in (0, 0, 1))
    assert first.shape == x.shape
    assert first.dtype == torch.uint8
    assert torch.equal(x, before)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert not torch.equal(first, x)


def test_no_steps_are_no_augmentation():
    assert make_augment(()) is None
    assert make_augment(["flip"]) == Augment(("flip",))


@pytest.mark.parametrize(("step", "mode"), [("crop", "constant"), ("reflect_crop", "reflect")])
def test_a_crop_is_some_window_of_the_padded_image(step, mode: str):
    x = batch(40)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)), mode=mode)
    found = set()
    for image, whole in zip(Augment((step,))(x, seeded()).numpy(), padded, strict=True):
        places = [
            (i, j)
            for i in range(9)
            for j in range(9)
            if np.array_equal(whole[:, i : i + 12, j : j + 12], image)
        ]
        assert len(places) == 1
        found.update(places)
    assert {i for i, _ in found} == {j for _, j in found} == set(range(9))


def test_half_of_a_large_batch_is_flipped():
    x = batch(1000)
    flipped = Augment(("flip",))(x, seeded())
    turned = (flipped == x.flip(-1)).flatten(1).all(1)
    assert ((flipped == x).flatten(1).all(1) | turned).all()
    assert 0.45 < turned.float().mean() < 0.55


def test_rotating_keeps_the_middle_and_blackens_corners():
    x = torch.full((200, 1, 32, 32), 200, dtype=torch.uint8)
    turned = Augment(("rotate",))(x, seeded())
    assert (turned[:, :, 10:22, 10:22] == 200).all()
    assert set(turned.unique().tolist()) == {0, 200}
    # A corner is lost at any angle that is not tiny.
    assert (turned[:, 0, 0, 0] == 0).float().mean() > 0.5


def test_rotation_goes_both_ways_by_up_to_fifteen_degrees():
    """A vertical line through the middle: its top moves by 16 sin(angle), at most by 4.1 pixels."""
    x = torch.zeros((500, 1, 33, 33), dtype=torch.uint8)
    x[:, :, :, 16] = 255
    turned = Augment(("rotate",))(x, seeded())[:, 0, 1].float()
    place = (turned * torch.arange(33)).sum(1) / turned.sum(1)
    assert place.min() < 13.5
    assert place.max() > 18.5
    assert place.min() > 11.5
    assert place.max() < 20.5


def test_steps_follow_one_another_on_one_generator():
    x, generator = batch(), seeded()
    by_hand = Augment(("flip",))(Augment(("crop",))(x, generator), generator)
    assert torch.equal(Augment(("crop", "flip"))(x, seeded()), by_hand)


@pytest.mark.parametrize("channels", [1, 3])
def test_colours_change_as_in_torchvision(channels: int):
    prepare_torchvision()
    from torchvision.transforms import functional

    x = batch(5, channels=channels)
    draws = seeded()
    factors = [1 + 0.4 * (2 * torch.rand(5, generator=draws) - 1) for _ in range(4)]
    adjust = (
        functional.adjust_brightness,
        functional.adjust_contrast,
        functional.adjust_saturation,
        functional.adjust_sharpness,
    )
    for number, found in enumerate(Augment(("color",))(x, seeded())):
        image = x[number].float() / 255
        for step, factor in zip(adjust, factors, strict=True):
            image = step(image, float(factor[number]))
        assert (found.float() - 255 * image).abs().max() < 1
