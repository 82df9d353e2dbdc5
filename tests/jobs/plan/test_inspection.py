"""`fedsim inspect`: what it shows is what a run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import DataError
from jobs.plan.inspection import InspectedModel, inspect_spec
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import resolve_spec
from tests.fedsim.methods import QUICK

BASE: dict[str, Any] = {
    "clients": {"total": 6, "fraction": 0.01},  # a cohort of one client
    "data": {"dataset": "digits", "limit": 200, "public": {"fraction": 0.1}},
    "rounds": 1,
    "local": {"epochs": 1},
}


def inspected(home: Path, **changes: Any) -> tuple[InspectedModel, ...]:
    return inspect_spec(parse_spec({**BASE, **changes}), Settings(home=home), lambda _: None)


@pytest.mark.parametrize("name", ["scaffold", "fedbabu", "fedper", "fedkd", "fedgen", "kt_pfl", "fednova"])
def test_payloads_and_steps_are_those_of_the_record(name: str, tmp_path: Path) -> None:
    algorithm = {"name": name, **QUICK.get(name, {})}
    (model,) = inspected(tmp_path, algorithm=algorithm)
    experiment = resolve_spec(parse_spec({**BASE, "algorithm": algorithm}), Settings(home=tmp_path))
    population = experiment.load_population()
    (result,) = simulate(experiment.algorithm, population, SerialPool(experiment.algorithm, population))
    assert result.cohort == (model.client.client,)
    down, up = (sum(getattr(each, way) or 0 for each in model.payloads) for way in ("down", "up"))
    assert (down, up) == (result.traffic.down, result.traffic.up)
    sizes = {each.name: (each.down or 0) + (each.up or 0) for each in model.payloads}
    assert {each: size for each, size in sizes.items() if size} == {
        each: size for each, size in result.traffic.by_payload.items() if size
    }
    assert model.client.steps == population.count_steps(model.client.client)


def test_the_cost_of_a_step_is_that_of_the_record(tmp_path: Path) -> None:
    (model,) = inspected(tmp_path, algorithm="fedbabu")
    experiment = resolve_spec(parse_spec({**BASE, "algorithm": "fedbabu"}), Settings(home=tmp_path))
    population = experiment.load_population()
    (result,) = simulate(experiment.algorithm, population, SerialPool(experiment.algorithm, population))
    assert model.client.examples * model.step_flops == result.cost.flops
    tensors = [tensor for block in model.blocks for tensor in block.tensors]
    assert sum(each.numbers for each in tensors) == model.parameters
    trained = sum(each.numbers for each in tensors if each.role == "trained")
    assert model.client.steps * trained == result.cost.updates
    head = {(each.role, each.sent) for each in tensors if each.name.startswith("head.")}
    assert head == {("not trained", False)}


def test_a_model_of_the_users_own_shows_its_constants_buffers_and_last_shape(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    blocks = ['body', 'norm', 'head']\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.body, self.norm = nn.Linear(64, 8), nn.BatchNorm1d(8)\n"
        "        self.head = nn.Linear(8, 10)\n"
        "        self.body.bias.requires_grad_(False)\n"
        "    def forward(self, x):\n"
        "        breakpoint()\n"
        "        return self.head(self.norm(self.body(x.flatten(1))))\n"
    )
    models = ["mlp", {"name": "python", "path": f"{file}:Net"}]
    first, own = inspected(tmp_path, algorithm="feddf", model=models)
    assert [block.output for block in first.blocks] == [(64,), (64,), (10,)]
    assert (first.client.client % 2, own.client.client % 2) == (0, 1)
    assert [block.output for block in own.blocks] == [None, None, (10,)]
    assert [(each.name, each.role, each.sent) for each in own.constants] == [("body.bias", "constant", False)]
    roles = {each.name: (each.role, each.sent) for block in own.blocks for each in block.tensors}
    assert roles["body.weight"] == ("trained", True)
    assert roles["norm.running_mean"] == ("buffer", True)


def test_a_batch_shows_its_form_its_range_and_its_labels(tmp_path: Path) -> None:
    (model,) = inspected(tmp_path, algorithm="fedavg", local={"batch_size": 4, "epochs": 1})
    client = model.client
    assert (client.x.shape, client.x.dtype) == ((4, 1, 8, 8), "float32")
    assert client.x.min < 0 < client.x.max
    assert (client.y.shape, client.y.dtype) == ((4,), "int64")
    assert sum(client.labels.values()) == 4
    assert torch.tensor([int(label) for label in client.labels]).max() == client.y.max
    document = model.document()
    assert document["client"]["labels"] == client.labels
    assert document["blocks"][-1]["name"] == "head"


def save_arrays(home: Path) -> None:
    """Write data sets of tasks for which no generated set exists."""
    draw = np.random.default_rng(0)
    (home / "data").mkdir()
    tokens = draw.integers(0, 20, (60, 9))
    np.savez(home / "data" / "tokens.npz", x=tokens[:, :-1], y=tokens[:, 1:])
    np.savez(home / "data" / "labels.npz", x=draw.random((60, 5)), y=draw.integers(0, 2, (60, 3)))


@pytest.mark.parametrize(
    ("task", "dataset", "model"),
    [
        ("classes", {"name": "synthetic", "examples": 60, "test_examples": 20}, "mlp"),
        ("labels", {"name": "npz", "path": "labels.npz"}, "mlp"),
        ("regression", "diabetes", "mlp"),
        (
            "next_token",
            {"name": "npz", "path": "tokens.npz", "tokens": True, "task": "next_token"},
            "causal_transformer",
        ),
        ("segmentation", {"name": "shapes", "examples": 40, "test_examples": 10}, "small_unet"),
    ],
)
def test_each_task_is_shown_and_only_classes_of_examples_are_counted(
    task: str, dataset: Any, model: str, tmp_path: Path
) -> None:
    save_arrays(tmp_path)
    data = {"dataset": dataset, "partition": "iid"}
    clients = {"total": 2, "fraction": 1.0}
    (found,) = inspected(tmp_path, algorithm="fedavg", data=data, model=model, clients=clients)
    assert bool(found.client.labels) == (task in ("classes", "labels"))


def test_a_model_that_no_client_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no client with model number 1 holds an example"):
        inspected(tmp_path, algorithm="feddf", model=["mlp", "mlp"], clients={"total": 1, "fraction": 1.0})
