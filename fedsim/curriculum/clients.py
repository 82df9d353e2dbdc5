"""When Do Curricula Work in Federated Learning? Part two: an ordered choice of clients.

Vahidian, Kadaveru, Baek, Wang, Kungurtsev, Chen, Shah, Lin, ICCV 2023, arXiv:2212.12712.

Idea: the server begins with the clients whose data the global model finds easy, and lets the harder ones in
as the run goes on.

Wire:
    down    the base method's
            survey    the global model, to every client, before the cohort is chosen (`scores: all`),
                      without what all of them have by the run's seed: a head that never moves, a closed block
    up      the base method's
            survey    the mean loss, one number: of everybody (`scores: all`), or with the upload of those
                      who came (`scores: kept`), GATHER
    keeps   the base method's
    server  base      the base method's state
            losses    of every client, as far as known
            heard     when each was last heard of
            line      the clients that are still to come (`batches: all`)

Deviations: pacing is corrected (see `pacing`), and never opens fewer clients than come to a round. The
paper batches the open clients into mini-batches that take part; by default one mini-batch drawn at random
from them is the round's cohort, which costs what the base method costs. With `batches: all` all of them come,
one mini-batch a round, before clients are ranked again. Nobody is asked while everybody is open. `kept`
scores are ours, for large federations: a client counts with its last known loss, which with age moves
towards the mean of all that are known, where those stand who never came. Who is asked and then comes is
charged the global model twice, with the survey and with the broadcast, though it is the same one.

Reference result: see docs/results.md.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import rng as streams
from fedsim.base.parameters import Range, Share
from fedsim.base.tree import Tree
from fedsim.base.wire import payload_bytes
from fedsim.core import Context, Progress, Reduced, Reduction, Report, Visit
from fedsim.core.census import Answers
from fedsim.curriculum.pacing import Family, opened
from fedsim.curriculum.scores import Order, losses_of, ranked
from fedsim.curriculum.wrapper import Wrapper


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the server knows of its clients.

    Attributes:
        base: the base method's state.
        losses: each client's last known mean loss, float32 `[N]`; NaN where it is not known.
        heard: the round of that, int64 `[N]`; -1 for never.
        line: the clients of the mini-batches that are still to come, int64.
    """

    base: Any
    losses: Tensor
    heard: Tensor
    line: Tensor

    @property
    def params(self) -> Tree:
        """The base method's global model."""
        found: Tree = self.base.params
        return found


