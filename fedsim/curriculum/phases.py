"""FedCL: Federated Multi-Phase Curriculum Learning to Synchronously Correlate User Heterogeneity.

Wang, Guo, Jia, IEEE Transactions on Artificial Intelligence 2023, arXiv:2211.07248, section IV-D.

Idea: the phases of FedCL around any algorithm: a client that has reached a phase's goal waits until most
clients have reached it. Generator, SuperLoss and the mean over all clients (Eq. 21) stay with `fedcl`.

Wire:
    down    the base algorithm's
    up      the base algorithm's
            phases    the mixture of the client's difficulties, 3 L numbers, GATHER
    keeps   the base algorithm's
    server  base      the base algorithm's state
            draws     from all clients' mixtures
            standing  the phase, and the clients that have finished it

The rules are those of `fedsim.techniques.learning_phases`. Difficulties are measured with the client's
trained model, as (l - tau) sigma with tau = log C and lambda = 0.5. They rise with the loss, whatever tau and
lambda are, so that these two only shape the mixtures.

Deviations: the paper says that its approach can extend any method, and not how. Here the phases decide who
takes part, and the base algorithm does all else: frozen clients have no part in its mean. Around `fedavg`
this is `fedcl` with `alpha: 0, superloss: false, average: cohort` and `tau_classes` C, bit for bit.

Reference result: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from fedsim.core import ClientTask, ClientUpdate, Context, Effort, ReducedUpdates, Reduction
from fedsim.core.capabilities import ClientSurvey, CohortSelection, UpdatePostprocessing, capability
from fedsim.core.wrapper import StatefulWrapper, WrapperState
from fedsim.techniques.learning_phases import PhaseSettings, PhaseState
from fedsim.techniques.superloss import SuperLoss
from fedsim.training.losses import measure_losses

PAYLOAD = "phases"
STRENGTH = 0.5
"""Lambda of the difficulties, as in FedCL."""


@dataclass(frozen=True, kw_only=True)
class PhaseCurriculumState(WrapperState):
    """The server state of the phases.

    Attributes:
        draws: numbers drawn from each client's last mixture, float64 `[N, draws]`; NaN for a client without a
            mixture.
        standing: the phase, and the clients that have finished it.
    """

    draws: Tensor
    standing: PhaseState


@dataclass(frozen=True, kw_only=True)
class PhaseCurriculum(PhaseSettings, StatefulWrapper):
    """Any algorithm, whose clients pass the phases of FedCL together.

    Attributes:
        base: the algorithm.

    Raises:
        ValueError: if the base algorithm chooses its clients itself.
    """

    own: ClassVar[frozenset[type]] = frozenset({CohortSelection, UpdatePostprocessing})
    own_payloads: ClassVar[tuple[str, ...]] = (PAYLOAD,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(capability(self.base, kind) is not None for kind in (CohortSelection, ClientSurvey)):
            raise ValueError(f"{type(self.base).__name__} chooses its clients itself; remove the phases")
        object.__setattr__(self, "levels", tuple(self.levels))
        self.add_upload(PAYLOAD, Reduction.GATHER)

    def depends_on_num_rounds(self) -> bool:
        """Whether the phases divide the run's rounds, or the base depends on their number."""
        return super().depends_on_num_rounds() or self.base.depends_on_num_rounds()

    # server

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, and the first phase."""
        draws = self.init_draws(ctx.num_clients)
        standing = PhaseState(frozen=draws.new_zeros(ctx.num_clients).bool())
        return PhaseCurriculumState(base=self.base.init_server_state(ctx), draws=draws, standing=standing)

    def select_cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> Sequence[int]:
        """A uniform sample of the clients that are not frozen; all of them if they are few."""
        return self.sample_ready_clients(ctx, state.standing, rng)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's state, the draws from the cohort's mixtures, and the phase."""
        clients, mixtures = list(reduced.clients), [sent["mixture"] for sent in reduced[PAYLOAD]]
        draws = self.update_draws(ctx, state.draws, clients, mixtures)
        standing = self.phases(ctx).advance(state.standing, ctx.round, clients, reduced.num_examples, draws)
        return replace(super().aggregate(ctx, state, reduced), draws=draws, standing=standing)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base algorithm's record, the phase, its rounds, the frozen clients, and why a phase ended."""
        said = {**state.standing.said, "phase_rounds": state.standing.lasted}
        return {**super().describe_round(ctx, state), "phases": said}

    # client

    def postprocess_update(self, ctx: Context, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """The base algorithm's update, with the mixture of the client's difficulties."""
        if capability(self.base, UpdatePostprocessing):
            update = super().postprocess_update(ctx, task, update)
        hint = "leave curriculum.phases out, which scores them, or choose another algorithm"
        losses = measure_losses(ctx, self.require_model(update, hint), task.examples).double()
        mixture = self.fit_difficulties(SuperLoss(log(ctx.num_classes), STRENGTH).difficulty(losses))
        return update._replace(upload={**update.upload, PAYLOAD: {"mixture": mixture}})

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The base algorithm's effort, and one forward pass over the examples for their difficulty."""
        usual: Sequence[Effort] = super().count_effort(ctx, state, steps)
        return (*usual, ctx.local.count_forward_passes(steps))
