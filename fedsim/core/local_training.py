"""LocalTraining: the settings of the local training that every client does, whatever the algorithm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import pow

from fedsim.base.precision import Precision


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The local training that every client does, whatever the algorithm.

    Attributes:
        epochs: passes over the client's examples in a round.
        steps: local steps in a round; overrides `epochs`.
        batch_size: examples per step; the last batch of an epoch may be smaller and is never dropped.
        lr, momentum, weight_decay: plain SGD, `v <- momentum v + (g + weight_decay w)`, `w <- w - lr v`,
            started anew in every round.
        lr_alpha, lr_power: step i of a round, from 0, has the rate `lr (1 + lr_alpha i)^-lr_power`; an alpha
            of 0 leaves it constant.
        round_decay: what `lr` is multiplied by from round to round; `in_round` does it.
        precision: the number type in which the steps multiply; parameters are in single precision always.
    """

    epochs: int = 1
    steps: int | None = None
    batch_size: int = 32
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_alpha: float = 0.0
    lr_power: float = 0.75
    round_decay: float = 1.0
    precision: Precision = "float32"

    def for_round(self, round: int) -> LocalTraining:
        """The same in a round, counted from 0: with the rate that is left by then."""
        return self if self.round_decay == 1 else replace(self, lr=self.lr * self.round_decay**round)

    def lr_at(self, step: int) -> float:
        """The learning rate of a local step, counted from 0 in every round."""
        return self.lr * pow(1 + self.lr_alpha * step, -self.lr_power)

    def total_step_size(self, steps: int) -> float:
        """How far so many local steps carry a weight whose gradient is 1 throughout.

        With momentum, step i moves by `lr_i (g_i + momentum g_{i-1} + momentum^2 g_{i-2} + ...)`, so for a
        constant gradient g it moves by `lr_i (1 + momentum + ... + momentum^i) g`, and the round by g times

            reach = sum over i of lr_i (1 - momentum^(i+1)) / (1 - momentum).

        The way made divided by the reach is therefore the mean of a round's gradients, each weighted by how
        much of the way is due to it. At a constant rate the reach is `lr a` with FedNova's
        `a = (steps - momentum (1 - momentum^steps) / (1 - momentum)) / (1 - momentum)`; plain SGD has
        `lr steps`.
        """
        carried = total = 0.0
        for step in range(steps):
            carried = 1 + self.momentum * carried
            total += self.lr_at(step) * carried
        return total

    def steps_for(self, num_examples: int) -> int:
        """Local steps of a client with this many examples."""
        if self.steps is not None:
            return self.steps if num_examples else 0
        return self.epochs * -(-num_examples // self.batch_size)