@dataclass(frozen=True, kw_only=True)
class ClientCurriculum(Wrapper):
    """Any algorithm, with its clients in order (section 4.2).

    Attributes:
        base: the algorithm.
        pacing: the family of the pacing function, over the rounds of the run.
        a: the share of the rounds after which all clients are open.
        b: the share of the clients that is open at first.
        order: `curriculum` (small loss first), `anti` (large loss first), or `random`.
        scores: `all` asks every client before each round; `kept` goes by what the cohorts said.
        half_life: rounds after which a kept loss counts half, in `kept`.
        batches: `one` mini-batch of the open clients before they are ranked again, or `all` of them.

    Raises:
        ValueError: if the base chooses its clients itself.
    """

    pacing: Family = "linear"
    a: Share = 0.8
    b: Share = 0.2
    order: Order = "curriculum"
    scores: Literal["all", "kept"] = "all"
    half_life: Annotated[float, Range(above=0)] = 10.0
    batches: Literal["one", "all"] = "one"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base.has("cohort") or self.base.has("survey"):
            name = type(self.base).__name__
            raise ValueError(f"{name} chooses its clients itself; leave the client curriculum out")
        if self._reports:
            object.__setattr__(self, "uploads", {**self.base.uploads, "survey": Reduction.GATHER})

    def has(self, hook: str) -> bool:
        """Whether there is such a hook; a curriculum that asks nobody has no survey."""
        return super().has(hook) and (hook != "survey" or (self.scores == "all" and self.order != "random"))

    def by_rounds(self) -> bool:
        """Its budget is the rounds of the run."""
        return True

    @property
    def _reports(self) -> bool:
        """Whether the cohort's clients send their losses with their uploads."""
        return self.scores == "kept" and self.order != "random"

    # server

    def charge(self, ctx: Context, name: str, payload: Tree) -> int:
        """What is asked and answered about losses as it is; the base's own as the base says."""
        return payload_bytes(payload) if name == "survey" else super().charge(ctx, name, payload)

    def init(self, ctx: Context) -> Any:
        """The base's state, and nothing known of the clients."""
        never = torch.full((ctx.num_clients,), -1)
        nobody = torch.zeros(0, dtype=torch.int64)
        return Selection(
            base=self.base.init(ctx),
            losses=torch.full_like(never, torch.nan, dtype=torch.float32),
            heard=never,
            line=nobody,
        )

    def counted(self, ctx: Context, state: Any, answers: Answers) -> Any:
        """The base's state with the answers."""
        return replace(state, base=self.base.counted(ctx, state.base, answers))

    def under(self, state: Any) -> Any:
        """The base's state."""
        return state.base

    def opened(self, ctx: Context) -> int:
        """K(t): how many clients are open in this round."""
        now = np.array([ctx.round / ctx.rounds])
        return int(opened(self.pacing, self.a, self.b, ctx.num_clients, now, ctx.cohort_size)[0])

    def survey(self, ctx: Context, state: Any) -> Sequence[int]:
        """Everybody, as long as the answers matter."""
        asks = self.has("survey") and self.opened(ctx) < ctx.num_clients and not len(state.line)
        return range(ctx.num_clients) if asks else ()

    def surveyed(self, ctx: Context, state: Any, losses: NDArray[np.float64]) -> Any:
        """The state with everybody's losses."""
        heard = torch.full_like(state.heard, ctx.round)
        return replace(state, losses=torch.from_numpy(losses.astype(np.float32)), heard=heard)

    def cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> Sequence[int]:
        """A mini-batch of the open clients: drawn at random from all of them, or the next in line."""
        if self.batches == "all":
            return sorted(self._line(ctx, state)[: ctx.cohort_size].tolist())
        ready = np.sort(self._open(ctx, state))
        return sorted(ready[rng.choice(len(ready), ctx.cohort_size, replace=False)].tolist())

    def _open(self, ctx: Context, state: Any) -> NDArray[np.int64]:
        """The K(t) clients that come first."""
        easiness = -aged(state.losses.numpy(), state.heard.numpy(), ctx.round, self._lasting)
        ranking = ranked(easiness, self.order, streams.stream(ctx.seed, "client ranking", ctx.round))
        return ranking[: self.opened(ctx)]

    @property
    def _lasting(self) -> float:
        return self.half_life if self.scores == "kept" else np.inf

    def _line(self, ctx: Context, state: Any) -> NDArray[np.int64]:
        """Who is still to come: the rest of the last line, or all open clients in a random order."""
        if len(state.line):
            waiting: NDArray[np.int64] = state.line.numpy()
            return waiting
        return streams.stream(ctx.seed, "client batches", ctx.round).permutation(self._open(ctx, state))

    def learn(self, ctx: Context, state: Any, reduced: Reduced) -> Generator[Progress, None, Any]:
        """The base's."""
        after = yield from self.base.learn(ctx, state.base, reduced)
        return replace(state, base=after)

    def aggregate(self, ctx: Context, state: Any, reduced: Reduced) -> Any:
        """The base's, and what has been heard of the clients."""
        changed = {"base": self.base.aggregate(ctx, state.base, reduced)}
        if self.batches == "all":
            changed["line"] = torch.from_numpy(self._line(ctx, state)[ctx.cohort_size :])
        if self._reports:
            who = torch.tensor(reduced.clients, dtype=torch.int64)
            said = torch.stack([entry["loss"] for entry in reduced["survey"]])
            changed["losses"] = state.losses.index_copy(0, who, said)
            changed["heard"] = state.heard.index_fill(0, who, ctx.round)
        return replace(state, **changed)

    def describe(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """What the base says, and who could come."""
        how = {"order": self.order, "pacing": self.pacing, "a": self.a, "b": self.b, "scores": self.scores}
        known = state.losses[~torch.isnan(state.losses)].double()
        found = {
            "open_clients": self.opened(ctx),
            "known_clients": len(known),
            "mean_loss": float(known.mean()) if len(known) else None,
        }
        return {**super().describe(ctx, state), "client_curriculum": {**how, **found}}

    # client

    def train(self, ctx: Context, visit: Visit) -> Report:
        """The base's; where scores are kept, the loss of what came down goes up with it."""
        report = super().train(ctx, visit)
        if not self._reports:
            return report
        loss = losses_of(ctx, self.received(ctx, visit), visit.held).double().mean().float()
        return report._replace(upload={**report.upload, "survey": {"loss": loss}})


def aged(
    losses: NDArray[np.float32], heard: NDArray[np.int64], now: int, half_life: float
) -> NDArray[np.float32]:
    """What each client counts with: its last known loss, moved towards the mean as it grows old.

    Args:
        losses: `[N]`, NaN where not known.
        heard: the round of each, `[N]`, -1 for never.
        now: this round.
        half_life: rounds after which a loss is half way to the mean; infinite for losses that do not age.

    Returns:
        `[N]`: the mean for who was never heard of; NaN for who was, and holds nothing.
    """
    known = ~np.isnan(losses)
    mean = losses[known].mean(dtype=np.float64) if known.any() else 0.0
    old = np.where(heard < 0, 0.0, losses - mean) * 0.5 ** ((now - heard) / half_life)
    return np.asarray(mean + old, np.float32)
