"""Samplers that draw the cohort from the clients that are online."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsim.base import rng as streams
from fedsim.base.parameters import Range, Share
from fedsim.core import Context
from fedsim.samplers.sampler import ClientScores, Sampler

DAY_SECONDS = 86_400.0

MeanSeconds: TypeAlias = Annotated[float, Range(minimum=1e-3, maximum=1e12)]

SLOTS_OF_A_STATE = 10
"""Slots of `Markov` in the shorter of its two mean times."""

SLOTS_OF_A_SPAN = 100
"""Slots after which the clients of `Markov` begin anew."""


@dataclass(frozen=True, kw_only=True)
class OnlineClients(Sampler):
    """A uniform sample of the clients that are online; a subclass defines `find_online`.

    If fewer clients than a cohort are online, the cohort is smaller. If nobody is online, one client takes
    part.
    """

    @abstractmethod
    def find_online(self, ctx: Context) -> NDArray[np.bool_]:
        """Draw which clients are online at the start of the round, bool `[N]`."""

    def select(
        self, ctx: Context, clients: NDArray[np.int64], known: ClientScores, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw who is online, and a cohort from them."""
        online = clients[self.find_online(ctx)[clients]]
        if not len(online):
            return rng.choice(clients, 1)
        return rng.choice(online, min(ctx.cohort_size, len(online)), replace=False)


@dataclass(frozen=True, kw_only=True)
class Availability(OnlineClients):
    """A uniform sample of the clients that are online: each is online with a probability of its own.

    The probabilities are drawn once, uniformly between `lowest` and 1. If fewer clients than a cohort are
    online, the cohort is smaller. If nobody is online, one client takes part.

    Attributes:
        lowest: the smallest probability of being online.
    """

    lowest: Share = 0.2

    def find_online(self, ctx: Context) -> NDArray[np.bool_]:
        """Draw which clients are online at the start of the round, bool `[N]`."""
        return streams.stream(ctx.seed, "online", ctx.round).random(ctx.num_clients) < self._chances(ctx)

    def _chances(self, ctx: Context) -> NDArray[np.float64]:
        spread = streams.stream(ctx.seed, "availability").random(ctx.num_clients)
        return self.lowest + (1 - self.lowest) * spread


@dataclass(frozen=True, kw_only=True)
class DayNight(Availability):
    """As `availability`, but the probability of a client rises and falls with the simulated time of its day.

    It is the client's own probability times (1 + cos(2 pi (t / 24 h - phase))) / 2. The phases are drawn
    once, uniformly over `zones` of the day. It needs `devices`.

    Attributes:
        zones: share of the day over which the clients are spread; 0: all in one time zone, 1: all around
            the world.
    """

    needs_clock: ClassVar[bool] = True
    lowest: Share = 1.0
    zones: Share = 0.0

    def _chances(self, ctx: Context) -> NDArray[np.float64]:
        phases = self.zones * streams.stream(ctx.seed, "time zone").random(ctx.num_clients)
        angles = 2 * np.pi * (ctx.clock / DAY_SECONDS - phases)
        return np.asarray(super()._chances(ctx) * (1 + np.cos(angles)) / 2)


@dataclass(frozen=True, kw_only=True)
class Markov(OnlineClients):
    """Clients go online and offline at random times, and stay so for a while. It needs `devices`.

    The simulated time is cut into slots. From a slot to the next, an online client goes offline with the
    probability slot / `online_seconds`, and an offline one online with slot / `offline_seconds`; a slot is a
    tenth of the shorter of the two. Every 100 slots all clients begin anew, online with their long-run
    probability, so that the state of any moment is known without those before.

    Attributes:
        online_seconds: mean time that a client stays online.
        offline_seconds: mean time that a client stays offline.
    """

    needs_clock: ClassVar[bool] = True
    online_seconds: MeanSeconds = 3600.0
    offline_seconds: MeanSeconds = 3600.0

    def find_online(self, ctx: Context) -> NDArray[np.bool_]:
        """Follow the clients from the last new beginning to the present slot, bool `[N]`."""
        slot = min(self.online_seconds, self.offline_seconds) / SLOTS_OF_A_STATE
        span, last = divmod(int(ctx.clock / slot), SLOTS_OF_A_SPAN)
        return self._follow(slot, ctx.seed, ctx.num_clients, span, last)

    @lru_cache(maxsize=2)  # noqa: B019 - the sampler is hashed by its values, and few arrays are kept
    def _follow(self, slot: float, seed: int, clients: int, span: int, number: int) -> NDArray[np.bool_]:
        """Return who is online in a slot of a span; a later round goes on from the slot of the one before."""
        drawn = streams.stream(seed, "markov", span, number).random(clients)
        if not number:
            return np.asarray(drawn < self.online_seconds / (self.online_seconds + self.offline_seconds))
        before = self._follow(slot, seed, clients, span, number - 1)
        return np.where(before, drawn >= slot / self.online_seconds, drawn < slot / self.offline_seconds)
