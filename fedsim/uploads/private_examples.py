"""PrivateExamples: any algorithm whose clients send trained models, with privacy for each example (DP-SGD).

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang, CCS 2016, arXiv:1607.00133. With a budget for each
client as in Liu, Hu, Wu, Smith, NeurIPS 2022, arXiv:2206.07902: each client keeps the budget for its own
examples, against all other clients and the server.

Wire:
    down, up, keeps  the base algorithm's
    server  base      the base algorithm's state
            examples  of each client that took part
            steps     private steps of each client so far

Each local step takes a Poisson sample of the client's n examples: every example with the probability 1 / m,
independently of the others, where m = ceil(n / batch size). An epoch has m steps. Gradients are clipped
example by example and get noise (`fedsim.training.private_steps`). All that a client sends is computed from
noisy gradients, from what it received, and from n, so that the budget of its steps covers all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from math import isinf
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsim.base import rng
from fedsim.base.parameters import Positive, Range
from fedsim.core import Algorithm, Batch, ClientTask, ClientUpdate, Context, Pacing, ReducedUpdates
from fedsim.core.capabilities import (
    BatchPacing,
    ClientSurvey,
    HeldOutExamples,
    LabelCensus,
    StepNoise,
    UpdatePostprocessing,
)
from fedsim.core.wrapper import StatefulWrapper, Wrapper, WrapperState
from fedsim.errors import FedsimError
from fedsim.training.private_steps import PrivateBatches, make_hidden_error
from fedsim.uploads.accounting import (
    AccountantName,
    compute_worst_epsilon,
    count_batches,
    find_noise_multiplier,
)
from fedsim.uploads.model_updates import explain_statistics, unwrap


@dataclass(frozen=True, kw_only=True)
class PrivateExamplesState(WrapperState):
    """The server state.

    Attributes:
        examples: the number of examples of each client that took part, int64 `[N]`; 0 for the others.
        steps: private steps of each client so far, int64 `[N]`.
    """

    examples: Tensor
    steps: Tensor


@dataclass(frozen=True, kw_only=True)
class PrivateExamples(StatefulWrapper):
    """Any algorithm whose clients train by one local loop, with differential privacy for each example.

    Attributes:
        base: the algorithm.
        clip: C, the largest norm of an example's gradient.
        noise_multiplier: z, of all clients; 0 for no noise, and no privacy. None with `epsilon`.
        epsilon: the budget of every client; each finds the noise with which it spends the budget if it takes
            part in all rounds. None with `noise_multiplier`.
        delta: of the budget.
        accountant: computes the budget.

    Raises:
        ValueError: if the steps of the base algorithm cannot be private, or unless exactly one of `epsilon`
            and `noise_multiplier` is given.
    """

    own: ClassVar[frozenset[type]] = frozenset({BatchPacing})

    clip: Positive = 1.0
    noise_multiplier: Annotated[float, Range(minimum=0)] | None = None
    epsilon: Positive | None = None
    delta: Annotated[float, Range(above=0, below=1)] = 1e-5
    accountant: AccountantName = "rdp"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give either epsilon or noise_multiplier")
        if reason := explain_other_training(unwrap(self.base)):
            raise ValueError(f"{type(unwrap(self.base)).__name__} has no private steps: {reason}")

    def depends_on_num_rounds(self) -> bool:
        """Whether the noise was found for the budget of all rounds, or the base algorithm depends on them."""
        return self.epsilon is not None or bool(super().depends_on_num_rounds())

    # server

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, before any step.

        Raises:
            FedsimError: if a model sends statistics of its examples.
        """
        if reason := explain_statistics(ctx.nets):
            raise FedsimError(f"the model does not suit privacy: {reason}", "choose another model")
        zeros = torch.zeros(ctx.num_clients, dtype=torch.int64)
        return PrivateExamplesState(base=self.base.init_server_state(ctx), examples=zeros, steps=zeros)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's next state, and the steps that the clients of the round made."""
        # The losses of clients have no noise: the algorithm must not follow them.
        after = super().aggregate(ctx, state, replace(reduced, metrics={}))
        return self.count_steps(ctx, after, reduced)

    def count_steps(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """Return the state with the private steps that the clients of a round made."""
        examples, steps = state.examples.clone(), state.steps.clone()
        for client, held in zip(reduced.clients, reduced.num_examples, strict=True):
            examples[client] = held
            steps[client] += ctx.for_client(client).local.steps_for(held)
        return replace(state, examples=examples, steps=steps)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base algorithm's record, and the largest epsilon of all clients; null without noise."""
        mechanisms = self.list_mechanisms(ctx, state)
        epsilon = compute_worst_epsilon(self.accountant, mechanisms, self.delta)
        noise = self.noise_multiplier
        if noise is None:
            noise = max((each[0] for each in mechanisms), default=0.0)
        said = {
            "kind": "examples",
            "epsilon": None if isinf(epsilon) else round(epsilon, 6),
            "delta": self.delta,
            "noise_multiplier": round(noise, 6),
            "clip": self.clip,
        }
        return {**super().describe_round(ctx, state), "privacy": said}

    def list_mechanisms(self, ctx: Context, state: Any) -> list[tuple[float, float, int]]:
        """List (noise multiplier, sample rate, steps) of the client with the most steps at each rate."""
        most = dict[int, tuple[int, int]]()
        came = state.steps > 0
        # Clients are many, and their different sizes few.
        sizes, places = state.examples[came].unique(return_inverse=True)
        longest = torch.zeros_like(sizes).scatter_reduce(0, places, state.steps[came], "amax")
        for examples, steps in zip(sizes.tolist(), longest.tolist(), strict=True):
            batches = count_batches(examples, ctx.local.batch_size)
            if steps > most.get(batches, (0, 0))[0]:
                most[batches] = steps, examples
        return [
            (self.find_noise(ctx, examples), 1 / batches, steps)
            for batches, (steps, examples) in sorted(most.items())
        ]

    # client

    def find_noise(self, ctx: Context, num_examples: int) -> float:
        """Return the noise multiplier of a client: that of all, or the one that spends its own budget."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.epsilon is not None
        steps = ctx.rounds * ctx.local.steps_for(num_examples)
        rate = 1 / count_batches(num_examples, ctx.local.batch_size)
        return find_noise_multiplier(self.accountant, self.epsilon, rate, steps, self.delta)

    def pace_batches(self, ctx: Context, stream: np.random.Generator, task: ClientTask, steps: int) -> Pacing:
        """Poisson samples: binomial sizes, and examples drawn uniformly."""
        held = task.num_examples
        sizes = stream.binomial(held, 1 / count_batches(held, ctx.local.batch_size), steps)
        return Pacing(None, np.full(steps, held), sizes)

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training by private steps; nothing else of it sees the examples."""
        held = task.num_examples
        batches = PrivateBatches(
            task.batches,
            clip=self.clip,
            noise_multiplier=self.find_noise(ctx, held) if held else 0.0,
            expected_size=max(1, held) / count_batches(held, ctx.local.batch_size),
            seed=rng.torch_seed(ctx.seed, "private steps", ctx.round, task.client),
        )
        hidden = task._replace(
            batches=batches,
            label_counts=torch.full_like(task.label_counts, torch.nan),
            known_counts=torch.full_like(task.known_counts, torch.nan),
            examples=_HiddenExamples(held),
        )
        update: ClientUpdate = super().train_client(ctx, hidden)
        return update


class _HiddenExamples:
    """The examples of a client, of which only the number is known (`ClientExamples`).

    Args:
        num_examples: their number.
    """

    difficulty = None

    def __init__(self, num_examples: int) -> None:
        self.num_examples = num_examples

    def __len__(self) -> int:
        return self.num_examples

    def batches(self) -> Iterator[Batch]:
        """Raise FedsimError."""
        raise make_hidden_error("the examples of a client")


_READERS = (BatchPacing, ClientSurvey, HeldOutExamples, LabelCensus, StepNoise, UpdatePostprocessing)
"""Capabilities that read examples, or choose them."""


def _list_undeclared_uploads(kind: type[Algorithm]) -> list[str]:
    """List the uploads that a class outside of fedsim adds without a word on how examples are used."""
    parents = [parent for parent in kind.__mro__ if issubclass(parent, Algorithm)]
    own = list(takewhile(_is_silent, parents))
    return sorted(set(kind.uploads) - set(parents[len(own)].uploads)) if own else []


def _is_silent(kind: type[Algorithm]) -> bool:
    """Whether a class is outside of fedsim, and does not declare what it takes from examples."""
    return not kind.__module__.startswith("fedsim.") and "further_example_use" not in vars(kind)


def explain_other_training(algorithm: Algorithm | type[Algorithm]) -> str:
    """Return why the steps of an algorithm's clients cannot be private; "" if they can."""
    if use := algorithm.further_example_use:
        return f"clients use {use}, and the budget covers the steps of one local loop"
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    if names := _list_undeclared_uploads(kind):
        return (
            f"clients also send {', '.join(names)}, and nothing says that this comes from private steps; if"
            ' it does, declare further_example_use = "" in the class'
        )
    for reader in _READERS:
        if issubclass(kind, reader):
            return "its clients use their examples outside of local steps"
    return ""


def count_lost_steps(algorithm: Algorithm, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
    """Return the server state after a round whose uploads nobody could read.

    Where clients keep states, later uploads depend on the private steps of that round: they count as spent.

    Args:
        algorithm: with or without `PrivateExamples` inside.
        ctx: of the round.
        state: of the algorithm.
        reduced: the clients of the round.
    """
    if isinstance(algorithm, PrivateExamples):
        return algorithm.count_steps(ctx, state, reduced) if algorithm.stateful else state
    if not isinstance(algorithm, Wrapper):
        return state
    if not isinstance(algorithm, StatefulWrapper):
        return count_lost_steps(algorithm.base, ctx, state, reduced)
    return replace(state, base=count_lost_steps(algorithm.base, ctx, state.base, reduced))
