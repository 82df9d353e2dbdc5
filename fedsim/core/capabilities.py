"""Optional capabilities: small interfaces that a method implements when it needs them.

Most methods need none of them. The engine finds one by its type: `capability(algorithm, ServerTraining)` is
the algorithm itself if it implements `ServerTraining`, and None if not. A wrapper around an algorithm has the
capabilities of that algorithm (`Forwarding`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import wire
from fedsim.base.tree import Tree
from fedsim.core.algorithm import Algorithm
from fedsim.core.batches import Pacing
from fedsim.core.census import CensusAnswers, CensusQuestion
from fedsim.core.client_task import ClientTask, ClientUpdate
from fedsim.core.context import Context
from fedsim.core.exchange import ReducedUpdates
from fedsim.core.local_training import LocalTraining
from fedsim.core.measures import Progress

Capability = TypeVar("Capability")


class Forwarding(ABC):
    """An algorithm that forwards capabilities to another one inside it."""

    @abstractmethod
    def provides(self, kind: type) -> bool:
        """Whether this algorithm, or the one inside it, implements this capability."""


def capability(algorithm: Algorithm, kind: type[Capability]) -> Capability | None:
    """The algorithm, if it implements this capability; None if not."""
    if not isinstance(algorithm, kind):
        return None
    return None if isinstance(algorithm, Forwarding) and not algorithm.provides(kind) else algorithm


# before the round


class LabelCensus(ABC):
    """Asks every client about its labels, once, before round 1."""

    @abstractmethod
    def plan_census(self, ctx: Context) -> CensusQuestion | None:
        """The question to every client; None if this run needs no census."""

    @abstractmethod
    def apply_census(self, ctx: Context, state: Any, answers: CensusAnswers) -> Any:
        """The first server state, with the answers of the clients."""


class ExpertSurvey(ABC):
    """Asks every client, once, before round 1, how hard an expert finds its examples."""

    @abstractmethod
    def apply_expert_losses(self, ctx: Context, state: Any, losses: NDArray[np.float64]) -> Any:
        """The first server state, with the expert's mean loss of each client `[N]`, NaN for an empty one."""


class ClientSurvey(ABC):
    """Asks clients, before each cohort is selected, how the global model does on their data."""

    @abstractmethod
    def select_surveyed_clients(self, ctx: Context, state: Any) -> Sequence[int]:
        """The clients to ask in this round."""

    @abstractmethod
    def apply_survey(self, ctx: Context, state: Any, losses: NDArray[np.float64]) -> Any:
        """The server state with the answers: mean losses in the order asked, NaN for an empty client."""


class SurveyPayload(ABC):
    """Sends less than the whole global model to the clients of a survey."""

    @abstractmethod
    def select_survey_payload(self, ctx: Context, state: Any, model: Tree) -> Tree:
        """The part of the model that surveyed clients do not have yet."""


class CohortSelection(ABC):
    """Selects the clients of a round; other methods draw a uniform sample."""

    @abstractmethod
    def select_cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> Sequence[int]:
        """The clients of this round, in ascending order."""


# on the way down and up


class ClientInstructions(ABC):
    """Sends single clients more than the broadcast."""

    @abstractmethod
    def instruct_client(self, ctx: Context, state: Any, client: int) -> Mapping[str, Tree]:
        """The payloads for this client alone: {payload name: tree}."""


class PayloadAccounting(ABC):
    """Sends payloads in another form than it computes with, such as only their largest entries."""

    @abstractmethod
    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """The bytes of this payload on the network, down or up (`wire.sparse_bytes`, for example)."""


# the client's round


class HeldOutExamples(ABC):
    """Has every client keep some of its examples out of training, to choose among models by."""

    @abstractmethod
    def held_out_share(self, ctx: Context) -> float:
        """The share of the client's examples that it holds out; from 0 to below 1."""


class BatchPacing(ABC):
    """Decides which examples each local step may draw; other methods draw all, epoch by epoch."""

    @abstractmethod
    def pace_batches(
        self, ctx: Context, rng: np.random.Generator, task: ClientTask, steps: int
    ) -> Pacing | None:
        """The examples of each local step; None for all of them, epoch by epoch.

        Args:
            ctx: the round, for this client.
            rng: for random choices, such as the order among equals.
            task: the client's task; it has no batches yet.
            steps: how many local steps there are.
        """


class RoundNoise(ABC):
    """Draws random numbers once for each client and round."""

    @abstractmethod
    def draw_round_noise(self, ctx: Context, rng: np.random.Generator) -> Tree:
        """Random arrays for the whole round of a client, which `ClientTask.round_noise` has."""


class StepNoise(ABC):
    """Draws random numbers for every local step."""

    @abstractmethod
    def draw_step_noise(
        self, ctx: Context, rng: np.random.Generator, steps: int, batch_size: int, num_examples: int
    ) -> Tree:
        """Random arrays, with a leading axis of local steps, which `Batch.noise` has.

        Args:
            ctx: the round, for this client.
            rng: to draw from.
            steps: how many local steps there are.
            batch_size: the most examples of a step; the last step of an epoch may have fewer.
            num_examples: how many examples the client trains on.
        """


