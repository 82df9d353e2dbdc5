"""Fake It Till Make It: Federated Learning with Consensus-Oriented Generation.

Ye, Du, Ni, Chen, Wang, ICLR 2024, arXiv:2312.05966.

Idea: a client generates inputs of classes that it lacks, which the global model classifies well and the
client's previous model does not, and learns from the global model on them.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   previous  the model that it trained last
    server  params

After `start_round` rounds, a client begins each round with `samples` inputs of Gaussian noise; class c gets
the share (max n - n_c) / sum over c' of (max n - n_c'), rounded down. The client changes them with Adam to
descend

    CE(global(x), y) + lambda_dis (1 - JS(global(x), previous(x))),

where JS is (KL(M || P) + KL(M || Q)) / 2 as in the authors' code, with M the mean of the predictions P and Q
and with probabilities clamped to 0.01 and 0.99; the Jensen-Shannon divergence has KL(P || M) and KL(Q || M).
It keeps the inputs of the best step, with the global model's logits. Each local step then adds to the
cross-entropy lambda_kd KL(global || student) on a batch of these inputs, drawn at random.

Deviations: the real part weighs 1 and the generated part lambda_kd, as in the comparison with KDIA; the
authors' code weighs them by n and sum (max n - n_c). In a client's first round the global model replaces its
previous model, which makes JS 0. A client with equal class counts generates no inputs. Gradients
cannot change tokens, so that models of texts are refused.

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
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, Effort, ServerState
from fedsim.core.capabilities import StepNoise
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params
from fedsim.techniques.late_starts import warn_of_late_start
from fedsim.techniques.soft_targets import kl_divergence
from fedsim.training.flops import input_flops
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import masked_mean

MOMENTS = (0.5, 0.9)
"""Adam's two decay rates for the generated inputs."""


