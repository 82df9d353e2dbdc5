"""The methods of ACE-pFL's tables on what is not one image of one class from clients that all hold many.

Texts as tokens, examples of several labels some of which are unknown, several architectures, clients with
nothing or less than a batch, a public set of three examples. Each either works or is refused with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsim.algorithms import ALGORITHMS, FedAD, FedCOG
from fedsim.base import tree
from fedsim.clients.population import Population
from fedsim.core import LocalTraining
from fedsim.core.capabilities import CohortSelection
from fedsim.core.public_set import PublicSet
from fedsim.data.dataset import Dataset, Examples
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.results import RoundResult
from fedsim.engine.simulation import simulate
from fedsim.learning_tasks.tasks import Classification, SeveralLabels
from fedsim.models import make_net
from fedsim.models.net import InputForm, Net
from fedsim.techniques.server_distillation import make_accuracy_judge
from fedsim.training.losses import mark_correct
from jobs.spec import parse_spec
from jobs.spec.checks.data_checks import find_task_faults
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick

AVERAGING = ("per_fedavg", "pfedme", "fedala", "cd2_pfed")
EXCHANGING = ("feddf", "kt_pfl", "fedkd", "fedad")
EMPTY_FIRST = 23
"""A seed by which cohorts of one of three are 0, 2, 1, 0, 1."""
SIZES = [3, 9, 1, 16, 0, 12]
"""Nothing at all, a single example, less than a batch of 8, and batches that are not whole."""


def made(x: Any, y: Any, classes: int, **more: Any) -> Population:
    """Six clients of these sizes; of what they leave, twelve examples are for testing and the rest public."""
    local = LocalTraining(epochs=1, batch_size=8, lr=0.05)
    population = federation(SIZES, rounds=2, local=local)
    used = sum(SIZES)
    data = Dataset(
        name="made",
        train=Examples(x[:used], y[:used]),
        test=Examples(x[used : used + 12], y[used : used + 12]),
        num_classes=classes,
        input_shape=x.shape[1:],
        classes=tuple(map(str, range(classes))),
        **more,
    )
    return replace(population, dataset=data, public=Examples(x[used + 12 :], y[used + 12 :]))


def texts(dropout: float = 0.0) -> Population:
    """Twelve tokens of thirty."""
    chance = np.random.default_rng(0)
    x, y = chance.integers(0, 30, (59, 12)), chance.integers(0, 3, 59)
    sizes = {"vocabulary": 30, "width": 8, "layers": 1, "heads": 2, "hidden": 8, "dropout": dropout}
    net = make_net("small_transformer", input_shape=(12,), num_classes=3, **sizes)
    return replace(made(x, y, 3, vocabulary=30), nets=(net,))


def findings() -> Population:
    """Three yes-or-no labels, of which a fifth are unknown."""
    chance = np.random.default_rng(0)
    x = chance.normal(size=(59, 12)).astype(np.float32)
    y = (x[:, :3] > 0).astype(np.float32)
    y[chance.random(y.shape) < 0.2] = np.nan
    net = make_net("mlp", input_shape=(12,), num_classes=3, hidden=8)
    return replace(made(x, y, 3, task="labels"), nets=(net,))


def several() -> Population:
    """Three architectures, of which two clients in a round bring one or two; three public examples."""
    population = federation(
        SIZES, rounds=3, cohort_size=2, local=LocalTraining(epochs=1, batch_size=8, lr=0.05)
    )
    shape = {"input_shape": (12,), "num_classes": 4}
    nets = (make_net("mlp", **shape), make_net("mlp", hidden=8, **shape), make_net("mlp", layers=2, **shape))
    assert population.public is not None
    return replace(population, nets=nets, public=population.public.select_rows(np.arange(3)))


def ends(name: str, population: Population) -> RoundResult:
    """The last round of a method, in which all clients' own models are scored."""
    algorithm = quick(name)
    assert population.dataset.task in algorithm.tasks
    assert not [
        fault
        for net in population.nets
        for fault in algorithm.check_hyperparameters(net, population.settings.rounds)
    ]
    (*_, last) = simulate(
        algorithm, population, SerialPool(algorithm, population), evaluate_every=9, personal="last"
    )
    return last


