"""The types that every algorithm speaks.

An algorithm is a frozen dataclass of hyper-parameters with pure functions: some run on the server, some on
a client. Everything that varies comes in as an argument, so that the same code runs one client at a time,
many at once, in this process or in an actor on another machine. The round that calls these hooks is drawn
in `fedsim.engine.simulation`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import wire
from fedsim.base.tree import Tree
from fedsim.core.census import Answers, Census
from fedsim.core.client_task import Batch, Effort, Local, Pacing, Report, Visit
from fedsim.core.context import Context
from fedsim.core.exchange import Progress, Reduced, Reduction, ServerState
from fedsim.core.personal_scores import PersonalScores
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params


class Algorithm(ABC):
    """One federated algorithm: its hyper-parameters, and pure functions for the server and for the clients.

    Class attributes:
        uploads: {payload name: how it is reduced}.
        free: uploads that no network would carry, and that are charged nothing: bookkeeping of the
            simulation, and views of what is sent anyway. They are reduced like the others.
        stateful: whether clients keep a memory between rounds.
        heterogeneous: whether clients may run different architectures.
        deploys: whether the server has a model for everybody, to be scored and asked about.
        unstackable: why the local loops of many clients cannot be one; "" where they can, which asks of a
            loss what `fedsim.training.local_loop.descend` says.
        needs_public: whether it exchanges something on a public set, which `Context.public` then has.
        tasks: what examples may carry: one of several "classes", or several yes-or-no "labels".
        learns_first: whether the models that are scored depend on `learn`, so that scoring waits for it.
    """

    uploads: ClassVar[Mapping[str, Reduction]]
    free: ClassVar[Collection[str]] = frozenset()
    stateful: ClassVar[bool] = False
    heterogeneous: ClassVar[bool] = False
    deploys: ClassVar[bool] = True
    unstackable: ClassVar[str] = ""
    needs_public: ClassVar[bool] = False
    tasks: ClassVar[Collection[str]] = frozenset({"classes", "labels"})
    learns_first: ClassVar[bool] = False

    def has(self, hook: str) -> bool:
        """Whether the method has this hook of its own; pools skip the work of those that it has not."""
        return getattr(type(self), hook) is not getattr(Algorithm, hook)

    def misfits(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """What of its hyper-parameters does not go with this architecture or number of rounds."""
        return ()

    def by_rounds(self) -> bool:
        """Whether a round depends on how many the run has: then no rounds can be added to a run."""
        return False

    # server

    @abstractmethod
    def init(self, ctx: Context) -> ServerState:
        """The state before the first round."""

    def label_census(self, ctx: Context) -> Census | None:
        """What every client is asked about its labels, once, before round 1; by default nothing."""
        return None

    def counted(self, ctx: Context, state: Any, answers: Answers) -> Any:
        """The first state with what the clients answered to the census."""
        return state

    def survey(self, ctx: Context, state: Any) -> Sequence[int]:
        """Clients to ask, before the cohort is chosen, how the server's model does on their data."""
        return ()

    def surveyed(self, ctx: Context, state: Any, losses: NDArray[np.float64]) -> Any:
        """The state with their answers: mean losses in the order asked, NaN for who holds nothing."""
        return state

    def survey_payload(self, ctx: Context, state: Any, model: Tree) -> Tree:
        """What of a deployed model has to travel to a client that is asked about it; by default all."""
        return model

    def cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> Sequence[int]:
        """The clients of this round; by default a uniform sample without replacement, in ascending order."""
        # Costs O(K) for small K: NumPy then draws by Floyd's method and never lists the N clients.
        return sorted(rng.choice(ctx.num_clients, ctx.cohort_size, replace=False).tolist())

    @abstractmethod
    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """What every client of the cohort, of this architecture, receives: {payload name: tree}."""

    def instruct(self, ctx: Context, state: Any, client: int) -> Mapping[str, Tree]:
        """What this client receives besides: {payload name: tree}."""
        return {}

    @abstractmethod
    def aggregate(self, ctx: Context, state: Any, reduced: Reduced) -> Any:
        """The state after the round."""

    def learn(self, ctx: Context, state: Any, reduced: Reduced) -> Generator[Progress, None, Any]:
        """What the server trains itself after a round, such as a generator; by default nothing.

        The deployed models are scored meanwhile, so they must not depend on it, unless the method
        `learns_first`: then they are scored after it. The next round's clients begin when it is done.

        Args:
            ctx: the round that just ended.
            state: as `aggregate` gave it.
            reduced: what came.

        Yields:
            How far it is.

        Returns:
            The state with what was learnt.
        """
        yield from ()
        return state

    def deployed(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The server's models of this architecture to be scored; a record has `NAME_accuracy` of each.

        None at all where the method does not deploy.
        """
        return {"global": ctx.own(state.params)}

    def predict(self, ctx: Context, model: Tree, x: Tensor) -> Tensor:
        """Logits `[batch, classes]` of a deployed model."""
        return ctx.net(model, x)

    def describe(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """What the method decided in this round, for the record: numbers, strings, short lists."""
        return {}

    def charge(self, ctx: Context, name: str, payload: Tree) -> int:
        """What this payload costs on its way, down or up, in bytes; by default every number in it.

        A method says here what it sends in another form than it computes with, such as only the entries that
        it kept (`wire.sparse_bytes`).
        """
        return wire.payload_bytes(payload)

    # client

    def remember(self, ctx: Context, broadcast: Tree) -> Tree:
        """A client's memory on its first visit."""
        return {}

    def received(self, ctx: Context, visit: Visit) -> Params:
        """The model, all keys of the net, with which a client begins: what judges its examples untrained."""
        params: Params = visit.broadcast["params"]
        return params

    def schedule(self, ctx: Context, rng: np.random.Generator, visit: Visit, steps: int) -> Pacing | None:
        """Which examples each local step may draw; None (the default) for all of them, epoch by epoch.

        Args:
            ctx: the round, for this client.
            rng: for what chance decides, such as the order among equals.
            visit: the round to be planned; it has no batches yet.
            steps: how many local steps there will be.
        """
        return None

    def reserved(self, ctx: Context) -> float:
        """The share of its examples that each client keeps apart, never to be trained on; below 1."""
        return 0.0

    def draw(self, ctx: Context, rng: np.random.Generator) -> Tree:
        """The method's own randomness of a client's round as a whole: arrays, given back as `Visit.drawn`."""
        return {}

    def noise(
        self, ctx: Context, rng: np.random.Generator, steps: int, batch_size: int, num_examples: int
    ) -> Tree:
        """The method's own randomness, drawn before training: arrays with a leading axis of local steps.

        Args:
            ctx: the round, for this client.
            rng: to draw from.
            steps: how many local steps there will be.
            batch_size: the most examples of a step; the last of a pass, and one that a curriculum paces, may
                have fewer.
            num_examples: how many the client trains on, and each pass has.
        """
        return {}

    @abstractmethod
    def train(self, ctx: Context, visit: Visit) -> Report:
        """One client's round."""

    def conclude(self, ctx: Context, visit: Visit, report: Report) -> Report:
        """The report with what the client works out after `train`; by default as it is.

        Here belongs what cannot be mapped over many clients at once, such as fitting by a library.
        """
        return report

    def weight(self, ctx: Context, visit: Visit) -> float:
        """What this client counts in every MEAN; by default its number of examples."""
        return float(visit.num_examples)

    def effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """What so many local steps move and compute, for what the method costs (`fedsim.training.effort`).

        By default every step moves every parameter of the net, once forward and once backward. A method
        whose steps are of several kinds names each kind with its number of steps.

        Args:
            ctx: the round, for one architecture.
            state: of the server, before the round.
            steps: local steps, as `ctx.local` says.
        """
        return (Effort(steps, ctx.net.parameters),)

    def tuning_effort(self, ctx: Context, steps: int) -> Sequence[Effort]:
        """As `effort`, of the local steps of `tuning`; by default they move every parameter of the net."""
        return (Effort(steps, ctx.net.parameters),)

    # personal models

    def tuning(self, ctx: Context) -> Local | None:
        """The local training by which a client makes its model its own before it uses it; None for none."""
        return None

    def handover(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """What a client receives to make its own model of, after a round: {payload name: tree}.

        By default it is as when it begins a round, with its instructions. A method that says it here sends
        nothing else for it: an ensemble whole, or a model without what is only for training.
        """
        return self.broadcast(ctx, state)

    def personalise(self, ctx: Context, visit: Visit) -> Tree:
        """The model that this client would use itself; by default, the one with which it would begin a round.

        It is asked for clients that took part and for those that never did: their memory is then that of a
        first visit. What it returns is scored and thrown away; memories and the server stay as they are.

        Args:
            ctx: the round that just ended, for this client, with `tuning` as its `local` where there is one.
            visit: what came down from the server as it is now, and what the client keeps. Its batches are
                those of `tuning`; without tuning there are none. It is called once more without batches
                where there is tuning: for the model before it, which is scored as well.

        Returns:
            Whatever `predict_personal` reads; FedAvg's is the global model.
        """
        return self.received(ctx, visit)

    def predict_personal(self, ctx: Context, model: Tree, x: Tensor) -> Tensor:
        """Logits `[batch, classes]` of a model that `personalise` made."""
        return ctx.net(model, x)


Examination: TypeAlias = Generator[int, None, PersonalScores]
LossFunction = Callable[[Params, Batch], Tensor]
