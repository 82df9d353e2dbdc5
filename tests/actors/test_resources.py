import pytest

from actors.resources import Node, Placement, beside_server, check_memory, fit_in_memory, place
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


def test_the_share_of_the_server_is_set_aside_on_the_head() -> None:
    nodes = [Node("a", 8, 2), Node("head", 8, 1, head=True)]
    assert place("auto", 1, 0.25, beside_server(nodes, 0.5)) == Placement(10, 1, 0.25, server=0.5)
    assert place("auto", 1, 1, beside_server(nodes, 0.5)).workers == 2
    assert place("auto", 1, 0, beside_server(nodes, 1)).workers == 16
    assert beside_server(nodes, 0) is nodes
    twice = beside_server(beside_server(nodes, 0.5), 0.5)
    assert [node.server for node in twice] == [0, 0.5]
    with pytest.raises(DoesNotFit, match=r"4 fit .* 1 GPU, 0\.2 of it the server's: 4 fit") as caught:
        place(5, 1, 0.2, beside_server([Node("head", 8, 1)], 0.2))
    assert caught.value.errors[0].path == "resources.workers"


def test_a_server_that_finds_no_gpu_is_told_so() -> None:
    nodes = [Node("a", 8, 2), Node("head", 8, 0, head=True)]
    with pytest.raises(DoesNotFit, match=r"head has 8 CPU and 0 GPU.*then it trains on its CPU") as caught:
        beside_server(nodes, 0.25)
    assert caught.value.errors[0][:2] == ("resources.server_gpus", 0.25)


def test_memory_that_is_too_small_is_said_with_the_arithmetic() -> None:
    nodes = [(Node("a", 8, 0, memory=16e9), 4), (Node("b", 8, 0, memory=9e9), 4)]
    check_memory(nodes, 2e9, 1e9)
    with pytest.raises(DoesNotFit) as caught:
        check_memory(nodes, 2.5e9, 1e9)
    assert str(caught.value) == (
        "4 workers x 2.5 GB and 1 GB of shared data make 11 GB; b has 9 GB of memory: 3 fit "
        "(set resources.workers to 6 or fewer)"
    )


def test_data_that_no_node_holds_needs_another_way_out() -> None:
    with pytest.raises(DoesNotFit, match=r"0 fit \(use a smaller model"):
        check_memory([(Node("a", 8, 0, memory=4e9), 1)], 1e9, 6e9)


def test_a_node_whose_memory_nobody_knows_refuses_nothing() -> None:
    check_memory([(Node("a", 8, 0), 100)], 1e12, 1e12)
    assert fit_in_memory(Node("a", 8, 0), 1e9, 0) is None