def is_sound(result: RoundResult) -> None:
    assert result.personal is not None
    assert result.personal.clients.tolist() == list(range(6))
    assert np.isfinite(list(result.metrics.values())).all()
    params: Mapping[str, Any] = result.state.params
    for leaves in params.values():
        for value in leaves.values() if isinstance(leaves, Mapping) else (leaves,):
            assert torch.isfinite(value).all()


@pytest.mark.parametrize("name", [*AVERAGING, *EXCHANGING])
def test_examples_of_several_labels(name: str) -> None:
    is_sound(ends(name, findings()))


@pytest.mark.parametrize("name", [name for name in (*AVERAGING, *EXCHANGING) if name != "cd2_pfed"])
def test_texts(name: str) -> None:
    is_sound(ends(name, texts()))


@pytest.mark.parametrize("name", [*AVERAGING, *EXCHANGING])
def test_several_architectures_of_which_not_all_come(name: str) -> None:
    is_sound(ends(name, several()))


class WithUnusedLayer(nn.Module):
    """A model with a layer that no output depends on, as an auxiliary head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.unused, self.head = nn.Linear(12, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", [name for name in EXCHANGING if name != "kt_pfl"])
def test_a_server_trains_a_model_with_a_layer_that_it_does_not_use(name: str) -> None:
    net = Net(WithUnusedLayer, "unused", inputs=InputForm((12,)))
    population = replace(federation([20, 20, 20], rounds=1), nets=(net,))
    algorithm = replace(quick(name), lambda_att=0.0) if name == "fedad" else quick(name)  # type: ignore[call-arg]
    (result,) = simulate(algorithm, population, SerialPool(algorithm, population))
    assert np.isfinite(list(result.metrics.values())).all()


class WithSpareLayer(nn.Linear):
    """A head with a layer that no output depends on."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.spare = nn.Linear(8, 4)


@pytest.mark.parametrize("stack_size", [1, 3])
def test_fedala_mixes_a_head_with_a_layer_that_it_does_not_use(stack_size: int) -> None:
    net = Net(lambda: nn.Sequential(nn.Linear(12, 8), WithSpareLayer()), "spare", inputs=InputForm((12,)))
    population = replace(federation([20, 20, 20], rounds=2), nets=(net,))
    algorithm = ALGORITHMS["fedala"]()
    pool = StackedPool(algorithm, population, stack_size=stack_size)
    (*_, last) = simulate(algorithm, population, pool)
    assert np.isfinite(list(last.metrics.values())).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_cohort_that_holds_nothing_ends_no_run(name: str) -> None:
    """Such a one comes first, and again when something has been learnt."""
    local = LocalTraining(epochs=1, batch_size=8, lr=0.05)
    population = federation([0, 20, 20], cohort_size=1, rounds=5, seed=EMPTY_FIRST, local=local)
    method = quick(name)
    results = list(simulate(method, population, SerialPool(method, population), personal="never"))
    if not isinstance(method, CohortSelection):
        assert [result.cohort == (0,) for result in results] == [True, False, False, True, False]
    for _, value in tree.leaves(results[-1].state.params):
        assert torch.isfinite(value).all()


def test_what_makes_no_sense_of_texts_says_so() -> None:
    (net,) = texts().nets
    (fault,) = ALGORITHMS["cd2_pfed"]().check_hyperparameters(net, 9)
    assert "small_transformer has a layer of channels that do not follow one another" in fault.message
    (fault,) = FedAD().check_hyperparameters(net, 9)
    assert "small_transformer is no chain of blocks with convolutions of images" in fault.message
    (fault,) = FedCOG().check_hyperparameters(net, 9)
    assert "small_transformer takes tokens" in fault.message
    assert not FedCOG().check_hyperparameters(findings().nets[0], 9)


