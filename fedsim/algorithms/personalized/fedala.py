"""FedALA: Adaptive Local Aggregation for Personalized Federated Learning.

Zhang, Hua, Wang, Song, Xue, Ma, Guan, AAAI 2023, arXiv:2212.01197.

Idea: before it trains, a client mixes the broadcast model with its own, weight by weight, with mixing weights
that it learns on its own data.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   own       the upper layers after its last training
            mix       W, the mixing weights of these layers; from its second round on
    server  params

The lower layers are the broadcast ones. The `layers` upper ones are own + (came - own) * W. W starts at 1 and
is learnt by steps on a share of the client's examples, in their order from a position drawn at random:

    W <- clip(W - eta dL/d(mixed) * (came - own), 0, 1)

In its second round, its first mixing, a client makes at most `first_passes` passes. It stops after more than
10 passes if the standard deviation of the last 10 passes' losses (of each pass's last batch) is below
`threshold`. Later mixings make a single pass. The personal model is the mixed model at the start of a round.

Deviations: a layer is a block of the model with parameters, and running statistics are the broadcast ones.
Mixing weights are learnt in evaluation mode. The position in the examples is the same share for all clients
of a round. The first mixing has a limit; the authors' code has none.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import PRIVATE_PARAMS, FedAvg
from fedsim.algorithms.personal_parts import find_empty_head, find_missing_features
from fedsim.base import rng, tree
from fedsim.base.parameters import Positive, Range
from fedsim.base.shares import ceil_share
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, Effort
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params
from fedsim.training.losses import supervised_loss

MIXING_WEIGHTS = "mix"
"""Key of the mixing weights in a client's state."""

LAST_LOSSES = 10
"""Number of passes whose loss has to be steady before the first mixing ends."""


