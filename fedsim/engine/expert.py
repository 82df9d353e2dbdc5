"""The expert: a model of the clients' architecture, trained centrally on the data of all clients.

"When Do Curricula Work in Federated Learning?" (ICCV 2023) measures how hard an example is by the loss of
such a model; the paper gives no recipe for it. Here it is plain SGD with momentum, started anew in every
epoch, and its losses are kept in a cache under a key made of everything that they depend on.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.files import open_aside
from fedsim.base.memory_usage import name_processor
from fedsim.clients.population import Population
from fedsim.core.local_training import LocalTraining
from fedsim.core.run_settings import RunSettings
from fedsim.data.damage import UNREADABLE
from fedsim.data.dataset import Dataset
from fedsim.data.partition import Partition
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.engine.worker import one_thread
from fedsim.errors import DataError
from fedsim.learning_tasks.metrics import find_main_metric
from fedsim.models.net import Net, Params

_LOG = logging.getLogger(__name__)

Losses: TypeAlias = NDArray[np.float32]

RECIPE = LocalTraining(epochs=1, batch_size=64, lr=0.02, momentum=0.9)


def train_expert(
    data: Dataset, net: Net, *, epochs: int, seed: int, cache: Path | None = None
) -> Generator[str, None, Losses]:
    """Train an expert, yield its progress, and return its losses.

    Args:
        data: the data set; the expert trains on all of `data.train`.
        net: the architecture of the expert.
        epochs: passes over the data.
        seed: of the experiment.
        cache: a folder with the losses of earlier experts; None keeps nothing.

    Yields:
        Progress messages for users, such as "training an expert: epoch 2 of 5, ...".

    Returns:
        The loss of every training example under the trained expert, float32 `[n]`.

    Raises:
        DataError: the training diverged.
    """
    file = None if cache is None else cache / f"expert-{_key(data, net, epochs, seed)}.npy"
    if file is not None and file.is_file():
        yield "reading the expert's losses"
        kept = _load_losses(file, len(data.train))
        if kept is not None:
            return kept
    population = Population(
        dataset=data,
        partition=Partition(np.arange(len(data.train)), np.array([0, len(data.train)])),
        nets=(net,),
        settings=RunSettings(seed=seed, rounds=epochs, cohort_size=1, local=RECIPE),
    )
    params: Params = {}
    yield f"training an expert on all data, {epochs} epochs"
    for result in simulate(FedAvg(), population, SerialPool(FedAvg(), population)):
        params = result.state.params
        yield f"training an expert: epoch {result.round} of {epochs}, {_score(result.metrics)}"
    losses = _losses(data, net, params)
    if bad := int((~np.isfinite(losses)).sum()):
        raise DataError(
            f"the expert has diverged: its loss of {bad:,} of {len(losses):,} examples is not a number",
            "scale the inputs (data.dataset.normalise), or choose another model",
        )
    if file is not None:
        _save_losses(file, losses)
    return losses


def _score(metrics: Any) -> str:
    name = find_main_metric(metrics)
    return "on data without a test set" if name is None else f"test {name[7:]} {metrics[name]:.3f}"


@torch.inference_mode()
def _losses(data: Dataset, net: Net, params: Params) -> Losses:
    x, y = tree.wrap_array(data.train.x), tree.wrap_array(data.train.y)
    size = data.scored_at_once
    parts = zip(torch.split(x, size), torch.split(y, size), strict=True)
    laid_out, losses = tree.map(tree.to_channels_last, params), data.learning_task.example_losses
    with one_thread():
        found = [losses(net(laid_out, tree.to_channels_last(data.normalise(a))), b) for a, b in parts]
    return torch.cat(found).numpy()


def _key(data: Dataset, net: Net, epochs: int, seed: int) -> str:
    """Return a hash of everything that the losses depend on: data, model, recipe, seed and machine."""
    # Another torch or processor has other last bits, and a home may be shared or outlive an upgrade.
    machine = torch.__version__, name_processor(), torch.backends.cpu.get_cpu_capability()
    sha = hashlib.sha256(repr(machine).encode())
    for array in (data.train.x, data.train.y):
        sha.update(f"{array.dtype} {array.shape}".encode())
        sha.update(np.ascontiguousarray(array).data)
    for key, array in net.initial.items():
        sha.update(f"{key} {array.dtype}".encode() + array.tobytes())
    shapes = [(key, tuple(value.shape)) for key, value in net.init(seed).items()]
    read, model = (data.normalise, data.augment), (net.name, shapes, _describe_build(net.builder))
    sha.update(repr((read, model, RECIPE, epochs, seed)).encode())
    return sha.hexdigest()[:24]


def _describe_build(build: Callable[..., Any]) -> tuple[Any, ...]:
    """Describe how a model is built, in the same words in every process.

    Dropout, heads and published weights change the trained model, but not its shapes.
    """
    if isinstance(build, partial):
        arguments = [_describe_build(each) if callable(each) else each for each in build.args]
        return *_describe_build(build.func), tuple(arguments), sorted(build.keywords.items())
    return build.__module__, build.__qualname__


def _load_losses(file: Path, examples: int) -> Losses | None:
    """Load the cached losses; None if the file is damaged and the expert must train again."""
    try:
        losses = np.load(file, allow_pickle=False)
    except UNREADABLE as error:
        _LOG.warning("%s is damaged, so that an expert is trained again: %s", file, error)
        return None
    if not isinstance(losses, np.ndarray) or losses.shape != (examples,) or losses.dtype != np.float32:
        _LOG.warning("%s does not hold a loss for each example, so that an expert is trained again", file)
        return None
    return losses


def _save_losses(file: Path, losses: Losses) -> None:
    """Write the losses in one atomic step, or log why not: this run has them, and another trains again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open_aside(file) as opened:
            np.save(opened, losses)
    except OSError as error:
        _LOG.warning("the expert's losses cannot be kept: %s", error)