def test_a_classifier_in_two_blocks_is_no_head() -> None:
    """Methods with a personal or fixed head trained as FedAvg; those with a generator ended the run."""
    apart = Net(
        lambda: nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 4), nn.Flatten()),
        "mine",
        inputs=InputForm((12,)),
    )
    joined = Net(
        lambda: nn.Sequential(nn.Linear(12, 8), nn.Sequential(nn.Linear(8, 4), nn.Flatten())),
        "mine",
        inputs=InputForm((12,)),
    )
    for name in ("fedper", "fedrep", "lg_fedavg", "fedbabu", "fedpac", "fedala", "fedrod", "layer_schedule"):
        (fault,) = ALGORITHMS[name]().check_hyperparameters(apart, 9)
        assert "'2' of mine has no parameters" in fault.message
        assert not ALGORITHMS[name]().check_hyperparameters(joined, 9)
    for name in ("kdia", "fedgen", "fedcl"):
        (fault,) = ALGORITHMS[name]().check_hyperparameters(apart, 9)
        assert "its head has no weight" in fault.message


def test_maps_that_the_first_block_makes_flat_have_no_attention() -> None:
    convolution = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
    flat, maps = (
        Net(lambda body=body: nn.Sequential(*body, nn.Linear(144, 4)), "mine", inputs=InputForm((1, 8, 8)))
        for body in ([nn.Sequential(*convolution)], convolution)
    )
    (fault,) = FedAD().check_hyperparameters(flat, 9)
    assert (fault.path, fault.value) == ("lambda_att", 1.0)
    assert not FedAD().check_hyperparameters(maps, 9)
    assert not FedAD(lambda_att=0.0).check_hyperparameters(flat, 9)


def test_what_needs_one_class_refuses_several_labels() -> None:
    refusing = {"kdia", "fedcog", "fedgen", "fedcl", "feddistill", "feddistill_plus", "fedensemble"}
    refusing |= {"fedcl_code", "fedproto", "fedpac", "fedntd", "fedrs", "fedlc"}
    for name in ALGORITHMS:
        faults = find_task_faults(parse_spec({"algorithm": name}), "labels")
        assert [fault.path for fault in faults] == ["algorithm.name"] * (name in refusing), name


@pytest.mark.parametrize("name", ["feddf", "fedkd"])
def test_what_a_server_drops_out_is_the_same_again(name: str) -> None:
    """Whatever the process has drawn before."""
    population, digests = texts(dropout=0.5), []
    for chance in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(chance)
            digests.append(ends(name, population).digest)
    assert digests[0] == digests[1]


def test_nobody_is_judged_by_labels_that_are_unknown() -> None:
    (net,) = findings().nets
    unknown = PublicSet(torch.zeros(4, 12), torch.full((4, 3), torch.nan), lambda x: x)
    assert make_accuracy_judge(net, unknown, torch.arange(4)) is None
    assert make_accuracy_judge(net, unknown, torch.arange(0)) is None


def test_what_is_no_number_is_wrong() -> None:
    logits = torch.tensor([[9.0, 0.0], [torch.nan, 0.0], [0.0, torch.nan], [0.0, torch.inf]])
    classes, findings = torch.tensor([0, 0, 1, 1]), torch.tensor([[1.0, 0.0], [0, 0], [0, 0], [torch.nan, 1]])
    assert mark_correct(logits, classes).tolist() == [True, False, False, True]
    assert Classification(2).score(logits, classes)[:3:2] == (2, 4)
    assert SeveralLabels(2).score(logits, findings)[:3:2] == (5, 7)
    assert SeveralLabels(2).score(torch.full((4, 2), torch.nan), findings)[:3:2] == (0, 7)
