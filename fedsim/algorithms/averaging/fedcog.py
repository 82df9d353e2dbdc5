"""Fake It Till Make It: Federated Learning with Consensus-Oriented Generation.

Ye, Du, Ni, Chen, Wang, ICLR 2024, arXiv:2312.05966.

Idea: a client makes up inputs of the classes that it lacks, such as the global model knows and its own last
model does not, and learns from the global model on them.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   previous  the model that it trained last
    server  params

After `start_round` rounds, a client begins each round with `samples` inputs of Gaussian noise, of which class
c gets the share (max n - n_c) / sum over c' of (max n - n_c'), rounded down. It moves them by Adam to descend

    CE(global(x), y) + lambda_dis (1 - JS(global(x), previous(x))),

JS being the mean Jensen-Shannon divergence, with probabilities clamped to 0.01 and 0.99. The inputs of the
best step are kept, with what the global model says of them. Each local step then has, besides the
cross-entropy, lambda_kd KL(global || student) on a batch of them, drawn at random.

Deviations: the real part weighs 1 and the other lambda_kd, as where the method is compared with KDIA; its
own code weighs them by n and sum (max n - n_c). A client that was never there has the global model in the
place of its previous one, so that JS is 0. A client whose classes are even learns from nothing made up.
Inputs have to be numbers, so models of tokens cannot be trained by it.

Reference result: see docs/results/kdia.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Count, Positive, Range
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, Effort
from fedsim.core.capabilities import StepNoise
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params
from fedsim.techniques.soft_targets import kl_divergence
from fedsim.training.flops import input_flops
from fedsim.training.local_loop import TrainedModel, masked_mean

MOMENTS = (0.5, 0.9)
"""Adam's two decay rates while inputs are made up."""