class UpdatePostprocessing(ABC):
    """Completes a client's update with work that cannot be stacked, such as a fit by a library."""

    @abstractmethod
    def postprocess_update(self, ctx: Context, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """The complete update."""


class SentUpdates(ABC):
    """Has client states that the server's state mirrors, such as controls whose mean the server keeps."""

    @abstractmethod
    def match_sent_update(self, ctx: Context, task: ClientTask, update: ClientUpdate) -> Tree:
        """The client state that belongs to what the server receives.

        It is asked for after clipping, noise or compression has changed the upload.

        Args:
            ctx: the round, for this client.
            task: as in training.
            update: with the changed upload, and with the client state of the unchanged one.
        """


# the server, after the round


class ServerTraining(ABC):
    """Trains a model on the server after a round, such as a generator.

    Class attributes:
        trains_before_evaluation: whether the deployed models depend on this training. If so, they are scored
            after it; otherwise they are scored meanwhile.
    """

    trains_before_evaluation: ClassVar[bool] = False

    @abstractmethod
    def train_server(
        self, ctx: Context, state: Any, reduced: ReducedUpdates
    ) -> Generator[Progress, None, Any]:
        """Train on the server. The clients of the next round begin when it is done.

        Args:
            ctx: the round that just ended.
            state: as `aggregate` returned it.
            reduced: the reduced payloads of the round.

        Yields:
            The progress.

        Returns:
            The server state after training.
        """


# personal models


class PersonalBroadcast(ABC):
    """Sends clients something else than a round's broadcast when they make their personal models."""

    @abstractmethod
    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The payloads for personal models: {payload name: tree}."""

    def instructs_personal(self, ctx: Context) -> bool:
        """Whether single clients get the instructions of a round as well; by default they get none."""
        return False


class PersonalModels:
    """Gives each client a model of its own, beyond the one with which it would begin a round."""

    def plan_tuning(self, ctx: Context) -> LocalTraining | None:
        """The local training that makes a model personal; None for none.

        It may be None for some architectures alone. Their clients have the same scores before and after.
        """
        return None

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The model that this client would use itself; by default the one with which it begins a round.

        It is asked for clients that took part and for clients that never did. The result is scored and
        thrown away; client states and the server state stay as they are.

        Args:
            ctx: the round that just ended, for this client; its `local` is that of `plan_tuning`.
            task: the broadcast and the client state as they are now. Its batches are those of the tuning.
                A second call without batches gives the model before tuning, which is scored as well.

        Returns:
            Anything that `predict_personal` reads.
        """
        return self.initial_params(ctx, task)  # type: ignore[attr-defined, no-any-return]

    def personalize_before(self, ctx: Context, task: ClientTask) -> Tree | None:
        """The model before the last stage of `personalize`; None if it has one stage, or if clients tune.

        It is for methods whose clients train on their own examples and then on others', or the other way
        round. Both models are scored. The arguments are those of `personalize`.
        """
        return None

    def predict_personal(self, ctx: Context, model: Tree, x: Tensor) -> Tensor:
        """Outputs of a model that `personalize` returned, such as logits `[batch, classes]`."""
        return ctx.net(model, x)


class InitialModels(PersonalModels):
    """The personal models of a method that declares none: the models with which its clients begin a round.

    Args:
        algorithm: the method.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The model with which this client would begin a round."""
        return self.algorithm.initial_params(ctx, task)


# capabilities with a default for every method


def personal_models(algorithm: Algorithm) -> PersonalModels:
    """The personal models of any method."""
    return capability(algorithm, PersonalModels) or InitialModels(algorithm)


def select_cohort(algorithm: Algorithm, ctx: Context, state: Any, rng: np.random.Generator) -> Sequence[int]:
    """The clients of a round: those that the method selects, or else a uniform sample, in ascending order."""
    selection = capability(algorithm, CohortSelection)
    return sample_cohort(ctx, rng) if selection is None else selection.select_cohort(ctx, state, rng)


def sample_cohort(ctx: Context, rng: np.random.Generator) -> Sequence[int]:
    """A uniform sample of `ctx.cohort_size` clients without replacement, in ascending order."""
    # Costs O(K) for small K: NumPy then draws by Floyd's method and never lists the N clients.
    return sorted(rng.choice(ctx.num_clients, ctx.cohort_size, replace=False).tolist())


def count_bytes(algorithm: Algorithm, ctx: Context, name: str, payload: Tree) -> int:
    """The bytes of a payload on the network: as the method counts them, or else every number in it."""
    accounting = capability(algorithm, PayloadAccounting)
    return wire.payload_bytes(payload) if accounting is None else accounting.count_bytes(ctx, name, payload)


def held_out_share(algorithm: Algorithm, ctx: Context) -> float:
    """The share of its examples that a client holds out of training; 0 for most methods."""
    held_out = capability(algorithm, HeldOutExamples)
    return 0.0 if held_out is None else held_out.held_out_share(ctx)


def select_survey_payload(algorithm: Algorithm, ctx: Context, state: Any, model: Tree) -> Tree:
    """The part of a deployed model that travels to a surveyed client; the whole model for most methods."""
    partial = capability(algorithm, SurveyPayload)
    return model if partial is None else partial.select_survey_payload(ctx, state, model)
