"""The server's training of a conditional generator, on the losses of the clients' classifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Generator as Steps
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.core.measures import PROGRESS_STEPS, Progress
from fedsim.models.net import Net, Params
from fedsim.techniques.generators import Diversity, FeatureEntry, Generator, diversity_loss
from fedsim.training.optimizers import Adam

LabelDraw: TypeAlias = Literal["pass", "batch"]
"""Draw labels once for all passes and shuffle them in each (`pass`), or draw them anew for each batch."""

LabelSource: TypeAlias = Literal["pass", "batch", "data"]
"""As `LabelDraw`; with `data` clients use their examples' labels, and the server draws for each batch."""

FeatureClassifier = Callable[[Tensor], Tensor]
"""Logits `[batch, classes]` of features `[batch, *shape]`; of several classifiers `[n, batch, classes]`."""

Critic = Callable[[Tensor, Tensor], Tensor]
"""The loss, a scalar, of features `[batch, *shape]` for the wanted classes, int64 `[batch]`."""


@dataclass(frozen=True, kw_only=True)
class GeneratorTraining:
    """The settings of a generator's training.

    Attributes:
        epochs: passes over the labels that are drawn.
        batches: batches of a pass.
        batch_size: examples of a batch.
        lr: Adam's learning rate.
        weight_decay: of the generator's weights, added to their gradients.
        diversity: loss that makes the features of a batch differ.
    """

    epochs: int
    batches: int
    batch_size: int
    lr: float
    weight_decay: float
    diversity: Diversity

    def draw_step_labels(
        self, stream: np.random.Generator, num_classes: int, drawn: LabelDraw = "pass"
    ) -> list[np.ndarray[Any, Any]]:
        """The labels of every step: drawn once for all passes, then shuffled in each.

        Every pass therefore has each class as often as the one draw has it. Its uneven class counts stay for
        all passes of a training; labels drawn for each batch even out over the training.

        Args:
            stream: random generator.
            num_classes: C.
            drawn: "batch" draws new labels for each step, as FedGen and FedCG do.
        """
        if drawn == "batch":
            return list(stream.integers(num_classes, size=(self.epochs * self.batches, self.batch_size)))
        once = stream.integers(num_classes, size=self.batches * self.batch_size)
        passes = (stream.permutation(once) for _ in range(self.epochs))
        return [batch for each in passes for batch in each.reshape(self.batches, self.batch_size)]


