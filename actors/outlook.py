"""What the rounds of an experiment that are not run for its plan will send."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedsim.core import Algorithm
from fedsim.pools import broadcast, bytes_down
from fedsim.population import Population

MESSAGES = 200
"""Rounds of which the messages are looked at: enough for a mean over a run."""


class Outlook(NamedTuple):
    """What later rounds send, as far as their messages tell.

    Attributes:
        algorithm: the method.
        population: the federation.
        state: the server's first state.
        begun: the state with which the last round that was run began; the first where none was.
    """

    algorithm: Algorithm
    population: Population
    state: Any
    begun: Any

    @property
    def at_most(self) -> bool:
        """Whether it is only known how much later rounds can send at most."""
        return self._fullest() is not self.state

    def growth(self, done: int) -> float:
        """How many times as much comes down, in the mean, after so many rounds as in the last of these.

        Where `at_most`, how many times as much can come down at most.
        """
        rounds, later = self.population.rounds, self._fullest()
        last = self._message(max(0, done - 1), self.begun if self.at_most else self.state)
        sizes = [self._message(n, later) for n in range(done, rounds, max(1, (rounds - done) // MESSAGES))]
        return sum(sizes) / len(sizes) / last if sizes and last else 1.0

    def _fullest(self) -> Any:
        return self.algorithm.fullest(self.population.context(0), self.state)

    def _message(self, number: int, state: Any) -> int:
        ctx = self.population.context(number)
        messages = broadcast(self.algorithm, ctx, state)
        return bytes_down(self.algorithm, ctx, messages, {}, range(len(messages))).total()
