"""FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction.

Gao, Fu, Li, Chen, Xu, Xu, CVPR 2022, arXiv:2203.11751.

Idea: every client tracks how far its models are from the global models, and uploads what its model would be
without this drift. Control variates correct its gradients as in SCAFFOLD.

Wire:
    down    params    the global model
            control   c, the mean of all clients' controls
    up      params    the trained model, MEAN, the same weight for every client with examples
            control   the change of its own control, SUM
    keeps   drift     h_i, the sum of its changes of the global model; zero before the first round
            control   c_i; zero before the first round
    server  params, drift (the mean of h_i over all clients), control

A client of the cohort descends, where w is the broadcast model,

    L_i(w_i) + alpha/2 |w_i + h_i - w|^2 + <c - c_i, w_i>,        then h_i <- h_i + (w_i - w),

and c_i as in SCAFFOLD. The server's model becomes the cohort's mean of w_i plus the mean of h_i over all
clients. The penalty is the regulariser of FedDyn with d_k = h_i but for a constant: FedDC is FedDyn with the
controls of SCAFFOLD.

Deviations: the controls and the server's mean are those of the authors' code, for clients of equal size. The
paper describes the controls as the last changes of the clients, and averages w_i + h_i over the cohort,
weighted by numbers of examples; its code has equal weights and the drifts of all clients. For clients of
unequal size, the code weighs the change of a control by the client's size, and divides all changes by one
number of steps times the rate; here both are as in SCAFFOLD. As in the paper, and unlike its code, all
clients have the same alpha. `alpha: 0` also leaves out the server's drift. Statistics of normalisation layers
and several architectures are as in FedDyn and SCAFFOLD.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsim.algorithms.averaging.feddyn import FedDyn, FedDynState
from fedsim.algorithms.averaging.scaffold import Scaffold, ScaffoldState
from fedsim.algorithms.fedavg import FedAvg, zero_weights
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context


@dataclass(frozen=True, kw_only=True)
class FedDCState(FedDynState, ScaffoldState):
    """The server's model, its drift and its control."""


@dataclass(frozen=True, kw_only=True)
class FedDC(FedDyn, Scaffold):
    """FedDyn whose clients also correct their steps by control variates; `alpha: 0` is SCAFFOLD.

    Attributes:
        alpha: weight of the penalty on drift, >= 0.
    """

    purposes: ClassVar[tuple[str, ...]] = ("client-drift",)

    # The mean of the models is a whole step: no hyper-parameter of this method.
    eta_g: ClassVar[float] = 1.0  # type: ignore[misc]

    def init_server_state(self, ctx: Context) -> FedDCState:
        """A fresh model, with a drift and a control of zeros."""
        params = FedAvg.init_server_state(self, ctx).params
        zeros = ctx.map_architectures(zero_weights, params)
        return FedDCState(params=params, drift=zeros, control=zeros)

    def match_sent_update(self, ctx: Context, task: ClientTask, update: ClientUpdate) -> Tree:
        """The drift and the control, moved by what the server receives."""
        controlled = update._replace(client_state=Scaffold.match_sent_update(self, ctx, task, update))
        return super().match_sent_update(ctx, task, controlled)
