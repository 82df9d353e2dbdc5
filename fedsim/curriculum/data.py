"""When Do Curricula Work in Federated Learning? Part one: ordered learning inside the clients.

Vahidian, Kadaveru, Baek, Wang, Kungurtsev, Chen, Shah, Lin, ICCV 2023, arXiv:2212.12712.

Idea: a client sorts its examples by difficulty and begins with the easy ones; easy examples of different
clients are more similar than hard ones, and the clients' updates agree more at first.

Wire:
    down    the base algorithm's
    up      the base algorithm's
    keeps   base      the base algorithm's client state
            last      the client's personal model, if the score needs it
    server  the base algorithm's

Deviations: pacing is corrected (see `pacing`), and never opens less than one batch. A step draws its batch
uniformly from the open examples; once all are open, the base algorithm's usual epochs follow. The budget T is
a round's local steps, because the paper's Algorithm 1 paces inside `ClientUpdate`; `budget: global` paces
over the whole run. The expert of `expert_loss` has the architecture of the first model.

Reference result: see docs/results/curriculum.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.base.parameters import Share
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, Effort, Pacing
from fedsim.core.capabilities import BatchPacing, capability
from fedsim.core.wrapper import Wrapper
from fedsim.curriculum.pacing import Family, count_open
from fedsim.curriculum.scores import RULES, Easiness, Order, ScoreName, judge_examples, rank_by_easiness
from fedsim.errors import FedsimError
from fedsim.models.net import Params


@dataclass(frozen=True, kw_only=True)
class DataCurriculum(Wrapper):
    """Any algorithm, with its clients' examples in order (Algorithm 1).

    Attributes:
        base: the algorithm.
        score: measure of an example's easiness; see `fedsim.curriculum.scores`.
        pacing: family of the pacing function.
        a: share of the budget after which all examples are open.
        b: share of the examples that is open at first.
        order: `curriculum` (easy first), `anti` (hard first), or `random` (as many examples as the pacing
            opens, different ones at every step).
        budget: `local` paces over the steps of a round, `global` over the steps of the run.

    Raises:
        ValueError: if the base algorithm chooses the examples of its steps itself.
    """

    own: ClassVar[frozenset[type]] = frozenset({BatchPacing})

    score: ScoreName = "global_loss"
    pacing: Family = "linear"
    a: Share = 0.8
    b: Share = 0.2
    order: Order = "curriculum"
    budget: Literal["local", "global"] = "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        if capability(self.base, BatchPacing):
            name = type(self.base).__name__
            raise ValueError(f"{name} chooses the examples of its steps itself; remove the data curriculum")
        object.__setattr__(self, "stateful", self.base.stateful or self.keeps_model)

    @property
    def keeps_model(self) -> bool:
        """Whether clients keep their personal model between rounds, for the score."""
        return self.order != "random" and "local" in RULES[self.score].judges

    def depends_on_num_rounds(self) -> bool:
        """Whether the budget is the whole run, or the base algorithm depends on the number of rounds."""
        return self.budget == "global" or super().depends_on_num_rounds()

    def count_open_examples(self, ctx: Context, examples: int, steps: int) -> NDArray[np.int64]:
        """The number of open examples at each step of this round, int64 `[steps]`."""
        done, budget = np.arange(steps, dtype=np.float64), steps
        if self.budget == "global":
            done, budget = done + ctx.round * steps, steps * ctx.rounds
        return count_open(self.pacing, self.a, self.b, examples, done / max(budget, 1), ctx.local.batch_size)

    def pace_batches(
        self, ctx: Context, rng: np.random.Generator, task: ClientTask, steps: int
    ) -> Pacing | None:
        """The order of the client's examples, and the number g(t) of open examples at step t."""
        limits = self.count_open_examples(ctx, task.num_examples, steps)
        if not steps or limits[0] == task.num_examples:
            return None
        if self.order == "random":
            return Pacing(None, limits)
        return Pacing(rank_by_easiness(self.score_examples(ctx, task), self.order, rng), limits)

    def score_examples(self, ctx: Context, task: ClientTask) -> Easiness:
        """The easiness of each of the client's examples, `[n]`; higher is easier.

        Raises:
            FedsimError: if the score needs an expert and the population has none.
        """
        if self.score == "expert_loss":
            if task.examples.difficulty is None:
                hint = "give the population's `difficulty`, or set `expert_epochs` of the experiment"
                raise FedsimError(
                    "the score 'expert_loss' needs an expert's losses, and the population has none", hint
                )
            return -task.examples.difficulty
        rule = RULES[self.score]
        models = {"global": self.initial_params, "local": self._last_model}
        return rule.easiness(
            *(judge_examples(ctx, models[name](ctx, task), task.examples) for name in rule.judges)
        )

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The base algorithm's effort, and a forward pass of each judge until all examples are open."""
        usual: Sequence[Effort] = super().count_effort(ctx, state, steps)
        judges = len(RULES[self.score].judges) if self.order != "random" else 0
        examples = ctx.local.steps_per_pass(steps) * ctx.local.batch_size
        if not (judges and steps) or self.count_open_examples(ctx, examples, steps)[0] == examples:
            return usual
        return (*usual, ctx.local.count_forward_passes(steps, judges))

    def _last_model(self, ctx: Context, task: ClientTask) -> Params:
        """The client's personal model after its last round; in its first round, the received model."""
        last: Params = (
            task.client_state["last"] if "last" in task.client_state else self.initial_params(ctx, task)
        )
        return last

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """The base algorithm's client state, without a personal model."""
        kept = self.base.init_client_state(ctx, broadcast)
        return {"base": kept} if self.keeps_model else kept

    def base_value(self, value: Any) -> Any:
        """The client task with the base algorithm's own client state."""
        if self.keeps_model and isinstance(value, ClientTask):
            return value._replace(client_state=value.client_state["base"])
        return value

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training; the client keeps its model if the score needs it."""
        update: ClientUpdate = super().train_client(ctx, task)
        share = (
            self.count_open_examples(ctx, task.num_examples, len(task.batches)).mean()
            if len(task.batches)
            else 0.0
        )
        metrics = {**update.metrics, "open_share": share / max(task.num_examples, 1)}
        return update._replace(
            client_state=self._make_client_state(update) if self.keeps_model else update.client_state,
            metrics=metrics,
        )

    def match_sent_update(self, ctx: Context, task: ClientTask, update: ClientUpdate) -> Tree:
        """The base algorithm's client state for what was sent, beside the kept model."""
        if not self.keeps_model:
            own: Tree = super().match_sent_update(ctx, task, update)
            return own
        base_update = update._replace(client_state=update.client_state["base"])
        return {**update.client_state, "base": super().match_sent_update(ctx, task, base_update)}

    def _make_client_state(self, update: ClientUpdate) -> Tree:
        model = self.require_model(update, "score by 'global_loss' or 'expert_loss'")
        return {"base": update.client_state, "last": model}

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base algorithm's record, and the curriculum."""
        how = {"score": self.score, "order": self.order, "pacing": self.pacing, "a": self.a, "b": self.b}
        return {**super().describe_round(ctx, state), "data_curriculum": {**how, "budget": self.budget}}
