"""What the server trains itself, and how long that will take."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from fedsim.algorithms.fedavg import FedAvg
from fedsim.core import Context, Progress, ReducedUpdates
from fedsim.core.capabilities import ServerTraining
from fedsim.engine.pools import SerialPool
from fedsim.engine.server_training import measure_server_training
from tests.fedsim.federations import federation


@dataclass(frozen=True, kw_only=True)
class Slow(FedAvg, ServerTraining):
    """Has the server train a hundred steps of two milliseconds or more for each architecture.

    Attributes:
        made: the steps that were made.
    """

    made: list[int] = field(default_factory=list)

    def train_server(
        self, ctx: Context, state: Any, reduced: ReducedUpdates
    ) -> Generator[Progress, None, Any]:
        """Every step is told."""
        for _ in ctx.nets:
            for step in range(1, 101):
                time.sleep(0.002)
                self.made.append(step)
                yield Progress("this", step, 100)
        return state


@pytest.mark.parametrize(("nets", "enough", "least"), [(1, 0.02, 0.2), (2, 0.02, 0.4), (2, 0.22, 0.4)])
def test_a_long_training_is_told_from_its_beginning(nets: int, enough: float, least: float) -> None:
    one = federation()
    population, method = replace(one, nets=one.nets * nets), Slow()
    ctx = population.context(0)
    state = method.init_server_state(ctx)
    reduced = SerialPool(method, population).begin_training(method, ctx, state, [0])()
    assert measure_server_training(method, ctx, state, reduced, torch.device("cpu"), enough) >= least
    assert len(method.made) <= 1 + enough / 0.002
    assert measure_server_training(FedAvg(), ctx, state, reduced, torch.device("cpu"), enough) == 0
