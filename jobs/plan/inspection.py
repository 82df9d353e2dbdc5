"""The inspection of a spec: its models, the first batch of a client, and the payloads of a round.

Nothing is estimated: one client of the first round trains for one local step, in this process without Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.base import rng, tree
from fedsim.base.error_attribution import attribute_server_errors
from fedsim.base.tree import Tree
from fedsim.clients.population import Population, TaskLoader
from fedsim.core import Algorithm, Batch, Context
from fedsim.core.capabilities import select_cohort
from fedsim.data.dataset import Dataset
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.server_messages import make_broadcasts, make_instructions, measure_bytes_down
from fedsim.engine.worker import one_thread
from fedsim.errors import DataError
from fedsim.learning_tasks.tasks import CLASS_TASKS
from fedsim.models.net import Net
from fedsim.models.probe import skip_breakpoints
from fedsim.models.state import list_constants
from fedsim.training.flops import example_flops
from jobs.run.preparation import prepare_experiment
from jobs.settings import Settings
from jobs.spec import JobSpec


@dataclass(frozen=True)
class InspectedTensor:
    """A tensor of a model.

    Attributes:
        name: its key.
        shape: its shape.
        numbers: how many numbers it has.
        role: "trained" by the local steps of round 1; "not trained" by them, though it could be; "buffer",
            such as running statistics; or "constant".
        sent: whether the server sends it to the clients in round 1.
    """

    name: str
    shape: tuple[int, ...]
    numbers: int
    role: str
    sent: bool


@dataclass(frozen=True)
class InspectedBlock:
    """A block of a model; `output` is the shape of its output for one example, None if it is unknown."""

    name: str
    output: tuple[int, ...] | None
    tensors: tuple[InspectedTensor, ...]


@dataclass(frozen=True)
class InspectedArray:
    """The inputs or the labels of a batch: shape, number type, smallest and largest value."""

    shape: tuple[int, ...]
    dtype: str
    min: float
    max: float


@dataclass(frozen=True)
class InspectedClient:
    """A client and the first batch of its first round.

    Attributes:
        client: its number.
        examples, steps: its training examples, and its local steps in a round.
        x, y: inputs and labels of the batch.
        labels: {class name: its examples in the batch}; with several labels, the yes-labels of each. Empty
            for a task without classes of whole examples.
    """

    client: int
    examples: int
    steps: int
    x: InspectedArray
    y: InspectedArray
    labels: Mapping[str, int]


@dataclass(frozen=True)
class InspectedPayload:
    """The bytes of a payload to and from one client in round 1; None for a direction without it."""

    name: str
    down: int | None
    up: int | None


@dataclass(frozen=True)
class InspectedModel:
    """One architecture of a spec, with one of its clients.

    Attributes:
        name: of the model.
        parameters: number of parameters that a gradient step may change.
        blocks: from body to head.
        constants: the tensors that neither train nor travel.
        forward_flops, step_flops: FLOPs of one example, in a forward pass and in a local step of round 1.
        client: a client with this architecture.
        payloads: that travel between this client and the server.
    """

    name: str
    parameters: int
    blocks: tuple[InspectedBlock, ...]
    constants: tuple[InspectedTensor, ...]
    forward_flops: int
    step_flops: int
    client: InspectedClient
    payloads: tuple[InspectedPayload, ...]

    def document(self) -> dict[str, Any]:
        """Return the model as plain data."""
        return asdict(self)


def inspect_spec(
    spec: JobSpec, settings: Settings, on_status: Callable[[str], None]
) -> tuple[InspectedModel, ...]:
    """Inspect every architecture of a spec.

    Args:
        spec: of the right shape.
        settings: the data roots.
        on_status: receives the current step.

    Raises:
        SpecError, DataNotFound, DataError: as `resolve_spec`.
        FedsimError: if the client's training fails.
    """
    experiment, population = prepare_experiment(spec, settings, on_status)
    algorithm, ctx = experiment.algorithm, population.context(0)
    on_status("training one client of each architecture for one step")
    with one_thread(), skip_breakpoints():
        state = make_initial_state(algorithm, population)
        draw = rng.stream(population.settings.seed, "cohort", 0)
        cohort = list(select_cohort(algorithm, ctx, state, draw))
        return tuple(
            _inspect_model(algorithm, population, state, name, choose_client(population, cohort, number))
            for number, name in enumerate(model.name for model in spec.models)
        )


def choose_client(population: Population, cohort: Collection[int], architecture: int) -> int:
    """Return the first client of this architecture with examples, preferably one of the cohort.

    Raises:
        DataError: there is none.
    """
    for client in chain(cohort, range(population.partition.num_clients)):
        if client % len(population.nets) == architecture and population.partition.size(client):
            return client
    raise DataError(
        f"no client with model number {architecture} holds an example",
        "raise clients.total or data.limit, or name fewer models",
    )


def _inspect_model(
    algorithm: Algorithm, population: Population, state: Any, name: str, client: int
) -> InspectedModel:
    ctx = population.context(0).for_client(client)
    net, example, params = ctx.net, _first_example(population), ctx.cached_init_params()
    broadcasts = make_broadcasts(algorithm, ctx, state)
    instructions = make_instructions(algorithm, ctx, state, [client])
    with attribute_server_errors(algorithm, "count_effort"):
        trained = {key for kind in algorithm.count_effort(ctx, state, 1) for key in kind.trainable}
    message = {**broadcasts[str(ctx.architecture)], **instructions.get(client, {})}
    sent = {key for payload in message.values() for key, _ in tree.leaves(payload)}
    outputs = list_output_shapes(net, params, example)

    def inspect_tensor(key: str, value: Tensor) -> InspectedTensor:
        role = "trained" if key in trained else "not trained" if key in net.parameters else "buffer"
        return InspectedTensor(key, tuple(value.shape), value.numel(), role, key in sent)

    down = measure_bytes_down(algorithm, ctx, broadcasts, instructions).sum_payloads([client])
    return InspectedModel(
        name=name,
        parameters=net.count_parameters(),
        blocks=tuple(
            InspectedBlock(block, outputs.get(block), tuple(inspect_tensor(key, params[key]) for key in keys))
            for block, keys in net.blocks.items()
        ),
        constants=tuple(
            InspectedTensor(key, tuple(value.shape), value.numel(), "constant", sent=False)
            for key, value in list_constants(net.module).items()
        ),
        forward_flops=example_flops(net, (), example),
        step_flops=example_flops(net, trained, example),
        client=_inspect_client(algorithm, population, ctx, client, broadcasts, instructions),
        payloads=_count_payloads(algorithm, population, state, client, down),
    )


def _first_example(population: Population) -> Tensor:
    dataset = population.dataset
    example: Tensor = dataset.normalise(tree.wrap_array(dataset.train.x[:1]))[0]
    return example


def list_output_shapes(net: Net, params: Mapping[str, Tensor], example: Tensor) -> dict[str, tuple[int, ...]]:
    """Return the shape of each block's output for one example; of other models than chains only the last.

    Args:
        net: the model.
        params: its parameters and buffers.
        example: an input without the batch dimension.
    """
    x, names = example[None], net.block_names
    with torch.inference_mode(), net.evaluation_mode():
        if not net.is_chain:
            return {names[-1]: tuple(net(params, x).shape[1:])}
        found = {}
        for name, following in zip(names, [*names[1:], None], strict=True):
            x = net.run_blocks(params, x, start=name, stop=following)
            found[name] = tuple(x.shape[1:])
    return found


def _inspect_client(
    algorithm: Algorithm,
    population: Population,
    ctx: Context,
    client: int,
    broadcasts: Mapping[str, Mapping[str, Tree]],
    instructions: Mapping[int, Tree],
) -> InspectedClient:
    loader, broadcast = TaskLoader(population, torch.device("cpu")), broadcasts[str(ctx.architecture)]
    task = loader.make_task(algorithm, ctx, client, broadcast, instructions.get(client, {}), None)
    batch: Batch = task.batches[0]
    return InspectedClient(
        client=client,
        examples=task.num_examples,
        steps=len(task.batches),
        x=_inspect_array(batch.x),
        y=_inspect_array(batch.y),
        labels=_count_labels(population.dataset, batch.y),
    )


def _count_labels(dataset: Dataset, y: Tensor) -> dict[str, int]:
    if dataset.task not in CLASS_TASKS:
        return {}
    labels = y.numpy()
    counts = (labels > 0.5).sum(0) if labels.ndim > 1 else np.bincount(labels, minlength=dataset.num_classes)
    return {label: count for label, count in zip(dataset.classes, counts.tolist(), strict=True) if count}


def _inspect_array(values: Tensor) -> InspectedArray:
    known = values[~torch.isnan(values)] if values.is_floating_point() else values
    low, high = (known.min(), known.max()) if known.numel() else (torch.tensor(0), torch.tensor(0))
    dtype = str(values.dtype).removeprefix("torch.")
    return InspectedArray(tuple(values.shape), dtype, round(low.item(), 6), round(high.item(), 6))


def _count_payloads(
    algorithm: Algorithm, population: Population, state: Any, client: int, down: Mapping[str, int]
) -> tuple[InspectedPayload, ...]:
    """Train the client for one step, and count the bytes of its payloads as a record counts them."""
    settings = population.settings
    short = replace(population, settings=replace(settings, local=replace(settings.local, steps=1)))
    reduced = SerialPool(algorithm, short).begin_training(short.context(0), state, [client])()
    both, uploads = reduced.traffic.by_payload, algorithm.uploads.keys()
    return tuple(
        InspectedPayload(
            name, down.get(name), both.get(name, 0) - down.get(name, 0) if name in uploads else None
        )
        for name in [*down, *(upload for upload in uploads if upload not in down)]
    )
