"""Algorithm: one federated method, as its hyper-parameters and pure functions.

Some functions run on the server, some on a client. Everything that varies is an argument, so that the same
code runs one client at a time, many at once, in this process or in an actor on another machine. The round
that calls them is drawn in `fedsim.engine.simulation`. What only some methods need, such as training on the
server or models of the clients' own, is declared in `fedsim.core.capabilities`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from fedsim.base.tree import Tree
from fedsim.core.client_task import ClientTask, ClientUpdate
from fedsim.core.context import Context
from fedsim.core.effort import Effort
from fedsim.core.exchange import ReducedUpdates, Reduction, ServerState
from fedsim.core.purposes import check_purposes
from fedsim.errors import FieldError
from fedsim.learning_tasks.tasks import CLASS_TASKS
from fedsim.models.net import Net, Params


def read_uploads(name: str, uploads: Any) -> dict[str, Reduction]:
    """Return the `uploads` of a class with a `Reduction` for each payload, for which its value also serves.

    Raises:
        TypeError: they are no mapping.
        ValueError: a reduction is unknown.
    """
    known = ", ".join(f"Reduction.{each.name}" for each in Reduction)
    if not isinstance(uploads, Mapping):
        raise TypeError(
            f"{name}.uploads is {uploads!r}; write {{payload name: reduction}} with one of {known}"
        )
    wrong = {payload: kind for payload, kind in uploads.items() if kind not in set(map(str, Reduction))}
    for payload, kind in wrong.items():
        raise ValueError(f"{name}.uploads[{payload!r}] is {kind!r}; write one of {known}")
    return {payload: Reduction(kind) for payload, kind in uploads.items()}


class Algorithm(ABC):
    """One federated method. Subclasses are frozen dataclasses whose fields are its hyper-parameters.

    Class attributes:
        uploads: {payload name: how the payloads of the cohort are reduced}; a subclass adds to it with
            `{**FedAvg.uploads, "control": Reduction.SUM}`.
        free_uploads: uploads that no network would carry, and that cost no bytes: bookkeeping of the
            simulation, and views of other payloads.
        update_figures: uploads that are figures of a client's whole update, such as its norm. Clipping,
            compression and attacks change updates and not these figures, so they do not suit the method.
        stateful: whether clients keep a state between rounds.
        heterogeneous: whether clients may have different architectures.
        deploys_models: whether the server has a model for everybody, to score and to export.
        needs_public_set: whether the method reads `Context.public`.
        assumes_sgd: whether the method computes with the steps of SGD, so that clients need that optimizer.
        shares_parameters: whether the payload `params` has parameters; False for a method whose clients send
            none of their models.
        resizes_model: whether clients send their model in another shape than they received it; attacks and
            robust aggregation then do not suit it.
        asynchronous: whether a client may train on an older model than the server's present one. The clock
            then needs no rounds (`fedsim.clock.asynchronous`). False where clients and server keep values
            that belong to the present model.
        further_example_use: what clients take from their examples besides the batches of one local loop, such
            as "label counts"; "" for nothing. Privacy for each example covers a local loop alone.
        purposes: what the method is for, of `fedsim.core.purposes.PURPOSES`, the main purpose first. A
            subclass has the purposes of its parent unless it declares its own; `FedAvg` has none.
        tasks: the learning tasks that it serves, by name; by default those with class labels. A method that
            uses only the supervised loss serves all (`fedsim.learning_tasks.tasks.ALL_TASKS`).

    Example:
        FedAvg whose clients pay for large weights, which is FedAvg itself at `gamma` 0:

        >>> from dataclasses import dataclass
        >>> from fedsim.algorithms import FedAvg
        >>> from fedsim.base import tree
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Decay(FedAvg):
        ...     gamma: float = 0.1
        ...     def loss(self, ctx, task, params, batch):
        ...         moving = tree.select(params, self.trainable_keys(ctx, task.broadcast))
        ...         return super().loss(ctx, task, params, batch) + self.gamma * tree.dot(moving, moving)
        >>> Decay(gamma=0.01)
        Decay(gamma=0.01)
    """

    uploads: ClassVar[Mapping[str, Reduction]]
    free_uploads: ClassVar[Collection[str]] = frozenset()
    update_figures: ClassVar[Collection[str]] = frozenset()
    stateful: ClassVar[bool] = False
    heterogeneous: ClassVar[bool] = False
    deploys_models: ClassVar[bool] = True
    needs_public_set: ClassVar[bool] = False
    assumes_sgd: ClassVar[bool] = False
    shares_parameters: ClassVar[bool] = True
    resizes_model: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False
    further_example_use: ClassVar[str] = "their examples in a way of their own"
    purposes: ClassVar[tuple[str, ...]] = ()
    tasks: ClassVar[Collection[str]] = CLASS_TASKS

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_purposes(cls.__name__, cls.purposes)
        if "uploads" in cls.__dict__:
            cls.uploads = read_uploads(cls.__name__, cls.uploads)

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """The hyper-parameters that do not suit this architecture or number of rounds."""
        return ()

    def depends_on_num_rounds(self) -> bool:
        """Whether a round depends on how many rounds the run has; if so, a run cannot be given more."""
        return False

    # server

    @abstractmethod
    def init_server_state(self, ctx: Context) -> ServerState:
        """The server state before round 1."""

    @abstractmethod
    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The payloads for every client of the cohort, of this architecture: {payload name: tree}."""

    @abstractmethod
    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The server state after the round."""

    def deploy_models(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The server's models of this architecture, to be scored: a record has `NAME_accuracy` of each.

        It is not called where the method does not deploy models.
        """
        return {"global": ctx.select_architecture(state.params)}

    def predict(self, ctx: Context, model: Tree, x: Tensor) -> Tensor:
        """The outputs of a deployed model, such as logits `[batch, classes]`."""
        return ctx.net(model, x)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The decisions of the method in this round, for the record: numbers, strings, short lists."""
        return {}

    # client

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """The state of a client that takes part for the first time."""
        return {}

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The model with which the client begins its round, all keys of the net."""
        params: Params = task.broadcast["params"]
        return params

    @abstractmethod
    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The round of one client."""

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """The weight of this client in every MEAN; by default its number of examples."""
        return float(task.num_examples)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The kinds of local steps of a client, with their numbers, to count what the method costs.

        By default every step moves every parameter of the net, once forward and once backward.

        Args:
            ctx: the round, for one architecture.
            state: of the server, before the round.
            steps: local steps, as `ctx.local` has them.
        """
        return (Effort(steps, ctx.net.parameters),)
