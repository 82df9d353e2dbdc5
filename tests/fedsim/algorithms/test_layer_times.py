"""When layer scheduling opens its blocks: times that are worked out, plateaus, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from fedsim.algorithms import FedAvg, LayerSchedule
from fedsim.algorithms.personalized.layer_schedule import PlateauState
from fedsim.base.digest import digest
from fedsim.checkpoints.serialization import pack, unpack
from fedsim.curriculum import LayerCurriculum
from fedsim.engine.initial_state import make_initial_state
from fedsim.errors import SpecError
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import resolve_spec
from tests.fedsim.federations import federation
from tests.fedsim.methods import run
from tests.fedsim.stacks import deep


def test_times_that_are_worked_out() -> None:
    ctx = deep(rounds=301).context(0)
    state = make_initial_state(LayerSchedule(), deep())
    assert LayerSchedule().opening_rounds(ctx, state) == (0, 100, 200)
    assert LayerSchedule(every=7).opening_rounds(ctx, state) == (0, 7, 14)
    assert LayerSchedule(times="even").opening_rounds(ctx, state) == (0, 100, 200)
    assert LayerSchedule(times="even").opening_rounds(federation(layers=4).context(0), state) == (0, 0, 1, 2)
    assert LayerSchedule(times=[0, 3, 3]).opening_rounds(ctx, state) == (0, 3, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("order", "closed"), [("vanilla", "fc3"), ("anti", "fc1")])
def test_a_block_that_never_opens_is_a_warning(
    order: Any, closed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of rounds is that of the run, so that a run with more rounds has no warning."""
    schedule, curriculum = (
        LayerSchedule(order=order, every=5),
        LayerCurriculum(base=FedAvg(), order=order, times=(0, 5, 10)),
    )
    for algorithm in (schedule, curriculum, LayerSchedule(times="even"), LayerSchedule(times="plateau")):
        make_initial_state(algorithm, deep(rounds=10))
        make_initial_state(algorithm, deep(rounds=11))
    begin = "opens the blocks of mlp in rounds 0, 5, 10 and the run has 10 rounds, so"
    end = f"{begin} these stay closed: {closed}; give smaller numbers, times: even, or more rounds"
    assert caplog.messages == [f"algorithm.every {end}", f"curriculum.layers.times {end}"]


def test_a_plateau_opens_the_next_block() -> None:
    """Better by more than 0.1 counts; two rounds without it open one, which starts the comparison anew."""
    algorithm = LayerSchedule(times="plateau", patience=2, improvement=0.1)
    population = deep()
    state = make_initial_state(algorithm, population)
    assert state == PlateauState(params=state.params, times=(0,), best=inf, waited=0)
    seen = []
    for number, loss in enumerate([2.0, 1.95, 1.8, 1.75, 1.72, 3.0, 2.95, 2.92, 1.0, 1.0, 1.0, 1.0]):
        ctx = replace(population.context(0), round=number)
        seen.append(len(algorithm.open_blocks(ctx, state)))
        state = algorithm.update_plateau(ctx, state, loss)
        assert algorithm.describe_round(ctx, state)["open_blocks"] == ["fc1", "fc2", "fc3"][: seen[-1]]
    # 1.95 is no better than 2.0; 1.8 is; neither 1.75 nor 1.72 is, so round 5 has two, and round 8 three.
    assert seen == [1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert (state.times, state.waited) == ((0, 5, 8), 3)


@pytest.mark.parametrize("loss", [nan, inf])
def test_a_loss_that_is_no_number_opens_nothing(loss: float) -> None:
    """Neither does it count as a round without improvement."""
    algorithm, population = LayerSchedule(times="plateau", patience=2, improvement=0.1), deep()
    state = make_initial_state(algorithm, population)
    for number, found in enumerate([2.0, 2.0, loss, loss, loss]):
        state = algorithm.update_plateau(replace(population.context(0), round=number), state, found)
    assert (state.times, state.best, state.waited) == ((0,), 2.0, 1)
    state = algorithm.update_plateau(replace(population.context(0), round=5), state, 2.0)
    assert state.times == (0, 6)


def test_plateaus_in_a_run() -> None:
    """With an improvement that no round makes, each block opens after `patience` rounds."""
    algorithm = LayerSchedule(times="plateau", patience=1, improvement=50.0)
    results = run(algorithm, deep())
    assert [len(r.method["open_blocks"]) for r in results] == [1, 1, 2, 2, 3, 3]
    assert results[-1].method["times"] == [0, 2, 4]
    assert results[1].method["best_loss"] is None
    assert results[2].method["best_loss"] == pytest.approx(results[2].metrics["train_loss"], abs=1e-6)
    for result in results:  # what a checkpoint does
        kept = unpack(pack(result.state), results[0].state)
        assert type(kept) is PlateauState
        assert (digest(kept), kept.times) == (result.digest, result.state.times)


def refused(tmp_path: Path, model: Any, **params: Any) -> list[tuple[str, str]]:
    spec = parse_spec({"algorithm": {"name": "layer_schedule"} | params, "model": model, "rounds": 2})
    with pytest.raises(SpecError) as caught:
        resolve_spec(spec, Settings(home=tmp_path))
    return [(error.path, error.message) for error in caught.value.errors]


def test_what_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    three = {"name": "mlp", "layers": 3}
    for name in ("layer_schedule", "fedbabu", "fedper", "fedrep", "lg_fedavg"):
        found = refused(tmp_path, "logistic", name=name)
        assert found == [("algorithm.name", "logistic has no blocks before its head")]
        resolve_spec(parse_spec({"algorithm": name, "model": "mlp"}), Settings(home=tmp_path))
    found = refused(tmp_path, three, times=[0, 100])
    assert found == [("algorithm.times", "mlp has 3 base blocks: fc1, fc2, fc3")]
    assert refused(tmp_path, three, times=[0, 9, 3])[0][0] == "algorithm.times"
    assert refused(tmp_path, three, times=[1, 2, 3])[0][0] == "algorithm.times"
    assert "of at least 0" in refused(tmp_path, three, times=[0, -1, 3])[0][1]
    resolve_spec(
        parse_spec({"algorithm": {"name": "layer_schedule", "times": [0, 4, 8]}, "model": three}),
        Settings(home=tmp_path),
    )
