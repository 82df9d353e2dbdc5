"""TiltedWeights: any algorithm that averages models, with larger weights for clients with large losses.

Li, Beirami, Sanjabi, Smith: Tilted Empirical Risk Minimization, ICLR 2021, arXiv:2007.01162. The objective
(1/t) log sum_k p_k exp(t F_k) has the gradient sum_k q_k grad F_k with q_k in proportion to p_k exp(t F_k).
Here p_k is the weight of the base algorithm, and F_k the mean loss of the received model on the examples of
client k.

Wire: that of the base algorithm; a client also knows its loss, on which its weight depends.

Deviations: the paper takes single gradient steps and smooths the weights over rounds; here clients train as
    the base algorithm says, and the weights are those of the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Annotated, Any

from fedsim.base.parameters import Range
from fedsim.core import Algorithm, ClientTask, Context, Effort, Reduction
from fedsim.core.wrapper import Wrapper
from fedsim.training.losses import measure_losses
from fedsim.uploads.model_updates import MODEL, unwrap

Tilt = Annotated[float, Range(minimum=-10, maximum=10)]

MAX_EXPONENT = 300.0
"""The largest size of an exponent t F_k, so that sums of weighted models are finite in float64.

e^300 is 2e130. Times 1e38, the largest float32 number, and 1e12 examples it is far below 1e308. Its inverse
times 1e-45, the smallest float32 number, is far above 1e-308.
"""


@dataclass(frozen=True, kw_only=True)
class TiltedWeights(Wrapper):
    """Any algorithm that averages models, with weights that grow with the clients' losses.

    Attributes:
        base: the algorithm.
        tilt: t: above 0 for similar losses of all clients, below 0 to ignore clients with large losses; 0
            for the base algorithm.

    Raises:
        ValueError: if the base algorithm takes no mean of models, or weighs clients in a way of its own.
    """

    tilt: Tilt

    def __post_init__(self) -> None:
        super().__post_init__()
        if reason := explain_own_weights(unwrap(self.base)):
            raise ValueError(f"{type(unwrap(self.base)).__name__} has no weights to tilt: {reason}")

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """The base algorithm's weight times exp(t F_k)."""
        weight = float(self.base.weigh_client(ctx, task))
        if not weight or not self.tilt:
            return weight
        losses = measure_losses(ctx, self.base.initial_params(ctx, task), task.examples)
        exponent = self.tilt * float(losses.double().mean())
        return weight * exp(min(max(exponent, -MAX_EXPONENT), MAX_EXPONENT))

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The base algorithm's effort, and one forward pass over the examples for F_k."""
        usual: Sequence[Effort] = super().count_effort(ctx, state, steps)
        return (*usual, ctx.local.count_forward_passes(steps)) if self.tilt else usual


def explain_own_weights(algorithm: Algorithm | type[Algorithm]) -> str:
    """Return why the weights of clients cannot be tilted; "" if they can."""
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    if algorithm.uploads.get(MODEL) is not Reduction.MEAN or not algorithm.shares_parameters:
        return "the server takes no mean of models"
    if kind.weigh_client is not Algorithm.weigh_client:
        return "it weighs clients in a way of its own"
    return ""