@dataclass(frozen=True, kw_only=True)
class FedCOG(FedAvg, StepNoise):
    """FedAvg whose clients generate inputs of classes that they lack; `lambda_kd: 0` is FedAvg.

    Attributes:
        lambda_dis: weight of the disagreement between the global and the previous model, >= 0.
        lambda_kd: weight of the distillation on the generated inputs, >= 0.
        start_round: rounds of plain FedAvg before the generation begins; a run of no more rounds is FedAvg.
        samples: number of inputs that a client generates in a round.
        descent: number of Adam steps that change the inputs.
        rate: learning rate of these Adam steps.
    """

    lambda_dis: Annotated[float, Range(minimum=0)] = 0.1
    lambda_kd: Annotated[float, Range(minimum=0)] = 0.01
    start_round: Annotated[int, Range(minimum=0)] = 50
    samples: Count = 256
    descent: Count = 500
    rate: Positive = 0.01

    purposes: ClassVar[tuple[str, ...]] = ("label-skew", "distillation")
    further_example_use: ClassVar[str] = "label counts"
    stateful: ClassVar[bool] = True
    tasks: ClassVar[Collection[str]] = frozenset({"classes"})

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model of texts: gradients cannot change tokens."""
        if not any(isinstance(module, nn.Embedding) for module in net.module.modules()):
            return ()
        message = f"{net.name} takes tokens, and gradients cannot generate tokens"
        return (FieldError("name", "fedcog", message, "choose a model of images, or another algorithm"),)

    def uses_synthetic_inputs(self, ctx: Context) -> bool:
        """Whether clients generate inputs in this round."""
        return self.lambda_kd > 0 and ctx.round >= self.start_round

    def init_server_state(self, ctx: Context) -> ServerState:
        """The parent's state; a warning if the generation begins after the last round."""
        if self.lambda_kd:
            warn_of_late_start(ctx, "algorithm.start_round", self.start_round, "fedcog trains as fedavg does")
        return super().init_server_state(ctx)

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """The global model, in the place of a previous one."""
        return {"previous": dict(broadcast["params"])}

    def draw_step_noise(
        self, ctx: Context, rng: np.random.Generator, steps: int, batch_size: int, num_examples: int
    ) -> Tree:
        """For each step: some of the initial inputs, and numbers in [0, 1) that choose a generated batch."""
        if not self.uses_synthetic_inputs(ctx) or not steps:
            return {}
        shape = (steps, -(-self.samples // steps), *ctx.input_shape)
        return {
            "inputs": rng.standard_normal(shape, np.float32),
            "chosen": rng.random((steps, batch_size), np.float32),
        }

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Generate inputs after the first `start_round` rounds, then train as the parent does."""
        if self.uses_synthetic_inputs(ctx) and len(task.batches):
            made = self.make_synthetic_inputs(ctx, task)
            task = task._replace(instruction={**task.instruction, "made": made})
        return super().train_client(ctx, task)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, for the server and for the client state."""
        return (
            super().make_update(ctx, task, trained)._replace(client_state={"previous": dict(trained.params)})
        )

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy, plus the distillation on generated inputs."""
        base = super().loss(ctx, task, params, batch)
        if "made" not in task.instruction:
            return base
        made = task.instruction["made"]
        rows = (batch.noise["chosen"] * made["count"]).long()
        far: Tensor = kl_divergence(made["logits"][rows], ctx.net(params, made["inputs"][rows]))
        wanted: Tensor = made["count"] > 0
        return base + self.lambda_kd * wanted * far

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, the generation of inputs, and one generated batch in each step."""
        kinds = super().count_effort(ctx, state, steps)
        if not self.uses_synthetic_inputs(ctx) or not steps:
            return kinds
        making, training = input_flops(ctx.net, tuple(ctx.input_shape))
        synthesis = 2 * self.samples * self.descent * making
        distillation = steps * ctx.local.batch_size * training
        return (kinds[0]._replace(extra_flops=synthesis + distillation), *kinds[1:])

    def make_synthetic_inputs(self, ctx: Context, task: ClientTask) -> Tree:
        """Generated inputs of rare classes: `inputs`, the global model's `logits`, their `count`."""
        labels, count = choose_rare_labels(task.label_counts, self.samples)
        real = (torch.arange(self.samples, device=labels.device) < count).float()
        x = torch.cat([batch.noise["inputs"] for batch in task.batches])[: self.samples]
        # The memory layout changes rounding: models from training and from a checkpoint get the same one.
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

    def synthesis_loss(
        self, global_logits: Tensor, previous_logits: Tensor, labels: Tensor, mask: Tensor
    ) -> Tensor:
        """The loss of the generated inputs: a scalar.

        Args:
            global_logits: the global model's logits `[samples, classes]`.
            previous_logits: the previous model's logits.
            labels: the wanted class of each input.
            mask: `[samples]`, 0 for inputs that are not wanted.
        """
        fit = masked_mean(F.cross_entropy(global_logits, labels, reduction="none"), mask)
        p, q = previous_logits.softmax(-1), global_logits.softmax(-1)
        p, q, middle = (each.clamp(0.01, 0.99) for each in (p, q, (p + q) / 2))
        both = middle * (2 * middle.log() - p.log() - q.log())
        return fit + self.lambda_dis * (1 - masked_mean(both.sum(-1) / 2, mask).clamp(0, 1))


def choose_rare_labels(label_counts: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """The labels of `samples` inputs, rare classes most often, and the number of inputs that are wanted.

    Args:
        label_counts: float32 `[classes]`.
        samples: number of labels.

    Returns:
        int64 `[samples]`, and a scalar; the labels after this number are padding.
    """
    need = label_counts.max() - label_counts
    upto = (samples * need / need.sum().clamp(min=1)).floor().cumsum(0)
    places = torch.arange(samples, device=label_counts.device)
    labels = torch.searchsorted(upto, places.float(), right=True)
    return labels.clamp(max=len(label_counts) - 1), upto[-1]
