"""Personal models that train in two stages: on the client's own examples, and on a public set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedsim.algorithms.fedavg import PRIVATE_PARAMS
from fedsim.base.tree import Tree
from fedsim.core import Algorithm, ClientTask, Context
from fedsim.core.capabilities import PersonalBroadcast, PersonalModels
from fedsim.models.net import Params


@dataclass(frozen=True, kw_only=True)
class PublicStage(Algorithm, PersonalModels, PersonalBroadcast):
    """A method whose clients begin a round on the public set, and then train on their own examples.

    After a round, a client's model has just trained on its own examples. With `scored_after: public` it also
    makes the public stage with which its next round would begin, and both models are scored. The second one
    is thrown away: training does not change.

    Attributes:
        scored_after: stage after which a personal model is scored: the `private` one on the client's own
            examples, or the `public` one with the predictions of the round that just ended.
    """

    scored_after: Literal["private", "public"] = "private"

    @abstractmethod
    def train_on_public_set(self, ctx: Context, task: ClientTask, model: Params, round: int) -> Params:
        """The model after its public stage; unchanged if the client receives no predictions.

        Args:
            ctx: the round, for this client.
            task: with the instructions of a round.
            model: the client's model.
            round: the round that the public stage begins, from 0.
        """

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The client's personal model."""
        own: Params = task.client_state.get(PRIVATE_PARAMS) or ctx.cached_init_params(task.device)
        return own

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """No payloads: a client's personal model is in its client state."""
        return {}

    def instructs_personal(self, ctx: Context) -> bool:
        """Whether the public stage, which needs the instructions, is scored."""
        return self.scored_after == "public"

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The client's model after the stage that is scored."""
        model: Params = self.initial_params(ctx, task)
        if self.scored_after == "private":
            return model
        return self.train_on_public_set(ctx, task, model, ctx.round + 1)

    def personalize_before(self, ctx: Context, task: ClientTask) -> Tree | None:
        """The client's model after its own examples, if the public stage is scored."""
        return None if self.scored_after == "private" else self.initial_params(ctx, task)
