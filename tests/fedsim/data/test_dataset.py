import numpy as np
import pytest
import torch

from fedsim.data import Dataset, Examples, Normalise
from fedsim.errors import DataError


def examples(n: int = 4, classes: int = 3) -> Examples:
    return Examples(
        np.arange(n * 4, dtype=np.uint8).reshape(n, 1, 2, 2), np.arange(n, dtype=np.int64) % classes
    )


def test_examples_are_read_only_and_the_callers_array_is_not_touched():
    x = np.zeros((2, 3), np.float32)
    held = Examples(x, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="read-only"):
        held.x[0, 0] = 1
    x[0, 0] = 1


def test_take_keeps_examples_labels_and_groups_together():
    held = Examples(np.arange(5, dtype=np.float32)[:, None], np.arange(5), np.arange(5) * 10)
    taken = held.select_rows(np.array([3, 1]))
    assert taken.x[:, 0].tolist() == [3, 1]
    assert taken.y.tolist() == [3, 1]
    assert taken.groups is not None
    assert taken.groups.tolist() == [30, 10]
    assert len(taken) == 2


def test_examples_of_unequal_number_are_refused():
    with pytest.raises(DataError, match=r"differ in length: \[2, 3\]"):
        Examples(np.zeros((2, 1), np.float32), np.zeros(3, np.int64))


def test_labels_of_another_type_are_refused():
    with pytest.raises(DataError, match="not int32"):
        Examples(np.zeros((2, 1), np.float32), np.zeros(2, np.int32))


def test_large_outputs_are_scored_for_fewer_examples_at_once():
    tokens = np.zeros((2, 128), np.int32)
    part = Examples(tokens, tokens.astype(np.int64))
    of_a_model = Dataset("own", part, part, 150_000, (128,), (), task="next_token", vocabulary=150_000)
    assert of_a_model.scored_at_once == 2**26 // (128 * 150_000) == 3
    assert Dataset("own", examples(), examples(), 3, (1, 2, 2), ("a", "b", "c")).scored_at_once == 250


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_class_out_of_range_is_named_with_its_place(wrong: int):
    bad = Examples(np.zeros((3, 1), np.float32), np.array([0, wrong, 1]))
    with pytest.raises(DataError, match=f"test set: class {wrong} at position 1, expected 0 to 2"):
        Dataset("d", examples(), bad, 3, (1,), ("a", "b", "c"))


def test_limit_keeps_the_first_training_examples_and_the_whole_test_set():
    whole = Dataset("d", examples(6), examples(5), 3, (1, 2, 2), ("a", "b", "c"))
    few = whole.limit_train(2)
    assert np.array_equal(few.train.x, whole.train.x[:2])
    assert len(few.test) == 5
    assert whole.limit_train(99) is whole


@pytest.mark.parametrize("leading", [(), (4,), (2, 4)])
@pytest.mark.parametrize("channels", [1, 3])
def test_normalising_is_scale_then_mean_then_std(leading: tuple[int, ...], channels: int):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (*leading, channels, 5, 5), dtype=torch.uint8, generator=generator)
    mean, std = (0.1, 0.2, 0.3)[:channels], (0.5, 0.6, 0.7)[:channels]
    wanted = (x.double() / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    got = Normalise(mean, std, 255.0)(x)
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), wanted, atol=1e-5)


def test_normalising_leaves_floats_and_tokens_alone():
    x = torch.randn(3, 4)
    assert Normalise()(x) is x
    tokens = torch.tensor([[1, 2]], dtype=torch.int32)
    assert Normalise()(tokens) is tokens


def test_normalising_can_be_mapped_over_clients():
    normalise = Normalise((0.1, 0.2, 0.3), (0.5, 0.6, 0.7), 255.0)
    x = torch.randint(0, 256, (2, 4, 3, 5, 5), dtype=torch.uint8)
    assert torch.equal(torch.func.vmap(normalise)(x), normalise(x))
