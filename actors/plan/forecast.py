"""What the rounds of an experiment that are not run for its plan will send."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any, NamedTuple, cast

from fedsim.base import wire
from fedsim.clients.population import Population
from fedsim.core import Algorithm
from fedsim.core.capabilities import ClientSurvey, capability, fullest, select_survey_payload
from fedsim.engine.pools import count_bytes_down, make_broadcasts, select_survey_models

MESSAGES = 200
"""Rounds of which the messages are looked at: enough for a mean over a run."""


class Change(NamedTuple):
    """What comes down from the server in a round, as it was and as it will be.

    Attributes:
        last: bytes by payload in the last round that was run, the first where none was.
        later: the same of the rounds after it, in the mean; as the last where there are none.
    """

    last: Mapping[str, float]
    later: Mapping[str, float]


class Outlook(NamedTuple):
    """What later rounds send, as far as their messages tell.

    Attributes:
        algorithm: the method.
        population: the federation.
        state: the server's first state.
        begun: the state with which the last round that was run began; the first where none was.
        latest: the state after it, likewise.
    """

    algorithm: Algorithm
    population: Population
    state: Any
    begun: Any
    latest: Any

    @property
    def at_most(self) -> bool:
        """Whether it is only known how much later rounds can send at most."""
        return self._fullest(self.state) is not self.state

    def change(self, done: int, clients: float) -> Change:
        """How what comes down changes after so many rounds.

        What is for single clients (`Algorithm.instruct`) is left out. Where `at_most`, later rounds count
        with the most that can come down.

        Args:
            done: rounds that were run.
            clients: of a round.
        """
        rounds, later = self.population.rounds, self._fullest(self.latest)
        last = self._message(max(0, done - 1), self.begun, clients)
        sizes = [
            self._message(n, later, clients) for n in range(done, rounds, max(1, (rounds - done) // MESSAGES))
        ]
        if not sizes:
            return Change(last, last)
        names = {name for size in sizes for name in size}
        return Change(last, {name: mean(size.get(name, 0.0) for size in sizes) for name in names})

    def _fullest(self, state: Any) -> Any:
        return fullest(self.algorithm, self.population.context(0), state)

    def _message(self, number: int, state: Any, clients: float) -> dict[str, float]:
        """Bytes by payload that come down in this round to so many clients, alike of all architectures."""
        ctx = self.population.context(number)
        messages = make_broadcasts(self.algorithm, ctx, state)
        each = count_bytes_down(self.algorithm, ctx, messages, {}, range(len(messages)))
        found = {name: size * clients / len(messages) for name, size in each.items()}
        asking = {"survey": self._survey(number)} if capability(self.algorithm, ClientSurvey) else {}
        return {**found, **asking}

    def _survey(self, number: int) -> float:
        """Bytes of the models that a survey asks about, as far as the first state tells who is asked."""
        ctx = self.population.context(number)
        asked = len(cast(Any, self.algorithm).select_surveyed_clients(ctx, self.state))
        if not asked:
            return 0.0
        models = select_survey_models(self.algorithm, ctx, self.state)
        sizes = [
            wire.payload_bytes(
                select_survey_payload(self.algorithm, ctx.for_model(int(m)), self.state, model)
            )
            for m, model in models.items()
        ]
        return asked * mean(sizes)
