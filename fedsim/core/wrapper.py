"""Wrapper: an algorithm around another one, which keeps everything that the wrapper does not change."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.base.wire import payload_bytes
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, Progress, ReducedUpdates, Reduction
from fedsim.core.capabilities import (
    BatchPacing,
    ClientInstructions,
    ClientSurvey,
    CohortSelection,
    ExpertSurvey,
    Forwarding,
    HeldOutExamples,
    LabelCensus,
    PayloadAccounting,
    PersonalBroadcast,
    PersonalModels,
    RoundNoise,
    SentUpdates,
    ServerTraining,
    StepNoise,
    SurveyPayload,
    UpdatePostprocessing,
    capability,
    count_bytes,
)
from fedsim.core.census import CensusAnswers
from fedsim.errors import FedsimError
from fedsim.models.net import Params

ATTRIBUTES = (
    "uploads",
    "free_uploads",
    "stateful",
    "heterogeneous",
    "deploys_models",
    "needs_public_set",
    "assumes_sgd",
    "shares_parameters",
    "resizes_model",
    "further_example_use",
    "tasks",
    "purposes",
    "trains_before_evaluation",
    "update_figures",
)
"""The class attributes of a method that a wrapper takes over from its base.

All but `asynchronous`: the clock asks every wrapper and its base.
"""


def _forward(name: str) -> Any:
    """A method that calls the base's method of this name, with the base's own state and task."""

    def call(self: Wrapper, *args: Any) -> Any:
        return getattr(self.base, name)(*(self.base_value(value) for value in args))

    call.__name__ = name
    return call


@dataclass(frozen=True, kw_only=True)
class Wrapper(
    Algorithm,
    Forwarding,
    BatchPacing,
    ClientInstructions,
    ClientSurvey,
    CohortSelection,
    ExpertSurvey,
    HeldOutExamples,
    LabelCensus,
    PayloadAccounting,
    PersonalBroadcast,
    PersonalModels,
    RoundNoise,
    SentUpdates,
    ServerTraining,
    StepNoise,
    SurveyPayload,
    UpdatePostprocessing,
):
    """Calls another algorithm for every hook and capability; a subclass changes some of them.

    Class attributes:
        own: the capabilities that the wrapper has whatever its base is.

    Attributes:
        base: the algorithm inside.
    """

    own: ClassVar[frozenset[type]] = frozenset()
    # Of the wrapper alone: `explain_waiting` also asks the algorithm inside.
    asynchronous: ClassVar[bool] = True

    base: Algorithm

    def __post_init__(self) -> None:
        for name in ATTRIBUTES:
            if hasattr(self.base, name):
                object.__setattr__(self, name, getattr(self.base, name))

    def add_upload(self, name: str, reduction: Reduction, *, free: bool = False) -> None:
        """Add a payload to the uploads of the base; for `__post_init__` of a subclass.

        Args:
            name: of the payload.
            reduction: what the server gets of it.
            free: whether no network would carry it, so that it costs no bytes.

        Raises:
            FedsimError: if the base sends a payload of this name.
        """
        self.check_names(self.base.uploads, (name,))
        object.__setattr__(self, "uploads", {**self.uploads, name: reduction})
        if free:
            object.__setattr__(self, "free_uploads", frozenset({*self.free_uploads, name}))

    def check_names(self, payloads: Iterable[str], own: Iterable[str]) -> None:
        """Check that none of the base's payloads has the name of one of the wrapper's own.

        Raises:
            FedsimError: if one has; one payload would replace the other without a word.
        """
        for name in {*payloads} & {*own}:
            message = f"{type(self.base).__name__} has a payload {name!r}, and so has {type(self).__name__}"
            raise FedsimError(message, "give the algorithm's payload another name")

    def provides(self, kind: type) -> bool:
        """Whether the wrapper adds this capability, or its base has it."""
        return kind in self.own or capability(self.base, kind) is not None

    def require_model(self, update: ClientUpdate, hint: str) -> Params:
        """Return the model that the base trained on a client.

        Args:
            update: of the base.
            hint: what the user can do without it.

        Raises:
            FedsimError: if the base does not return its clients' models.
        """
        if update.model is None:
            message = f"{type(self.base).__name__} does not return its clients' personal models"
            raise FedsimError(message, hint)
        return update.model

    def base_value(self, value: Any) -> Any:
        """An argument as the base knows it: its own server state, and a task with its own client state."""
        return value

    check_hyperparameters = _forward("check_hyperparameters")
    depends_on_num_rounds = _forward("depends_on_num_rounds")
    init_server_state = _forward("init_server_state")
    broadcast = _forward("broadcast")
    aggregate = _forward("aggregate")
    deploy_models = _forward("deploy_models")
    predict = _forward("predict")
    describe_round = _forward("describe_round")
    init_client_state = _forward("init_client_state")
    initial_params = _forward("initial_params")
    train_client = _forward("train_client")
    weigh_client = _forward("weigh_client")
    count_effort = _forward("count_effort")

    plan_census = _forward("plan_census")
    apply_census = _forward("apply_census")
    apply_expert_losses = _forward("apply_expert_losses")
    select_surveyed_clients = _forward("select_surveyed_clients")
    apply_survey = _forward("apply_survey")
    select_survey_payload = _forward("select_survey_payload")
    select_cohort = _forward("select_cohort")
    instruct_client = _forward("instruct_client")
    count_bytes = _forward("count_bytes")
    held_out_share = _forward("held_out_share")
    pace_batches = _forward("pace_batches")
    draw_round_noise = _forward("draw_round_noise")
    draw_step_noise = _forward("draw_step_noise")
    postprocess_update = _forward("postprocess_update")
    match_sent_update = _forward("match_sent_update")
    train_server = _forward("train_server")
    broadcast_personal = _forward("broadcast_personal")
    instructs_personal = _forward("instructs_personal")
    plan_tuning = _forward("plan_tuning")
    personalize = _forward("personalize")
    personalize_before = _forward("personalize_before")
    predict_personal = _forward("predict_personal")


@dataclass(frozen=True, kw_only=True)
class WrapperState:
    """The server state of a wrapper that has a state of its own.

    Attributes:
        base: the base algorithm's state.
    """

    base: Any

    @property
    def params(self) -> Tree:
        """The base algorithm's global model."""
        found: Tree = self.base.params
        return found