def draw_client_labels(
    rng: np.random.Generator,
    num_classes: int,
    *,
    steps: int,
    batch_size: int,
    num_examples: int,
    drawn: LabelDraw = "pass",
) -> np.ndarray[Any, Any]:
    """The labels of a client's generated features, int64 `[steps, batch_size]`, as in Alg. 2 of KDIA.

    As many labels as the client has examples are drawn evenly and shuffled in each pass; a client with less
    examples than a batch draws new ones in each pass. A step uses its row from the left, as many labels as it
    has examples. Only curricula, whose steps may have more examples, use the rest of a pass's last row.

    Args:
        rng: random generator.
        num_classes: C.
        steps: local steps.
        batch_size: largest number of examples of a step.
        num_examples: the client's examples, at least 1; every pass over them has as many labels.
        drawn: "batch" draws new labels for each step.
    """
    each = -(-num_examples // batch_size)
    passes = -(-steps // each)
    rows = rng.integers(num_classes, size=(passes, each * batch_size))
    if drawn == "pass" and num_examples >= batch_size:
        once = rng.integers(num_classes, size=num_examples)
        for row in rows:
            row[:num_examples] = rng.permutation(once)
    return rows.reshape(-1, batch_size)[:steps]


class GeneratorBatches(NamedTuple):
    """The inputs of a generator in one training, step by step.

    Attributes:
        labels: the wanted classes, int64 `[batch]` for each step.
        scalars: further inputs, float32 `[batch, scalars]` for each step; None if the generator has none.
    """

    labels: Sequence[np.ndarray[Any, Any]]
    scalars: Sequence[np.ndarray[Any, Any]] | None = None


def init_generator(generator: Generator, seed: int) -> dict[str, Any]:
    """An untrained generator with Adam's moments: `params`, `first`, `second`, `steps`, `loss`."""
    params = generator.net.init(seed)
    moments = tree.zeros_like(tree.select(params, generator.net.parameters))
    still = {"first": moments, "second": tree.zeros_like(moments)}
    return {"params": params, **still, "steps": torch.zeros((), dtype=torch.int64), "loss": torch.zeros(())}


def make_classifiers(
    net: Net, where: FeatureEntry, heads: Sequence[Params], device: torch.device
) -> FeatureClassifier:
    """Return several classifiers as one function: logits `[classifiers, batch, classes]`.

    Args:
        net: the model; its last blocks are the classifier.
        where: the first of these blocks.
        heads: the weights of the classifiers, one for each client.
        device: the device of the classifiers.
    """
    stacked = tree.map(lambda *parts: torch.stack(parts).to(device), *heads)
    if net.stackable:
        one = torch.vmap(lambda head, made: net.run_blocks(head, made, start=where.block), in_dims=(0, None))
        return lambda made: one(stacked, made)
    apart = [tree.map(lambda leaf, at=at: leaf[at], stacked) for at in range(len(heads))]
    return lambda made: torch.stack([net.run_blocks(head, made, start=where.block) for head in apart])


def make_joint_classifier(
    net: Net, where: FeatureEntry, heads: Sequence[Params], weights: Sequence[float], device: torch.device
) -> FeatureClassifier:
    """Return the mean of several classifiers' logits as a function.

    Args:
        net: the model; its last blocks are the classifier.
        where: the first of these blocks.
        heads: the weights of the classifiers, one for each client.
        weights: of the clients; they sum to 1.
        device: the device of the classifiers.
    """
    each = make_classifiers(net, where, heads, device)
    shares = torch.tensor(weights, dtype=torch.float32, device=device).view(-1, 1, 1)
    return lambda made: (shares * each(made)).sum(0)


def joint_critic(judge: FeatureClassifier) -> Critic:
    """Return the cross-entropy of one classifier."""
    return lambda made, wanted: F.cross_entropy(judge(made), wanted)


def label_critic(each: FeatureClassifier, shares: Tensor) -> Critic:
    """Return the classifiers' cross-entropies, each weighted by its client's share of the wanted class.

    Args:
        each: the classifiers, see `make_classifiers`.
        shares: float32 `[classifiers, classes]`, on their device; the columns of wanted classes sum to 1.
    """

    def critic(made: Tensor, wanted: Tensor) -> Tensor:
        said = F.log_softmax(each(made), -1)
        right = said.gather(-1, wanted.expand(len(said), -1).unsqueeze(-1)).squeeze(-1)
        return -(shares[:, wanted] * right).sum(0).mean()

    return critic


def train_generator(
    generator: Generator,
    state: Tree,
    critic: Critic,
    schedule: GeneratorTraining,
    batches: GeneratorBatches,
    stream: np.random.Generator,
    device: torch.device,
) -> Steps[Progress, None, dict[str, Any]]:
    """Train a generator to lower a critic's loss, with features that differ from one another.

    Args:
        generator: the generator.
        state: from `init_generator` or from an earlier training; it is not changed.
        critic: loss of the features.
        schedule: the settings.
        batches: the generator's inputs.
        stream: random generator of the noise.
        device: the device of the training.

    Yields:
        The progress.

    Returns:
        The new state, on the CPU.
    """
    moving = generator.net.parameters
    working = tree.map(
        lambda leaf: leaf.to(device, copy=True), tree.select(state, ("params", "first", "second"))
    )
    params, steps, value = working["params"], int(state["steps"]), state["loss"]
    weights = [params[key].requires_grad_() for key in moving]
    moments = [[working[part][key] for key in moving] for part in ("first", "second")]
    adam = Adam(weights, moments, lr=schedule.lr, weight_decay=schedule.weight_decay)
    order, scalars = batches
    for step, labels in enumerate(order, start=1):
        drawn = stream.standard_normal((len(labels), generator.noise), np.float32)
        noise = tree.send_to_device(torch.from_numpy(drawn), device)
        wanted = tree.send_to_device(torch.from_numpy(labels), device)
        given = None
        if scalars is not None:
            given = tree.send_to_device(torch.from_numpy(scalars[step - 1]), device)
        with generator.net.training_mode():
            made = generator(params, noise, wanted, given)
        loss = critic(made, wanted) + diversity_loss(schedule.diversity, noise, made)
        adam(list(torch.autograd.grad(loss, weights)), steps + step)
        value = loss.detach()
        if step % PROGRESS_STEPS == 0:
            yield Progress("generator", step, len(order))
    for weight in weights:
        weight.requires_grad_(False)
    home = tree.map(lambda leaf: leaf.cpu(), working)
    return {**home, "steps": torch.tensor(steps + len(order)), "loss": value.cpu()}
