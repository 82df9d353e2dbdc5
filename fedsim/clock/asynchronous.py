"""Asynchronous policies: the server takes updates as they arrive, and clients never wait for each other.

As many clients as a cohort has are in flight at any time: each downloads the newest model, trains, and
uploads its change. Meanwhile the server goes on, so the update may be stale. Its staleness is the number of
server steps between its download and its arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedsim.base.parameters import Count, Positive, Range
from fedsim.core import Algorithm, Reduction
from fedsim.core.capabilities import (
    ClientInstructions,
    ClientSurvey,
    CohortSelection,
    ServerTraining,
    capability,
)
from fedsim.core.wrapper import Wrapper
from fedsim.uploads.model_updates import MODEL

Staleness = Literal["constant", "polynomial", "hinge"]


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """An asynchronous policy; the functions of the staleness are those of FedAsync.

    Class attributes:
        adds_changes: whether the server adds the clients' changes to its model; if not, it moves towards
            their models.

    Attributes:
        staleness: s, the weight of an update that is t server steps old. `constant`: 1. `polynomial`:
            (1 + t)^-a. `hinge`: 1 if t <= b, else 1 / (a (t - b) + 1).
        a: of `polynomial` (null: 0.5) and `hinge` (null: 10).
        b: of `hinge`, in server steps.
    """

    adds_changes: ClassVar[bool]

    staleness: Staleness = "polynomial"
    a: Positive | None = None
    b: Annotated[int, Range(minimum=0)] = 4

    @property
    def updates_per_round(self) -> int | None:
        """The number of updates of a server step, which is a round; None for as many as come in time."""
        return None

    def share(self, staleness: int) -> float:
        """Return the share of the way that the server goes with an update of this staleness; 0 to 1."""
        return self.weigh_staleness(staleness)

    def weigh_staleness(self, staleness: int) -> float:
        """Return s(t).

        >>> FedBuff().weigh_staleness(3)
        0.5
        """
        if self.staleness == "constant":
            return 1.0
        if self.staleness == "polynomial":
            return float((1 + staleness) ** -(0.5 if self.a is None else self.a))
        late = max(0, staleness - self.b)
        return 1 / ((10.0 if self.a is None else self.a) * late + 1)


@dataclass(frozen=True, kw_only=True)
class FedBuff(Asynchronous):
    """The server steps when a buffer is full of updates, by the mean of their changes.

    Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, AISTATS 2022, arXiv:2106.06639 (Algorithm 1): the
    server's model moves by the mean of s(t_k) times the change of client k from the model that it downloaded.

    Attributes:
        buffer: K, number of updates of a server step.
    """

    adds_changes: ClassVar[bool] = True

    buffer: Count = 10

    @property
    def updates_per_round(self) -> int:
        """K."""
        return self.buffer


@dataclass(frozen=True, kw_only=True)
class SemiAsynchronous(Asynchronous):
    """The server steps at a deadline, and keeps late updates for the steps after their arrival.

    Every step fills the free places: of K clients, those that are late stay in flight, and fewer new ones
    begin. The step is that of FedBuff, with all updates that have arrived. If nobody is in time, the server
    waits for the first client.

    Attributes:
        seconds: the deadline, in simulated seconds since the last server step.
    """

    adds_changes: ClassVar[bool] = True

    seconds: Positive


@dataclass(frozen=True, kw_only=True)
class FedAsync(Asynchronous):
    """The server steps with every update, towards the client's model.

    Xie, Koyejo, Gupta, 2019, arXiv:1903.03934 (Algorithm 1): w <- (1 - alpha s(t)) w + alpha s(t) w_k. With
    `algorithm: fedprox` clients have the proximal term of the paper.

    Attributes:
        alpha: the share of a fresh client's model in the next one.
    """

    adds_changes: ClassVar[bool] = False

    alpha: Annotated[float, Range(above=0, maximum=1)] = 0.6

    @property
    def updates_per_round(self) -> int:
        """1."""
        return 1

    def share(self, staleness: int) -> float:
        """Alpha s(t)."""
        return self.alpha * self.weigh_staleness(staleness)


def explain_waiting(algorithm: Algorithm) -> str:
    """Return why an algorithm needs rounds in which the server waits; "" if it can run without.

    The server must need nothing of a client but its model, and a client nothing but the model that it
    downloaded.
    """
    for each in _unwrap_all(algorithm):
        name = type(each).__name__
        if not each.asynchronous:
            return f"{name} needs rounds in which all clients begin with the server's present model"
    if capability(algorithm, CohortSelection) or capability(algorithm, ClientSurvey):
        return "it chooses the clients of each round together"
    if capability(algorithm, ServerTraining) or capability(algorithm, ClientInstructions):
        return "clients and server exchange more than the model"
    if algorithm.resizes_model:
        return "clients send their model in another shape than they received it"
    if algorithm.uploads.get(MODEL) is not Reduction.MEAN:
        return "the server takes no mean of the clients' models"
    if others := sorted(set(algorithm.uploads) - {MODEL}):
        return f"clients also send the payload {others[0]}"
    return ""


def _unwrap_all(algorithm: Algorithm) -> Iterator[Algorithm]:
    """Yield an algorithm and those inside it, from the outside."""
    yield algorithm
    if isinstance(algorithm, Wrapper):
        yield from _unwrap_all(algorithm.base)
