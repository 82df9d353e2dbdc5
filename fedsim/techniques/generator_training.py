"""How a server trains a conditional generator: on what the clients' classifiers say of its features."""

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
from fedsim.core.exchange import Progress
from fedsim.models.net import Net, Params
from fedsim.techniques.generators import Diversity, FeatureEntry, Generator, diversity_loss
from fedsim.training.adam import Adam

TELL_EVERY = 25
"""Steps between two words on how far it is."""

LabelDraw: TypeAlias = Literal["pass", "batch"]
"""Whether labels are drawn once for all passes and shuffled in each, or anew for each batch."""

Labels: TypeAlias = Literal["pass", "batch", "data"]
"""The same, or on clients those of the step's own examples, and on the server anew for each batch."""

FeatureClassifier = Callable[[Tensor], Tensor]
"""Logits `[batch, classes]` of features `[batch, *shape]`; of several judges `[judges, batch, classes]`."""

Critic = Callable[[Tensor, Tensor], Tensor]
"""What is wrong, a scalar, with features `[batch, *shape]` that shall be of the classes int64 `[batch]`."""


@dataclass(frozen=True, kw_only=True)
class GeneratorTraining:
    """One training of a generator.

    Attributes:
        epochs: passes over the labels that are drawn.
        batches: in each of them.
        batch_size: examples of each.
        lr: Adam's rate.
        weight_decay: of the generator's weights, added to their gradients.
        diversity: which loss keeps it from making the same of all noise.
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

        So every pass asks for each class as often as the one draw has it. What chance makes uneven in that
        stays so for all passes of a training, where labels that are drawn for each batch even out over them.

        Args:
            stream: to draw from.
            num_classes: C.
            drawn: "batch" draws those of each step anew, as FedGen and FedCG do.
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
    """The labels of a client's generated features, int64 `[steps, batch_size]`, as Alg. 2 of KDIA has them.

    As many as it has examples are drawn evenly and shuffled in each pass over these; where there are fewer
    examples than a batch takes, they are drawn anew in each. A step reads its row from the left, as far as it
    has examples, so the rest of a pass's last row is for curricula alone, whose steps may have more.

    Args:
        rng: to draw from.
        num_classes: C.
        steps: local steps.
        batch_size: the most examples of a step.
        num_examples: of the client, at least 1; every pass over them has as many labels.
        drawn: "batch" draws those of each step anew.
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
    """What a generator is asked for in one training, step by step.

    Attributes:
        labels: the wanted classes, int64 `[batch]` each.
        scalars: what else is wanted, float32 `[batch, scalars]` each; None where the generator takes nothing.
    """

    labels: Sequence[np.ndarray[Any, Any]]
    scalars: Sequence[np.ndarray[Any, Any]] | None = None


def init_generator(generator: Generator, seed: int) -> dict[str, Any]:
    """A generator and Adam's moments before the first step: `params`, `first`, `second`, `steps`, `loss`."""
    params = generator.net.init(seed)
    moments = tree.zeros_like(tree.select(params, generator.net.parameters))
    still = {"first": moments, "second": tree.zeros_like(moments)}
    return {"params": params, **still, "steps": torch.zeros((), dtype=torch.int64), "loss": torch.zeros(())}


def make_classifiers(
    net: Net, where: FeatureEntry, heads: Sequence[Params], device: torch.device
) -> FeatureClassifier:
    """Several classifiers, each for itself: logits `[classifiers, batch, classes]`.

    Args:
        net: the model that they are the last blocks of.
        where: the first of these blocks.
        heads: their keys, one classifier for each client.
        device: where they are asked.
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
    """The mean of several classifiers' logits.

    Args:
        net: the model that they are the last blocks of.
        where: the first of these blocks.
        heads: their keys, one classifier for each client.
        weights: of the clients; they sum to 1.
        device: where it is asked.
    """
    each = make_classifiers(net, where, heads, device)
    shares = torch.tensor(weights, dtype=torch.float32, device=device).view(-1, 1, 1)
    return lambda made: (shares * each(made)).sum(0)


def joint_critic(judge: FeatureClassifier) -> Critic:
    """The cross-entropy of one judge."""
    return lambda made, wanted: F.cross_entropy(judge(made), wanted)


def label_critic(each: FeatureClassifier, shares: Tensor) -> Critic:
    """The classifiers' own cross-entropies, each weighted by its client's share of the wanted class.

    Args:
        each: the classifiers, as `judges` gives them.
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
    """Train a generator to make features that please a critic, and that differ.

    Args:
        generator: which.
        state: as `untrained` or an earlier training gave it; it is left as it is.
        critic: what its features are shown to.
        schedule: how.
        batches: what it is asked for.
        stream: noise is drawn from.
        device: where to train.

    Yields:
        How far it is.

    Returns:
        The state after it, on the CPU.
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
        noise = torch.from_numpy(stream.standard_normal((len(labels), generator.noise), np.float32)).to(
            device
        )
        wanted = torch.from_numpy(labels).to(device)
        given = None if scalars is None else torch.from_numpy(scalars[step - 1]).to(device)
        with generator.net.training_mode():
            made = generator(params, noise, wanted, given)
        loss = critic(made, wanted) + diversity_loss(schedule.diversity, noise, made)
        adam(list(torch.autograd.grad(loss, weights)), steps + step)
        value = loss.detach()
        if step % TELL_EVERY == 0:
            yield Progress("generator", step, len(order))
    for weight in weights:
        weight.requires_grad_(False)
    home = tree.map(lambda leaf: leaf.cpu(), working)
    return {**home, "steps": torch.tensor(steps + len(order)), "loss": value.cpu()}
