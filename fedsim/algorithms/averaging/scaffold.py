"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, arXiv:1910.06378.

Idea: every client estimates how its gradient differs from the mean of all clients' gradients, and corrects
each local step by that difference, against the drift of clients with unequal data.

Wire:
    down    params    the global model
            control   c, the mean of all clients' controls
    up      params    the trained model, MEAN, the same weight for every client with examples
            control   the change of its own control, SUM
    keeps   control   c_i; zero before the first round
    server  params, control

A local step adds c - c_i to the gradient. Afterwards (option II, line 12)

    c_i+ = c_i - c + (w - y) / R,        c <- c + (1/N) sum of (c_i+ - c_i),

where w is the broadcast model, y the trained model, and N the number of all clients, also of those outside
the cohort. R is `steps * lr` in the paper, whose clients run plain SGD. In general it is
`LocalTraining.total_step_size(steps)`: the corrected gradient enters the momentum buffer. Step i therefore
moves by lr_i times the sum over j <= i of momentum^(i-j) (g_j + c - c_i), and the whole round by

    w - y = sum over j of r_j g_j + R (c - c_i),
    r_j = sum over i >= j of lr_i momentum^(i-j),        R = sum over j of r_j.

Hence c_i+ is the mean of the local gradients, weighted by r_j: exactly g if the gradient is a constant g,
with any momentum, decay of the rate and number of steps. Weight decay is a part of the client's objective,
and thus of its gradients and its control.

Deviations: R replaces `steps * lr`, which with a momentum of 0.9 makes controls up to ten times too large. A
client without examples makes no step, keeps its control, and does not count in the mean of the models. Float
buffers of normalisation layers have no control; they are averaged with the same equal weights. With several
architectures, each has its own model and control, and N counts the clients of the architecture.

Reference result: see docs/results/curriculum.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from fedsim.algorithms.fedavg import FedAvg, step_towards, zero_weights
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction, ServerState
from fedsim.core.capabilities import PersonalBroadcast, SentUpdates
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel


@dataclass(frozen=True, kw_only=True)
class ScaffoldState(ServerState):
    """The server's model and its control.

    Attributes:
        control: c, over the parameters; with several architectures, one tree for each.
    """

    control: Tree


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg, PersonalBroadcast, SentUpdates):
    """FedAvg whose clients correct every step by control variates against drift (Algorithm 1, option II).

    Attributes:
        eta_g: the server's step from its model towards the mean of the clients' models; 1 is the whole way.
    """

    eta_g: Annotated[float, Range(above=0)] = 1.0

    purposes: ClassVar[tuple[str, ...]] = ("client-drift",)
    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "control": Reduction.SUM}
    stateful: ClassVar[bool] = True
    assumes_sgd: ClassVar[bool] = True

    def init_server_state(self, ctx: Context) -> ScaffoldState:
        """The parent's state, with a control of zeros."""
        params = super().init_server_state(ctx).params
        return ScaffoldState(params=params, control=ctx.map_architectures(zero_weights, params))

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The model and the server's control."""
        return {**super().broadcast(ctx, state), "control": ctx.select_architecture(state.control)}

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The global model."""
        return super().broadcast(ctx, state)

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """A control of zeros, over the parameters."""
        return {"control": zero_weights(ctx, broadcast["params"])}

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """1 for a client with examples, else 0."""
        return float(task.num_examples > 0)

    def gradient_correction(self, ctx: Context, task: ClientTask) -> Tree:
        """The mean gradient of all clients minus the client's own: c - c_i."""
        return tree.sub(task.broadcast["control"], task.client_state["control"])

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, the change of the control, and the new control for the client state."""
        update = super().make_update(ctx, task, trained)
        change = self.control_change(ctx, task, trained)
        client_state = {"control": tree.add(task.client_state["control"], change)}
        return update._replace(upload={**update.upload, "control": change}, client_state=client_state)

    def match_sent_update(self, ctx: Context, task: ClientTask, update: ClientUpdate) -> Tree:
        """The control moves by the change that the server adds to c, so that c stays the mean of all c_i."""
        before, change = task.client_state["control"], update.upload["control"]
        control = {key: before[key] + change[key] if key in change else before[key] for key in before}
        return {**update.client_state, "control": control}

    def control_change(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> Tree:
        """The change of the client's control: (w - y) / R - c."""
        control = task.broadcast["control"]
        if not trained.steps:
            return tree.zeros_like(control)
        way = tree.sub(
            tree.select(self.initial_params(ctx, task), control), tree.select(trained.params, control)
        )
        return tree.sub(tree.scale(way, 1 / ctx.local.total_step_size(trained.steps)), control)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The parent's state, and the control moved by the cohort's changes."""
        state = super().aggregate(ctx, state, reduced)
        control = ctx.update_architectures(_move_control, state.control, reduced["control"])
        return replace(state, control=control)

    def server_update(self, ctx: Context, params: Params, mean: Tree, reduced: ReducedUpdates) -> Params:
        """`eta_g` times the step from the model to the clients' mean."""
        return super().server_update(ctx, params, step_towards(ctx, params, mean, self.eta_g), reduced)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The Euclidean norm of the server's control."""
        return {"control_norm": round(float(tree.dot(state.control, state.control)) ** 0.5, 6)}


def _move_control(ctx: Context, control: Tree, change: Tree) -> Tree:
    return tree.cast_like(tree.add(control, tree.scale(change, 1 / ctx.num_architecture_clients)), control)
