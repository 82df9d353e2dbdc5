"""Wrapper: an algorithm around another, which does everything that the wrapper leaves alone."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base.tree import Tree
from fedsim.core import Algorithm, Context, Effort, Local, Pacing, Progress, Reduced, Report, Visit
from fedsim.core.census import Answers, Census
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params

ATTRIBUTES = (
    "uploads",
    "free",
    "stateful",
    "heterogeneous",
    "deploys",
    "unstackable",
    "needs_public",
    "learns_first",
    "tasks",
)
"""The class attributes of a method, which a wrapper has from its base."""


@dataclass(frozen=True, kw_only=True)
class Wrapper(Algorithm):
    """Delegates every hook to another algorithm; a subclass changes some of them.

    Two seams say where the other's own things are: `inside` the visit, and `under` the server state.

    Attributes:
        base: the algorithm inside.
    """

    base: Algorithm

    def __post_init__(self) -> None:
        for name in ATTRIBUTES:
            object.__setattr__(self, name, getattr(self.base, name))

    def has(self, hook: str) -> bool:
        """Whether the wrapper changes this hook, or what is inside has it."""
        return getattr(type(self), hook) is not getattr(Wrapper, hook) or self.base.has(hook)

    def inside(self, visit: Visit) -> Visit:
        """The visit as the base knows it."""
        return visit

    def under(self, state: Any) -> Any:
        """The base's own server state."""
        return state

    def misfits(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """The base's."""
        return self.base.misfits(net, rounds)

    def by_rounds(self) -> bool:
        """The base's."""
        return self.base.by_rounds()

    # server

    def init(self, ctx: Context) -> Any:
        """The base's."""
        return self.base.init(ctx)

    def label_census(self, ctx: Context) -> Census | None:
        """The base's."""
        return self.base.label_census(ctx)

    def counted(self, ctx: Context, state: Any, answers: Answers) -> Any:
        """The base's, of its own state."""
        return self.base.counted(ctx, state, answers)

    def survey(self, ctx: Context, state: Any) -> Sequence[int]:
        """The base's."""
        return self.base.survey(ctx, self.under(state))

    def surveyed(self, ctx: Context, state: Any, losses: NDArray[np.float64]) -> Any:
        """The base's."""
        return self.base.surveyed(ctx, self.under(state), losses)

    def survey_payload(self, ctx: Context, state: Any, model: Tree) -> Tree:
        """The base's."""
        return self.base.survey_payload(ctx, self.under(state), model)

    def cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> Sequence[int]:
        """The base's."""
        return self.base.cohort(ctx, self.under(state), rng)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The base's."""
        return self.base.broadcast(ctx, self.under(state))

    def instruct(self, ctx: Context, state: Any, client: int) -> Mapping[str, Tree]:
        """The base's."""
        return self.base.instruct(ctx, self.under(state), client)

    def aggregate(self, ctx: Context, state: Any, reduced: Reduced) -> Any:
        """The base's."""
        return self.base.aggregate(ctx, self.under(state), reduced)

    def learn(self, ctx: Context, state: Any, reduced: Reduced) -> Generator[Progress, None, Any]:
        """The base's."""
        return self.base.learn(ctx, self.under(state), reduced)

    def deployed(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The base's."""
        return self.base.deployed(ctx, self.under(state))

    def predict(self, ctx: Context, model: Tree, x: Tensor) -> Tensor:
        """The base's."""
        return self.base.predict(ctx, model, x)

    def describe(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base's."""
        return self.base.describe(ctx, self.under(state))

    def charge(self, ctx: Context, name: str, payload: Tree) -> int:
        """The base's."""
        return self.base.charge(ctx, name, payload)

    # client

    def remember(self, ctx: Context, broadcast: Tree) -> Tree:
        """The base's."""
        return self.base.remember(ctx, broadcast)

    def received(self, ctx: Context, visit: Visit) -> Params:
        """The base's."""
        return self.base.received(ctx, self.inside(visit))

    def schedule(self, ctx: Context, rng: np.random.Generator, visit: Visit, steps: int) -> Pacing | None:
        """The base's."""
        return self.base.schedule(ctx, rng, self.inside(visit), steps)

    def reserved(self, ctx: Context) -> float:
        """The base's."""
        return self.base.reserved(ctx)

    def draw(self, ctx: Context, rng: np.random.Generator) -> Tree:
        """The base's."""
        return self.base.draw(ctx, rng)

    def noise(
        self, ctx: Context, rng: np.random.Generator, steps: int, batch_size: int, num_examples: int
    ) -> Tree:
        """The base's."""
        return self.base.noise(ctx, rng, steps, batch_size, num_examples)

    def train(self, ctx: Context, visit: Visit) -> Report:
        """The base's."""
        return self.base.train(ctx, self.inside(visit))

    def conclude(self, ctx: Context, visit: Visit, report: Report) -> Report:
        """The base's."""
        return self.base.conclude(ctx, self.inside(visit), report)

    def weight(self, ctx: Context, visit: Visit) -> float:
        """The base's."""
        return self.base.weight(ctx, self.inside(visit))

    def effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The base's."""
        return self.base.effort(ctx, self.under(state), steps)

    def tuning_effort(self, ctx: Context, steps: int) -> Sequence[Effort]:
        """The base's."""
        return self.base.tuning_effort(ctx, steps)

    def handover(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The base's."""
        return self.base.handover(ctx, self.under(state))

    # personal models

    def tuning(self, ctx: Context) -> Local | None:
        """The base's."""
        return self.base.tuning(ctx)

    def personalise(self, ctx: Context, visit: Visit) -> Tree:
        """The base's."""
        return self.base.personalise(ctx, self.inside(visit))

    def predict_personal(self, ctx: Context, model: Tree, x: Tensor) -> Tensor:
        """The base's."""
        return self.base.predict_personal(ctx, model, x)
