import pytest

from actors.resources import (
    ClusterNode,
    Placement,
    check_memory,
    count_actors_in_memory,
    place_workers,
    reserve_server_gpu,
)
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
    assert ClusterNode("n", cpus, gpus).count_fitting_actors(each_cpu, each_gpu) == fits


def test_the_arithmetic_is_in_the_message() -> None:
    with pytest.raises(DoesNotFit) as caught:
        place_workers(4, 1, 0.3, [ClusterNode("head", 8, 1)])
    assert str(caught.value) == (
        "4 workers x 1 CPU and 0.3 GPU asked, 3 fit (head has 8 CPU and 1 GPU: 3 fit) "
        "(set resources.workers to 3 or fewer, or make resources.cpus_per_worker or gpus_per_worker smaller)"
    )
    assert caught.value.errors[0][:2] == ("resources.workers", 4)


def test_no_gpu_anywhere_is_said() -> None:
    with pytest.raises(DoesNotFit, match=r"no node has a GPU: set resources\.gpus_per_worker to 0"):
        place_workers("auto", 1, 0.25, [ClusterNode("head", 8, 0)])


def test_auto_takes_what_fits_but_no_more_than_can_work() -> None:
    nodes = [ClusterNode("a", 4, 1), ClusterNode("b", 4, 1)]
    assert place_workers("auto", 1, 0.25, nodes) == Placement(8, 1, 0.25)
    assert place_workers("auto", 1, 0.25, nodes, most=5).workers == 5
    assert place_workers(3, 1, 0, nodes, most=2).workers == 3


def test_the_share_of_the_server_is_set_aside_on_the_head() -> None:
    nodes = [ClusterNode("a", 8, 2), ClusterNode("head", 8, 1, head=True)]
    assert place_workers("auto", 1, 0.25, reserve_server_gpu(nodes, 0.5)) == Placement(
        10, 1, 0.25, server_gpus=0.5
    )
    assert place_workers("auto", 1, 1, reserve_server_gpu(nodes, 0.5)).workers == 2
    assert place_workers("auto", 1, 0, reserve_server_gpu(nodes, 1)).workers == 16
    assert reserve_server_gpu(nodes, 0) is nodes
    twice = reserve_server_gpu(reserve_server_gpu(nodes, 0.5), 0.5)
    assert [node.server_gpus for node in twice] == [0, 0.5]
    with pytest.raises(DoesNotFit, match=r"4 fit .* 1 GPU, 0\.2 of it the server's: 4 fit") as caught:
        place_workers(5, 1, 0.2, reserve_server_gpu([ClusterNode("head", 8, 1)], 0.2))
    assert caught.value.errors[0].path == "resources.workers"


def test_a_server_that_finds_no_gpu_is_told_so() -> None:
    nodes = [ClusterNode("a", 8, 2), ClusterNode("head", 8, 0, head=True)]
    with pytest.raises(
        DoesNotFit, match=r"head has 8 CPU and 0 GPU.*the server then trains on its CPU"
    ) as caught:
        reserve_server_gpu(nodes, 0.25)
    assert caught.value.errors[0][:2] == ("resources.server_gpus", 0.25)


def test_memory_that_is_too_small_is_said_with_the_arithmetic() -> None:
    nodes = [(ClusterNode("a", 8, 0, memory=16e9), 4), (ClusterNode("b", 8, 0, memory=9e9), 4)]
    check_memory(nodes, 2e9, 1e9)
    with pytest.raises(DoesNotFit) as caught:
        check_memory(nodes, 2.5e9, 1e9)
    assert str(caught.value) == (
        "4 workers x 2.5 GB and 1 GB of shared data make 11 GB; b has 9 GB of memory: 3 fit "
        "(set resources.workers to 6 or fewer)"
    )


def test_data_that_no_node_holds_needs_another_way_out() -> None:
    with pytest.raises(DoesNotFit, match=r"0 fit \(use a smaller model"):
        check_memory([(ClusterNode("a", 8, 0, memory=4e9), 1)], 1e9, 6e9)


def test_a_node_whose_memory_nobody_knows_refuses_nothing() -> None:
    check_memory([(ClusterNode("a", 8, 0), 100)], 1e12, 1e12)
    assert count_actors_in_memory(ClusterNode("a", 8, 0), 1e9, 0) is None
