import pytest

from actors.resources import Node, Placement, place
from fedsim.errors import DoesNotFit


@pytest.mark.parametrize(
    ("cpus", "gpus", "each_cpu", "each_gpu", "fits"),
    [
        (2, 0, 1, 0, 2),
        (2, 0, 0.4, 0, 5),
        (2, 0, 0.3, 0, 6),
        (16, 1, 1, 0.3, 3),
        (16, 2, 1, 0.3, 6),  # a fraction is of one GPU: 2 x 3, not floor(2 / 0.3) = 6 by luck of rounding
        (16, 2, 1, 0.6, 2),  # one each; what is left over cannot be added up
        (16, 8, 1, 2, 4),
        (4, 8, 1, 0.25, 4),  # the CPUs are the limit
        (16, 0, 1, 0.5, 0),
        (1, 1, 0.1, 0.1, 10),
    ],
)
def test_how_many_fit(cpus: float, gpus: float, each_cpu: float, each_gpu: float, fits: int) -> None:
    assert Node("n", cpus, gpus).fits(each_cpu, each_gpu) == fits


def test_the_arithmetic_is_in_the_message() -> None:
    with pytest.raises(DoesNotFit) as caught:
        place(4, 1, 0.3, [Node("head", 8, 1)])
    assert str(caught.value) == (
        "4 workers x 1 CPU and 0.3 GPU asked, 3 fit (head has 8 CPU and 1 GPU: 3 fit) "
        "(set resources.workers to 3 or fewer, or make each smaller)"
    )
    assert caught.value.errors[0][:2] == ("resources.workers", 4)


def test_no_gpu_anywhere_is_said() -> None:
    with pytest.raises(DoesNotFit, match=r"no node has a GPU: set resources\.gpus_per_worker to 0"):
        place("auto", 1, 0.25, [Node("head", 8, 0)])


def test_auto_takes_what_fits_but_no_more_than_can_work() -> None:
    nodes = [Node("a", 4, 1), Node("b", 4, 1)]
    assert place("auto", 1, 0.25, nodes) == Placement(8, 1, 0.25)
    assert place("auto", 1, 0.25, nodes, most=5).workers == 5
    assert place(3, 1, 0, nodes, most=2).workers == 3
