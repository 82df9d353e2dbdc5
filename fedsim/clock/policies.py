"""Policies: for whom the server waits in a synchronous round, around any algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, ClassVar, NamedTuple

from fedsim.base.parameters import Positive, Range
from fedsim.base.shares import ceil_share
from fedsim.clock.asynchronous import Asynchronous, FedAsync, FedBuff, SemiAsynchronous


class Decision(NamedTuple):
    """For whom the server waits.

    Attributes:
        accepted: the clients whose updates count, in ascending order.
        until: the server waits at least until then, in seconds since the start of the round.
    """

    accepted: tuple[int, ...]
    until: float


class Policy(ABC):
    """Decides whose updates count in a round, from the seconds at which they would arrive.

    Class attributes:
        waits_for_all: whether every client counts that does not vanish, so that nothing has to be decided.
    """

    waits_for_all: ClassVar[bool] = False

    def count_asked(self, cohort_size: int, num_clients: int) -> int:
        """Return the number of clients that the server asks to have a cohort of this size."""
        return cohort_size

    @abstractmethod
    def decide(
        self, arrivals: Mapping[int, float], vanished: Mapping[int, float], cohort_size: int
    ) -> Decision:
        """Decide whose updates count.

        Args:
            arrivals: {client: seconds until its update arrives}, at least one.
            vanished: {client: seconds until it vanishes}; the server notices it then.
            cohort_size: K.
        """


@dataclass(frozen=True, kw_only=True)
class Wait(Policy):
    """The server waits for all clients."""

    waits_for_all: ClassVar[bool] = True

    def decide(
        self, arrivals: Mapping[int, float], vanished: Mapping[int, float], cohort_size: int
    ) -> Decision:
        """Accept every client that arrives."""
        return Decision(tuple(sorted(arrivals)), max(vanished.values(), default=0.0))


@dataclass(frozen=True, kw_only=True)
class Deadline(Policy):
    """The server waits until a deadline, and leaves out the clients that are late.

    If nobody is in time, the server waits for the first client. Bonawitz et al., MLSys 2019,
    arXiv:1902.01046 (the time-out of the reporting phase).

    Attributes:
        seconds: the deadline, in simulated seconds since the start of the round.
        partial: whether a client that would be late does fewer epochs (or steps, with `local.steps`), as many
            as fit, at least one. FedProx and FedNova are made for clients of unequal work.
    """

    seconds: Positive
    partial: bool = False

    def decide(
        self, arrivals: Mapping[int, float], vanished: Mapping[int, float], cohort_size: int
    ) -> Decision:
        """Accept the clients that arrive in time."""
        in_time = tuple(client for client in sorted(arrivals) if arrivals[client] <= self.seconds)
        if not in_time:
            return Decision((min(arrivals, key=lambda client: (arrivals[client], client)),), self.seconds)
        waits = [*arrivals.values(), *vanished.values()]
        return Decision(in_time, min(self.seconds, max(waits)))


@dataclass(frozen=True, kw_only=True)
class OverSelection(Policy):
    """The server asks more clients than it needs, and takes the first ones.

    Bonawitz et al., MLSys 2019, arXiv:1902.01046: Google selects 130 % of the clients.

    Attributes:
        factor: clients that are asked, divided by the clients that count; ceil(factor x K) are asked.
    """

    factor: Annotated[float, Range(minimum=1, maximum=100)] = 1.3

    def count_asked(self, cohort_size: int, num_clients: int) -> int:
        """Return ceil(factor x K), at most N."""
        return min(num_clients, ceil_share(self.factor, cohort_size))

    def decide(
        self, arrivals: Mapping[int, float], vanished: Mapping[int, float], cohort_size: int
    ) -> Decision:
        """Accept the first K clients; of equal ones, the lower number."""
        ranked = sorted(arrivals, key=lambda client: (arrivals[client], client))
        missing = len(ranked) < min(cohort_size, len(arrivals) + len(vanished))
        until = max(vanished.values()) if missing else 0.0
        return Decision(tuple(sorted(ranked[:cohort_size])), until)


@dataclass(frozen=True, kw_only=True)
class Tiers(Wait):
    """Clients are divided into tiers of similar speed, and each round takes its cohort from one tier.

    TiFL: Chai et al., HPDC 2020, arXiv:2001.09249, with fixed probabilities of the tiers; its
    adaptive selection is not here. All tiers have the same number of clients. Clients are ordered by the
    seconds of a FedAvg round on their device.

    Attributes:
        count: number of tiers, from the fastest to the slowest.
        probabilities: of each tier, relative to each other, the fastest first; null: all equal.
    """

    count: Annotated[int, Range(1, 100)] = 5
    probabilities: tuple[Annotated[float, Range(minimum=0)], ...] | None = None

    def find_fault(self) -> str | None:
        """Return what is wrong with `probabilities`; None if nothing is."""
        chosen = self.probabilities
        if chosen is None or (len(chosen) == self.count and 0 < sum(chosen) < inf):
            return None
        return f"needs {self.count} numbers that are not all 0, one for each tier"


POLICIES: Mapping[str, type[Policy | Asynchronous]] = {
    "wait": Wait,
    "deadline": Deadline,
    "over_selection": OverSelection,
    "tiers": Tiers,
    "semi_asynchronous": SemiAsynchronous,
    "fedbuff": FedBuff,
    "fedasync": FedAsync,
}
"""The policies, by the name that a spec gives them (`devices.policy`)."""
