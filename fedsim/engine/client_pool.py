"""ClientPool: the interface between the round loop and the processes that train the clients."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from fedsim.base.tree import Tree
from fedsim.core import Algorithm, Context, PersonalScores, ReducedUpdates, Score, Survey

PersonalEvaluation: TypeAlias = Generator[int, None, PersonalScores]
"""A running personal evaluation: yields the number of finished clients, and returns all scores."""


class ClientPool(Protocol):
    """Runs clients in this process (`SerialPool`, `StackedPool`) or in Ray actors (`RayPool`)."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm for which the pool was made; its clients run no other."""

    def begin_training(self, ctx: Context, state: Any, cohort: Sequence[int]) -> Callable[[], ReducedUpdates]:
        """Start one round of training.

        Args:
            ctx: the round's context.
            state: the server state at the start of the round.
            cohort: the numbers of the clients to train.

        Returns:
            A function that waits until all clients are done and returns their reduced updates. The client
            states change when it is called, not before.
        """

    def measure_losses(self, ctx: Context, state: Any, clients: Sequence[int]) -> Survey:
        """Measure the mean loss of the first deployed model on each client's training examples.

        Args:
            ctx: the round's context.
            state: the server state.
            clients: the clients of the survey.
        """

    def begin_evaluation(self, ctx: Context, state: Any) -> Callable[[], Mapping[str, Score]]:
        """Start the evaluation of every deployed model on the whole test set (and the validation set).

        Returns:
            A function that waits for the scores and returns {name: score}.
        """

    def begin_personal_evaluation(
        self, ctx: Context, state: Any, clients: Iterable[int] | None = None
    ) -> PersonalEvaluation:
        """Start the evaluation of each client's personal model on its own test examples.

        The server state and the client states stay as they are. The fault policy of training applies to
        clients that fail. Clients without test examples are counted, but not evaluated.

        Args:
            ctx: the context of the round that just ended.
            state: the server state after this round.
            clients: the clients to evaluate; by default all.

        Returns:
            A generator to run to its end: it yields the number of finished clients, and returns the scores.
        """

    def client_states(self, clients: Iterable[int] | None = None) -> Mapping[int, Tree]:
        """Return {client: client state}, by default of all clients; clients without a state are missing."""

    def restore_client_states(self, client_states: Mapping[int, Tree]) -> None:
        """Set these clients' states, as after a restart; the states of other clients stay as they are."""

    def close(self) -> None:
        """Release the pool's resources."""