@dataclass(frozen=True, kw_only=True)
class FedALA(FedAvg):
    """FedAvg whose clients mix the broadcast model with their own upper layers; `eta: 0` is FedAvg.

    Attributes:
        eta: learning rate of the mixing weights, >= 0.
        share: share of a client's examples on which the mixing weights are learnt.
        layers: number of the model's last blocks that are mixed; 0 is FedAvg.
        threshold: standard deviation of the loss below which the first mixing ends.
        first_passes: largest number of passes of the first mixing.
    """

    eta: Annotated[float, Range(minimum=0)] = 1.0
    share: Annotated[float, Range(above=0, maximum=1)] = 0.8
    layers: Annotated[int, Range(0)] = 1
    threshold: Positive = 0.1
    first_passes: Annotated[int, Range(1)] = 50

    purposes: ClassVar[tuple[str, ...]] = ("personalisation",)
    further_example_use: ClassVar[str] = "examples for the initial model"
    stateful: ClassVar[bool] = True

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for more layers than the model has, for an empty head, or layers that cannot run alone."""
        if self.layers > len(net.base) + 1:
            message = f"{net.name} has {len(net.base) + 1} blocks with parameters"
            return (FieldError("layers", self.layers, message, "mix as many or fewer"),)
        if not (self.layers and self.eta):
            return ()
        if self.layers > 1 and not net.is_chain:
            message = f"fedala runs the mixed blocks alone, and the blocks of {net.name} are no chain"
            return (FieldError("layers", self.layers, message, "mix one layer, the head: layers: 1"),)
        return find_empty_head("fedala", net) or find_missing_features("fedala", net)

    def mixed_blocks(self, net: Net) -> tuple[str, ...]:
        """The blocks that are mixed, in order from the input."""
        every = (*net.base, net.block_names[-1])
        return every[len(every) - self.layers :]

    def private_keys(self, ctx: Context) -> Collection[str]:
        """The parameters of the mixed blocks."""
        keys = {key for block in self.mixed_blocks(ctx.net) for key in ctx.net.blocks[block]}
        return [key for key in ctx.net.parameters if key in keys]

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Mix the models, then train."""
        model, mix = self.mix_models(ctx, task)
        update = self.collect_update(
            ctx, task, self.train_locally(ctx, task, model, self.trainable_keys(ctx, task.broadcast))
        )
        return update._replace(client_state={**update.client_state, **({MIXING_WEIGHTS: mix} if mix else {})})

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The broadcast model, with its upper layers mixed with the client's own."""
        return self.mix_models(ctx, task)[0]

    def mix_models(self, ctx: Context, task: ClientTask) -> tuple[Params, Tree]:
        """The client's initial model, and its mixing weights; {} in the client's first round."""
        came: Params = task.broadcast["params"]
        own = task.client_state.get(PRIVATE_PARAMS)
        if not own:
            return came, {}
        known = task.client_state.get(MIXING_WEIGHTS)
        mix = known or tree.map(torch.ones_like, own)
        sample = self.sample_examples(ctx, task)
        if sample is not None and self.eta:
            mix = self.learn_mixing_weights(
                ctx, came, own, mix, sample, self.first_passes if known is None else 1
            )
        return {**came, **_interpolate_params(own, came, mix)}, mix

    def sample_examples(self, ctx: Context, task: ClientTask) -> Batch | None:
        """The examples on which the mixing weights are learnt; None for a client without examples."""
        held = list(task.examples.batches())
        if not held:
            return None
        x, y = torch.cat([part.x for part in held]), torch.cat([part.y for part in held])
        count = ceil_share(self.share, len(y))
        place = rng.stream(ctx.seed, "mixing", ctx.round).random()
        start = int(place * (len(y) - count + 1))
        return Batch(x[start : start + count], y[start : start + count])

    def learn_mixing_weights(
        self, ctx: Context, came: Params, own: Tree, mix: Tree, sample: Batch, passes: int
    ) -> Tree:
        """The mixing weights after some passes over the sample.

        The input of the mixed blocks does not depend on the mixing weights, and is computed once.

        Args:
            ctx: the round.
            came: the global model.
            own: the client's own upper layers.
            mix: the mixing weights so far.
            sample: the client's examples.
            passes: largest number of passes; the weights stop moving once the loss is steady.
        """
        net, size = ctx.net, ctx.local.batch_size
        with torch.no_grad():
            below = torch.cat(
                [net.run_blocks(came, x, stop=self.mixed_blocks(net)[0]) for x in torch.split(sample.x, size)]
            )
        batches = list(zip(torch.split(below, size), torch.split(sample.y, size), strict=True))
        apart, losses = tree.sub(tree.select(came, own), own), list[Tensor]()
        moving = torch.ones((), device=sample.y.device)
        for _ in range(passes):
            for x, y in batches:
                value, slopes = self._mixing_gradients(
                    ctx, came, _interpolate_params(own, came, mix), Batch(x, y)
                )
                # A finished client takes steps of 0: all clients of a stack make equally many steps.
                rate = self.eta * moving
                mix = {key: (mix[key] - rate * slopes[key] * apart[key]).clamp(0, 1) for key in mix}
            losses.append(value)
            moving = moving * self._is_unsteady(losses)
        return mix

    def _mixing_gradients(
        self, ctx: Context, came: Params, mixed: Params, batch: Batch
    ) -> tuple[Tensor, Tree]:
        """The loss of the mixed blocks on their inputs, and its gradients."""
        weights = {key: value.detach().requires_grad_() for key, value in mixed.items()}
        with torch.enable_grad():
            logits = ctx.net.run_blocks({**came, **weights}, batch.x, start=self.mixed_blocks(ctx.net)[0])
            value = supervised_loss(ctx, logits, batch)
            # A head may have parameters that no output depends on.
            slopes = torch.autograd.grad(
                value, list(weights.values()), allow_unused=True, materialize_grads=True
            )
        return value.detach(), dict(zip(weights, slopes, strict=True))

    def _is_unsteady(self, losses: Sequence[Tensor]) -> Tensor:
        """1 until the loss is steady, then 0."""
        if len(losses) <= LAST_LOSSES:
            return torch.ones_like(losses[-1])
        return (torch.stack(list(losses[-LAST_LOSSES:])).std(correction=0) >= self.threshold).float()

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The mixing weights' pass over a share of the examples, and the local training.

        The first mixing, with more passes, counts as one pass.
        """
        usual = super().count_effort(ctx, state, steps)
        if not (ctx.round and self.layers and self.eta):
            return usual
        mixing_steps = ceil_share(self.share, ctx.local.steps_per_pass(steps))
        return (Effort(mixing_steps, self.private_keys(ctx)), *usual)


def _interpolate_params(own: Tree, came: Params, mix: Tree) -> Params:
    """Own + (came - own) * mix; with weights of 1 it equals `came`, to the last bit."""
    return tree.map(torch.lerp, own, tree.select(came, own), mix)