@dataclass(frozen=True, kw_only=True)
class FedCOG(FedAvg, StepNoise):
    """FedAvg whose clients make up inputs of the classes that they lack; lambda_kd 0 is FedAvg.

    Attributes:
        lambda_dis: weight of the disagreement that the inputs shall cause, >= 0.
        lambda_kd: weight of the distillation on them, >= 0.
        start_round: rounds of plain FedAvg before it begins.
        samples: how many inputs a client makes up.
        descent: steps of Adam that it takes.
        rate: the learning rate of these steps.
    """

    lambda_dis: Annotated[float, Range(minimum=0)] = 0.1
    lambda_kd: Annotated[float, Range(minimum=0)] = 0.01
    start_round: Annotated[int, Range(minimum=0)] = 50
    samples: Count = 256
    descent: Count = 500
    rate: Positive = 0.01

    stateful: ClassVar[bool] = True
    tasks: ClassVar[Collection[str]] = frozenset({"classes"})

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """Models of texts, whose inputs are no numbers that a gradient could move."""
        if not any(isinstance(module, nn.Embedding) for module in net.module.modules()):
            return ()
        message = f"{net.name} takes tokens, and inputs cannot be made up by gradients"
        return (FieldError("name", "fedcog", message, "choose a model of images, or another method"),)

    def uses_synthetic_inputs(self, ctx: Context) -> bool:
        """Whether clients make up inputs in this round."""
        return self.lambda_kd > 0 and ctx.round >= self.start_round

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """The global model in the place of a previous one."""
        return {"previous": dict(broadcast["params"])}

    def draw_step_noise(
        self, ctx: Context, rng: np.random.Generator, steps: int, batch_size: int, num_examples: int
    ) -> Tree:
        """A part of the first inputs for each step, and which inputs it shall learn from (in [0, 1))."""
        if not self.uses_synthetic_inputs(ctx) or not steps:
            return {}
        shape = (steps, -(-self.samples // steps), *ctx.input_shape)
        return {
            "inputs": rng.standard_normal(shape, np.float32),
            "chosen": rng.random((steps, batch_size), np.float32),
        }

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Make up inputs, where it is time for it; then the parent's."""
        if self.uses_synthetic_inputs(ctx) and len(task.batches):
            made = self.make_synthetic_inputs(ctx, task)
            task = task._replace(instruction={**task.instruction, "made": made})
        return super().train_client(ctx, task)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, which the client keeps as well."""
        return (
            super().make_update(ctx, task, trained)._replace(client_state={"previous": dict(trained.params)})
        )

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy, and the distillation on what was made up."""
        base = super().loss(ctx, task, params, batch)
        if "made" not in task.instruction:
            return base
        made = task.instruction["made"]
        rows = (batch.noise["chosen"] * made["count"]).long()
        far: Tensor = kl_divergence(made["logits"][rows], ctx.net(params, made["inputs"][rows]))
        wanted: Tensor = made["count"] > 0
        return base + self.lambda_kd * wanted * far

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """Besides, making inputs up by two models, and learning from a batch of them in each step."""
        kinds = super().count_effort(ctx, state, steps)
        if not self.uses_synthetic_inputs(ctx) or not steps:
            return kinds
        moved, learnt = input_flops(ctx.net, tuple(ctx.input_shape))
        made = 2 * self.samples * self.descent * moved
        return (kinds[0]._replace(besides=made + steps * ctx.local.batch_size * learnt), *kinds[1:])

    def make_synthetic_inputs(self, ctx: Context, task: ClientTask) -> Tree:
        """Inputs of classes that the client lacks: `inputs`, the global model's `logits`, their `count`."""
        labels, count = choose_rare_labels(task.label_counts, self.samples)
        real = (torch.arange(self.samples, device=labels.device) < count).float()
        x = torch.cat([batch.noise["inputs"] for batch in task.batches])[: self.samples]
        # A model out of training is laid out otherwise than one out of a checkpoint, which rounds otherwise.
        held = task.broadcast["params"], task.client_state["previous"]
        models = [tree.map(tree.to_channels_last, model) for model in held]
        first = second = torch.zeros_like(x)
        best, kept = torch.full_like(count, torch.inf), (x, ctx.net(models[0], x).detach())
        for step in range(1, self.descent + 1):
            x.requires_grad_()
            logits, other = (ctx.net(model, x) for model in models)
            value = self.synthesis_loss(logits, other, labels, real)
            (slope,) = torch.autograd.grad(value, x)
            with torch.no_grad():
                better = value < best
                best = torch.where(better, value, best)
                kept = torch.where(better, x, kept[0]), torch.where(better, logits, kept[1])
                first = torch.lerp(slope, first, MOMENTS[0])
                second = torch.lerp(slope**2, second, MOMENTS[1])
                size = (second / (1 - MOMENTS[1] ** step)).sqrt() + 1e-8
                x = x - self.rate * first / (1 - MOMENTS[0] ** step) / size
        return {"inputs": kept[0].detach(), "logits": kept[1].detach(), "count": count}

    def synthesis_loss(self, taught: Tensor, own: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """What the made-up inputs descend: a scalar.

        Args:
            taught: the global model's logits `[samples, classes]`.
            own: the previous model's.
            labels: of which class each shall be.
            mask: `[samples]`, 0 for those that are not wanted.
        """
        fit = masked_mean(F.cross_entropy(taught, labels, reduction="none"), mask)
        p, q = own.softmax(-1), taught.softmax(-1)
        p, q, middle = (each.clamp(0.01, 0.99) for each in (p, q, (p + q) / 2))
        both = middle * (2 * middle.log() - p.log() - q.log())
        return fit + self.lambda_dis * (1 - masked_mean(both.sum(-1) / 2, mask).clamp(0, 1))


def choose_rare_labels(label_counts: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """The labels of `samples` inputs, those that are rarest most often, and how many of them are wanted.

    Args:
        label_counts: float32 `[classes]`.
        samples: how many.

    Returns:
        int64 `[samples]`, and a scalar; what rounding down or even classes leave over is padding at the end.
    """
    need = label_counts.max() - label_counts
    upto = (samples * need / need.sum().clamp(min=1)).floor().cumsum(0)
    places = torch.arange(samples, device=label_counts.device)
    labels = torch.searchsorted(upto, places.float(), right=True)
    return labels.clamp(max=len(label_counts) - 1), upto[-1]
