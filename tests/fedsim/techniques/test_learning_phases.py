"""FedCL's phases: what freezes a client, what ends a phase, and that all of them end."""

from __future__ import annotations

from dataclasses import fields, make_dataclass, replace
from math import ceil
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch

from fedsim.algorithms import FedCL
from fedsim.base import rng
from fedsim.base.digest import digest
from fedsim.checkpoints.serialization import pack, unpack
from fedsim.core import Context
from fedsim.techniques.learning_phases import Phases, PhaseState

DRAWS = 20


def fresh(clients: int) -> PhaseState:
    return PhaseState(frozen=torch.zeros(clients, dtype=torch.bool))


def flat(values: list[float]) -> torch.Tensor:
    """Every client's draws, each client's all the same; NaN for who has told none."""
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1).expand(-1, DRAWS).clone()


def test_a_client_is_done_when_more_than_v_of_its_draws_are_at_or_below_the_threshold() -> None:
    rules = Phases((0.5,), v=0.7, share=1.0, cap=9)
    draws = torch.arange(10, dtype=torch.float64).repeat(3, 1)
    held = torch.tensor([9, 9, 9])
    assert (
        rules.find_finished_clients(draws, 6.0, held).tolist() == [False] * 3
    )  # 7 of 10 is not more than 0.7
    assert rules.find_finished_clients(draws, 7.0, held).tolist() == [True] * 3


def test_who_holds_too_little_to_tell_is_done_and_a_model_that_has_diverged_is_not() -> None:
    rules, silent = Phases((0.5,), v=0.7, share=0.5, cap=2), flat([np.nan] * 4)
    assert rules.find_finished_clients(silent, 0.0, torch.tensor([0, 4, 5, 90])).tolist() == [
        True,
        True,
        False,
        False,
    ]
    now, left = fresh(3), []
    for number in range(2):
        now = rules.advance(now, number, range(3), [20, 4, 20], flat([np.nan] * 3))
        left.append((now.said["frozen"], now.said["left"]))
    assert left == [([1], None), ([1], "cap")]


def test_the_threshold_is_held_and_those_who_came_are_looked_at() -> None:
    rules = Phases((0.5, 0.9), v=0.5, share=0.75, cap=50)
    now = rules.advance(fresh(4), 0, [0, 1], [9, 9], flat([1.0, 3.0, np.nan, np.nan]))
    assert now.threshold == 1.0  # the ceil(0.5 * 40)-th of 40 draws
    assert now.frozen.tolist() == [True, False, False, False]
    assert now.said["phase"] == "1 of 2"
    assert now.ready_clients.tolist() == [1, 2, 3]
    # Everybody is far below by now, and still only who comes is frozen, by the first threshold.
    now = rules.advance(now, 1, [2], [9], flat([1.0, -3.0, -3.0, -3.0]))
    assert now.threshold == 1.0
    assert now.frozen.tolist() == [True, False, True, False]
    assert now.said["left"] is None
    now = rules.advance(now, 2, [3], [9], flat([1.0, -3.0, -3.0, -5.0]))
    assert now.said | {"quantiles": []} == {
        "phase": "1 of 2",
        "level": 0.5,
        "threshold": 1.0,
        "quantiles": [],
        "frozen_clients": 3,
        "frozen": [0, 2, 3],
        "newly_frozen": [3],
        "left": "share",
    }
    assert (now.phase, now.began, now.threshold) == (1, 3, 1.0)  # the 0.9 quantile of the draws as they are
    assert not now.frozen.any()


def test_a_phase_ends_by_its_cap_and_after_the_last_everybody_may_come() -> None:
    rules = Phases((0.3,), v=0.9, share=1.0, cap=3)
    now, draws = fresh(3), torch.arange(3 * DRAWS, dtype=torch.float64).view(3, DRAWS)
    said = []
    for number in range(5):
        now = rules.advance(now, number, [1, 2], [9, 9], draws)
        said.append((now.said["phase"], now.said["left"]))
    assert said == [("1 of 1", None)] * 2 + [("1 of 1", "cap")] + [("over", None)] * 2
    assert now.ready_clients.tolist() == [0, 1, 2]


def test_a_standing_is_kept_by_checkpoints() -> None:
    now = Phases((0.5,), v=0.5, share=1.0, cap=9).advance(fresh(3), 0, [0], [9], flat([1.0, 2.0, 3.0]))
    again = unpack(pack(now), fresh(3))
    assert again.said == now.said
    assert torch.equal(again.frozen, now.frozen)
    assert isinstance(again, PhaseState)


