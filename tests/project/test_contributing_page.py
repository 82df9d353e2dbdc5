"""CONTRIBUTING.md names every room, hook and capability, and its three examples run."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg, FedProx
from fedsim.base import tree
from fedsim.core import Algorithm, LocalTraining, capabilities
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from tests.fedsim.federations import federation

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, flags=re.DOTALL))
EVEN = [12] * 6


def section(title: str) -> str:
    return re.split(r"\n##+ ", PAGE.split(f" {title}\n")[1])[0]


def first_column(text: str) -> set[str]:
    """The names in backticks in the first column of a table, without arguments."""
    rows = re.findall(r"^\| (`.*?`)[ *]*\|", text, flags=re.MULTILINE)
    return {name.partition("(")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)}


def hooks(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if inspect.isfunction(value) and name[0] != "_"}


def algorithm(name: str, class_name: str, **parameters: Any) -> Algorithm:
    space: dict[str, Any] = {"__name__": f"contributing_{name}"}
    exec(compile(EXAMPLES[name], name, "exec", dont_inherit=True), space)
    made: Algorithm = space[class_name](**parameters)
    return made


def states(method: Algorithm, rounds: int = 3, stack_size: int = 1, **options: Any) -> list[Any]:
    population = federation(
        EVEN, rounds=rounds, cohort_size=4, local=LocalTraining(epochs=1, batch_size=32, lr=0.1), **options
    )
    if stack_size > 1:
        pool: SerialPool = StackedPool(method, population, stack_size)
    else:
        pool = SerialPool(method, population)
    return [result.state for result in simulate(method, population, pool)]


def assert_close(found: Any, wanted: Any, tolerance: float) -> None:
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=tolerance, atol=tolerance, err_msg=key)


def test_every_hook_seam_and_capability_has_its_row() -> None:
    assert first_column(section("Hooks of Algorithm")) == hooks(Algorithm)
    assert first_column(section("Extension points of FedAvg")) == hooks(FedAvg) - hooks(Algorithm)
    table = section("Capabilities")
    kinds = [getattr(capabilities, name) for name in first_column(table)]
    declared = {
        kind
        for kind in vars(capabilities).values()
        if inspect.isclass(kind) and kind.__module__ == capabilities.__name__ and hooks(kind)
    }
    assert set(kinds) == declared - {capabilities.Forwarding, capabilities.InitialModels}
    for kind in kinds:
        (row,) = re.findall(rf"^\| `{kind.__name__}` \| (.*?) \|", table, flags=re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", row)) == hooks(kind)


@pytest.mark.parametrize("package", ["fedsim", "actors", "jobs", "api"])
def test_every_room_has_its_row(package: str) -> None:
    rooms = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / package).iterdir()
        if path.name != "py.typed" and not path.name.startswith("_")
    }
    assert rooms == {name for name in first_column(section("The rooms")) if name.startswith(f"{package}/")}


def test_norm_is_fedavg_with_one_more_payload() -> None:
    for found, wanted in zip(states(algorithm("fednorm", "FedNorm")), states(FedAvg()), strict=True):
        assert_close(found.params, wanted.params, 0)
        # The clients differ little after one round: the mean of their squared norms is near that of the mean.
        torch.testing.assert_close(
            float(found.norm), float(tree.dot(wanted.params, wanted.params)), rtol=0.2, atol=0
        )


def test_adam_without_moments_is_fedavg() -> None:
    """With beta1 = beta2 = 0 the step is lr d / (|d| + tau), so d itself for a large lr = tau."""
    adam = algorithm("fedadam", "FedAdam", beta1=0.0, beta2=0.0, server_lr=1e6, tau=1e6)
    for found, wanted in zip(states(adam), states(FedAvg()), strict=True):
        assert_close(found.params, wanted.params, 1e-4)


def test_adam_takes_the_step_of_its_paper() -> None:
    adam = algorithm("fedadam", "FedAdam", server_lr=0.1)
    (mean,), (found,) = states(FedAvg(), 1), states(adam, 1)
    start = states_before(adam)
    for key, before in start.params.items():
        change = mean.params[key].double() - before.double()
        variance = 0.99 * 0.001**2 + 0.01 * change**2
        step = 0.1 * (0.1 * change) / (variance.sqrt() + 0.001)
        torch.testing.assert_close(found.params[key], (before + step).float(), rtol=1e-3, atol=1e-6)


def states_before(method: Algorithm) -> Any:
    population = federation(
        EVEN, rounds=1, cohort_size=4, local=LocalTraining(epochs=1, batch_size=32, lr=0.1)
    )
    return method.init_server_state(population.context(0))


def test_the_first_round_of_dyn_is_fedprox_and_a_longer_way() -> None:
    """As g = 0: w <- mean - h/alpha with h = -alpha K/N (mean - w), of clients that are FedProx's."""
    dyn = algorithm("feddyn", "FedDyn", alpha=0.1)
    (mean,), (found,), before = states(FedProx(mu=0.1), 1), states(dyn, 1), states_before(dyn)
    further = tree.map(lambda m, w: m + 4 / 6 * (m - w), mean.params, before.params)
    assert_close(found.params, further, 1e-4)


@pytest.mark.parametrize(
    ("name", "class_name"), [("fednorm", "FedNorm"), ("fedadam", "FedAdam"), ("feddyn", "FedDyn")]
)
def test_an_example_can_be_stacked(name: str, class_name: str) -> None:
    method = algorithm(name, class_name)
    assert_close(states(method, stack_size=2)[-1].params, states(method)[-1].params, 1e-4)


def test_dyn_keeps_the_gradient_of_each_client() -> None:
    method = algorithm("feddyn", "FedDyn")
    population = federation(EVEN, rounds=2, cohort_size=6)
    pool = SerialPool(method, population)
    *_, last = simulate(method, population, pool)
    kept = pool.client_states()
    assert sorted(kept) == list(range(6))
    total = tree.map(lambda *each: sum(each) / 6, *(state["gradient"] for state in kept.values()))
    assert_close(total, last.state.drift, 1e-4)  # with everybody there, h is the mean of all g
