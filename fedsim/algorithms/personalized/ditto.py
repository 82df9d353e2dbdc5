"""Ditto: Fair and Robust Federated Learning Through Personalization.

Li, Hu, Beirami, Smith, ICML 2021, arXiv:2012.04221.

Idea: clients train a global model as in FedAvg, and beside it each client trains a personal model that pays
for its distance from the global model.

Wire:
    down    params    the global model w
    up      params    the trained global model, MEAN
    keeps   personal  v_k, its personal model; the received w before its first round
    server  params

The local training of w is that of FedAvg. A second local training, over the same batches, descends

    f_k(v_k) + lambda_prox/2 |v_k - w|^2    (Algorithm 1)

where w is the global model that the client received in this round.

Deviations: the global objective is that of FedAvg alone; the paper allows any. Models are averaged by numbers
of examples; the authors' code takes a plain mean over a weighted sample. lambda_prox is the same for all
clients; its choice on validation data is left out. v_k begins at the w of the client's first round; in the
paper it begins at the first model of the run, which is the same if all clients come to round 1.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, Effort
from fedsim.core.capabilities import PersonalModels
from fedsim.models.net import Params
from fedsim.training.local_loop import LocalLoop, run_local_loop

PERSONAL = "personal"
"""Key of the personal model in a client's state."""


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg, PersonalModels):
    """FedAvg, and beside it a personal model for each client, trained near the global one.

    Attributes:
        lambda_prox: weight of the distance between the personal and the global model, >= 0; with 0 each
            client trains its personal model alone.
    """

    purposes: ClassVar[tuple[str, ...]] = ("personalisation",)
    further_example_use: ClassVar[str] = "a second local loop for their personal models"

    lambda_prox: Annotated[float, Range(minimum=0)] = 1.0

    stateful: ClassVar[bool] = True

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """The global model as the personal model."""
        return {PERSONAL: dict(broadcast["params"])}

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The training of the global model, then that of the personal model."""
        update = super().train_client(ctx, task)
        moving = self.trainable_keys(ctx, task.broadcast)
        loop = LocalLoop(ctx, task, task.client_state[PERSONAL], self.personal_loss, moving)
        return update._replace(client_state={PERSONAL: dict(run_local_loop(loop).params)})

    def personal_loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The parent's loss of the personal model, plus the penalty on its distance to the global model."""
        moving = self.trainable_keys(ctx, task.broadcast)
        away = tree.difference(params, task.broadcast["params"], moving)
        return self.loss(ctx, task, params, batch) + self.lambda_prox / 2 * tree.dot(away, away)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort twice: once for each model."""
        return (*super().count_effort(ctx, state, steps),) * 2

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The client's personal model; the global model before its first round."""
        personal: Tree = task.client_state[PERSONAL]
        return personal