def cohort(now: PhaseState, size: int, chance: np.random.Generator) -> list[int]:
    """Whom FedCL chooses: nobody who is frozen, and as many as asked for or as are left."""
    ctx, state = SimpleNamespace(num_clients=len(now.frozen), cohort_size=size), SimpleNamespace(standing=now)
    came = [*FedCL().select_cohort(cast(Context, ctx), state, chance)]
    assert came
    assert len(set(came)) == len(came) == min(size, int((~now.frozen).sum()))
    assert not now.frozen[came].any()
    return came


def test_who_is_frozen_can_be_told_from_the_records_of_many_clients() -> None:
    """200 clients of which up to 160 are frozen; a record lists fifty, and all that its round has frozen."""
    chance, clients = np.random.default_rng(4), 200
    rules = Phases((0.5, 0.8), v=0.5, share=0.8, cap=30)
    now, draws, rebuilt, most = fresh(clients), flat([np.nan] * clients), set[int](), 0
    for number in range(60):
        came, before = cohort(now, 25, chance), now
        draws[came] = torch.from_numpy(chance.normal(-0.1 * number, 2, (25, DRAWS)))[: len(came)]
        now = rules.advance(now, number, came, [9] * len(came), draws)
        said = now.said
        assert len(said["newly_frozen"]) <= 25
        assert not before.frozen[said["newly_frozen"]].any()
        rebuilt |= set(said["newly_frozen"])
        assert len(rebuilt) == said["frozen_clients"]
        assert sorted(rebuilt)[:50] == said["frozen"]
        most = max(most, len(rebuilt))
        if said["left"]:
            rebuilt = set()
        assert sorted(rebuilt) == torch.nonzero(now.frozen).flatten().tolist()
    assert most >= 160
    assert now.said["phase"] == "over"


def test_no_phase_goes_on_for_ever() -> None:
    """200 federations of random sizes, rules and speeds; clients may never learn, hold nothing, diverge."""
    reasons: dict[str, int] = {"share": 0, "cap": 0}
    for case in range(200):
        chance = rng.stream(case, "phases")
        clients = int(chance.integers(2, 30)) if case % 10 else 1
        size = int(chance.integers(1, clients + 1))
        levels = tuple(float(x) for x in np.sort(chance.uniform(0.05, 0.95, chance.integers(1, 6))))
        rules = Phases(
            levels[::-1] if case % 2 else levels,
            v=float(chance.uniform(0, 1)),
            share=float(chance.uniform(0.05, 1)),
            cap=int(chance.integers(1, 12)),
        )
        rounds = len(levels) * rules.cap
        place, speed = chance.normal(0, 3, clients), chance.exponential(0.3, clients)
        speed[chance.random(clients) < 0.2] = 0  # never learn
        place[chance.random(clients) < 0.1] = np.nan  # hold nothing, or have diverged
        held = chance.choice([0, 20], clients)
        now, draws, visits = fresh(clients), flat([np.nan] * clients), np.zeros(clients)
        lasted: list[int] = []
        for number in range(rounds):
            came, before = cohort(now, size, chance), now
            visits[came] += 1
            mean = place[came] - speed[came] * visits[came]
            draws[came] = torch.from_numpy(mean[:, None] + chance.standard_normal((len(came), DRAWS)))
            now = rules.advance(now, number, came, held[came].tolist(), draws)
            left = now.said["left"]
            if before.phase == len(levels):
                assert left is None
                assert now.said["phase"] == "over"
                continue
            assert (left is not None) == (now.phase == before.phase + 1)
            if left is None:
                assert (now.frozen | ~before.frozen).all()  # who is frozen stays so within a phase
                assert before.phase == now.phase
                continue
            reasons[left] += 1
            lasted.append(number + 1 - before.began)
            enough = now.said["frozen_clients"] >= ceil(rules.share * clients - 1e-9)
            assert enough == (left == "share")
            assert lasted[-1] <= rules.cap
            assert left == "share" or lasted[-1] == rules.cap
        assert len(lasted) == len(levels)  # within Z caps every phase has been left
    assert min(reasons.values()) > 50


def test_a_checkpoint_from_before_the_count_of_rounds_is_still_read() -> None:
    """`lasted` is in no digest, so that a state without it is the same state."""
    state = replace(fresh(3), phase=1, began=4, threshold=0.5, lasted=7)
    names = [field.name for field in fields(PhaseState) if field.name != "lasted"]
    older = make_dataclass("Older", names)(**{name: getattr(state, name) for name in names})
    assert digest(older) == digest(state)
    found = unpack(pack(older), fresh(3))
    assert (found.phase, found.began, found.threshold, found.lasted) == (1, 4, 0.5, 0)
    assert torch.equal(found.frozen, state.frozen)
