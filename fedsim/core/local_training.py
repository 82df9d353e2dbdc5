"""LocalTraining: the settings of the local training that every client does, whatever the algorithm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import pow
from typing import Annotated

from fedsim.base.parameters import Count, Positive, Range
from fedsim.base.precision import Precision
from fedsim.core.effort import Effort
from fedsim.core.optimizers import SGD, LocalOptimizer
from fedsim.core.schedules import CONSTANT, Schedule

NonNegative = Annotated[float, Range(0)]
ShareBelowOne = Annotated[float, Range(minimum=0, below=1)]

PLAIN_SGD = SGD()


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The local training that every client does, whatever the algorithm.

    Attributes:
        epochs: passes over the client's examples in a round.
        steps: local steps in a round; overrides `epochs`.
        batch_size: examples per step; the last batch of an epoch may be smaller and is never dropped.
        optimizer: makes the steps; its state starts anew in every local loop, and so in every round.
        lr, momentum, weight_decay: of the optimizer; SGD is `v <- momentum v + (g + weight_decay w)`,
            `w <- w - lr v`.
        clip_norm: the largest norm of a step's gradient over all weights that train; a longer gradient of the
            loss is scaled down to it. Corrections of an algorithm, such as SCAFFOLD's, are added afterwards.
            None: no limit.
        label_smoothing: share of each label's weight that is spread evenly over all classes in the loss of
            the client's own examples; never in scores.
        schedule: a factor of `lr` in each round or step; `for_round` applies it if it is over rounds.
        lr_alpha, lr_power: step i of a round, from 0, has the rate `lr (1 + lr_alpha i)^-lr_power`; an alpha
            of 0 leaves it constant.
        round_decay: factor of `lr` from each round to the next; `for_round` applies it.
        precision: the number type in which the steps multiply; parameters are in single precision always.

    Example:
        AdamW at a rate that rises in the first round and then falls until the last one:

        >>> from fedsim.core.optimizers import AdamW
        >>> from fedsim.core.schedules import CosineSchedule
        >>> local = LocalTraining(lr=0.001, optimizer=AdamW(), schedule=CosineSchedule(warmup=1))
        >>> [round(local.for_round(number, rounds=4).lr, 6) for number in range(4)]
        [0.0005, 0.001, 0.00075, 0.00025]
    """

    epochs: Count = 5
    steps: Count | None = None
    batch_size: Count = 10
    lr: NonNegative = 0.05
    momentum: ShareBelowOne = 0.0
    weight_decay: NonNegative = 0.0
    optimizer: LocalOptimizer = PLAIN_SGD
    clip_norm: Positive | None = None
    label_smoothing: ShareBelowOne = 0.0
    schedule: Schedule = CONSTANT
    lr_alpha: NonNegative = 0.0
    lr_power: NonNegative = 0.75
    round_decay: Positive = 1.0
    precision: Precision = "float32"

    def for_round(self, round: int, rounds: int) -> LocalTraining:
        """Return the settings of a round: with its rate, and without what is over rounds.

        Args:
            round: counted from 0.
            rounds: number of rounds of the run.
        """
        local = self
        if self.round_decay != 1:
            local = replace(local, lr=local.lr * self.round_decay**round, round_decay=1.0)
        if self.schedule.over == "rounds" and self.schedule != CONSTANT:
            local = replace(local, lr=local.lr * self.schedule.factor_at(round, rounds), schedule=CONSTANT)
        return local

    def lr_at(self, step: int) -> float:
        """The learning rate of a local step, counted from 0 in every round."""
        rate = self.lr * pow(1 + self.lr_alpha * step, -self.lr_power)
        return rate * self.schedule.factor_at(step, 0) if self.schedule.over == "steps" else rate

    @property
    def has_constant_rate(self) -> bool:
        """Whether all steps of a round have the same learning rate."""
        return not self.lr_alpha and self.schedule.over == "rounds"

    def with_constant_rate(self, lr: float) -> LocalTraining:
        """Return the settings with this learning rate in every step."""
        return replace(self, lr=lr, lr_alpha=0.0, schedule=CONSTANT)

    def total_step_size(self, steps: int) -> float:
        """Return R, the change of a weight in this number of local steps if its gradient is -1 in every step.

        With momentum m and learning rates lr_i, step i changes a weight by

            -lr_i (g_i + m g_{i-1} + m^2 g_{i-2} + ...).

        For a constant gradient g, all steps together change it by -R g with

            R = sum over i of lr_i (1 + m + ... + m^i).

        The change of a weight in a round divided by -R is therefore a weighted mean of the round's gradients.
        Plain SGD with a constant rate has R = lr steps. At a constant rate, R = lr a with FedNova's
        a = (steps - m (1 - m^steps) / (1 - m)) / (1 - m). With Nesterov's momentum, step i moves a weight by
        -lr_i (g_i + m (g_i + m g_{i-1} + ...)), and R changes likewise.

        Raises:
            ValueError: the optimizer is not SGD. The change is then no weighted sum of the gradients.
        """
        if not isinstance(self.optimizer, SGD):
            raise ValueError(f"{type(self.optimizer).__name__} has no total step size; SGD has one")
        carried = total = 0.0
        for step in range(steps):
            carried = 1 + self.momentum * carried
            moved = 1 + self.momentum * carried if self.optimizer.nesterov else carried
            total += self.lr_at(step) * moved
        return total

    def steps_for(self, num_examples: int) -> int:
        """Local steps of a client with this many examples."""
        if self.steps is not None:
            return self.steps if num_examples else 0
        return self.epochs * -(-num_examples // self.batch_size)

    @property
    def amount(self) -> int:
        """The epochs of a round; its steps, if it is given in steps."""
        return self.epochs if self.steps is None else self.steps

    def limit_work(self, amount: int) -> LocalTraining:
        """Return the settings with another `amount`."""
        return replace(self, epochs=amount) if self.steps is None else replace(self, steps=amount)

    def steps_per_pass(self, steps: int) -> int:
        """Local steps of one pass over a client's examples, of `steps` in a round.

        If the local training is given in steps, all of them count as one pass.
        """
        return steps // self.epochs if self.steps is None else steps

    def count_forward_passes(self, steps: int, passes: int = 1) -> Effort:
        """Count passes over a client's examples without a gradient, such as one that measures its losses.

        Args:
            steps: local steps of a round.
            passes: number of passes.
        """
        return Effort(passes * self.steps_per_pass(steps), ())