@dataclass(frozen=True, kw_only=True)
class StatefulWrapper(Wrapper):
    """A wrapper with a server state of its own, a `WrapperState`, which holds the base algorithm's state.

    Attributes:
        own_payloads: the payloads that the wrapper adds, down or up; the base algorithm does not see them.
    """

    own_payloads: ClassVar[tuple[str, ...]] = ()

    def provides(self, kind: type) -> bool:
        """Whether the wrapper has this capability; it counts the bytes of its own payloads."""
        return super().provides(kind) or (kind is PayloadAccounting and bool(self.own_payloads))

    def base_value(self, value: Any) -> Any:
        """The base algorithm's server state, and a task with its own broadcast."""
        if self.own_payloads and isinstance(value, ClientTask):
            return value._replace(broadcast=tree.drop(value.broadcast, self.own_payloads))
        return value.base if isinstance(value, WrapperState) else value

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The base algorithm's payloads.

        Raises:
            FedsimError: if one of them has the name of a payload of the wrapper.
        """
        sent: Mapping[str, Tree] = super().broadcast(ctx, state)
        self.check_names(sent, self.own_payloads)
        return sent

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """The bytes of a payload of the wrapper, or the base algorithm's count for its own payloads."""
        if name in self.own_payloads:
            return payload_bytes(payload)
        return count_bytes(self.base, ctx, name, payload)

    def apply_census(self, ctx: Context, state: Any, answers: CensusAnswers) -> Any:
        """The state with the census answers in the base algorithm's state."""
        return replace(state, base=super().apply_census(ctx, state, answers))

    def apply_expert_losses(self, ctx: Context, state: Any, losses: NDArray[Any]) -> Any:
        """The state with the expert's losses in the base algorithm's state."""
        return replace(state, base=super().apply_expert_losses(ctx, state, losses))

    def apply_survey(self, ctx: Context, state: Any, losses: NDArray[Any]) -> Any:
        """The state with the losses in the base algorithm's state."""
        return replace(state, base=super().apply_survey(ctx, state, losses))

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The state with the base algorithm's next state."""
        return replace(state, base=super().aggregate(ctx, state, reduced))

    def train_server(
        self, ctx: Context, state: Any, reduced: ReducedUpdates
    ) -> Generator[Progress, None, Any]:
        """The base algorithm's server training."""
        after = yield from super().train_server(ctx, state, reduced)
        return replace(state, base=after)
