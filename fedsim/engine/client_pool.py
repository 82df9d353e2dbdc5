"""ClientPool: what the round loop asks of whoever runs the clients."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from fedsim.base.tree import Tree
from fedsim.core import Algorithm, Context, PersonalScores, ReducedUpdates, Score, Survey

PersonalEvaluation: TypeAlias = Generator[int, None, PersonalScores]
"""Scores personal models: yields how many clients are done, and returns all scores."""


class ClientPool(Protocol):
    """Where clients run: one after another here, or on actors."""

    def begin_training(
        self, algorithm: Algorithm, ctx: Context, state: Any, cohort: Sequence[int]
    ) -> Callable[[], ReducedUpdates]:
        """Begin one round of these clients; what is returned waits for its end and gives the outcome.

        The clients' memories change when the outcome is asked for, not before.
        """

    def measure_losses(
        self, algorithm: Algorithm, ctx: Context, state: Any, clients: Sequence[int]
    ) -> Survey:
        """The mean loss of the first deployed model on each of these clients' training examples."""

    def begin_evaluation(
        self, algorithm: Algorithm, ctx: Context, state: Any
    ) -> Callable[[], Mapping[str, Score]]:
        """Begin to score every deployed model on the whole test set; what is returned waits for it."""

    def begin_personal_evaluation(
        self, algorithm: Algorithm, ctx: Context, state: Any, clients: Iterable[int] | None = None
    ) -> PersonalEvaluation:
        """Begin to score each client's own model on its own test examples.

        Nothing changes by it: memories and state stay as they are. Clients that fail are treated as in
        training; those without test examples are counted and left alone.

        Args:
            algorithm: whose clients.
            ctx: the round that just ended.
            state: of the server, after it.
            clients: whom to score; by default everybody.

        Returns:
            What is to be run to its end: it yields how many clients are done, and returns the scores.
        """

    def client_states(self, clients: Iterable[int] | None = None) -> Mapping[int, Tree]:
        """What these clients keep, by default all; those that keep nothing are not in the answer."""

    def restore_client_states(self, client_states: Mapping[int, Tree]) -> None:
        """Put the memories of these clients back, as after a restart; those of others stay as they are."""

    def close(self) -> None:
        """Give the pool's resources back."""
