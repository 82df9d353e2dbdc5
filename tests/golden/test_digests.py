"""No digest is another than the recorded one: a change that means to move one records anew, and says why."""

from __future__ import annotations

import pytest

from actors.actor_group import ActorGroup
from fedsim.algorithms import FedBN
from fedsim.engine.experiment import Experiment
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from jobs.settings import Settings
from jobs.spec import load_spec, parse_spec
from jobs.spec.resolve import resolve_spec
from tests.fedsim.methods import slow_unless_varied
from tests.golden.cases import PRESETS, method_specs, preset_overrides
from tests.golden.recording import processor, ray_digests, recorded, serial_digests, stacked_digests
from tests.reference.runs import NEEDS_FASHION_MNIST

RECORDED = recorded().get(processor(), {})


def experiment_of(case: str) -> Experiment:
    settings = Settings.from_env()
    if case in PRESETS:
        return resolve_spec(load_spec(case, preset_overrides(case)), settings)
    return resolve_spec(parse_spec(method_specs()[case]), settings)


def digests_of(case: str, pool: str) -> list[str]:
    """The recorded digests; without any, or for a case that is newer than they are, the test is skipped."""
    if case not in RECORDED:
        pytest.skip(f"{case} was not recorded on {processor()}: python -m tests.golden records it")
    return RECORDED[case][pool]


METHODS = list(method_specs())
SLOWEST = "layers-fmnist-small"
CASES = [*METHODS, *(pytest.param(name, marks=NEEDS_FASHION_MNIST) for name in PRESETS if name != SLOWEST)]
CASES += [pytest.param(SLOWEST, marks=[NEEDS_FASHION_MNIST, pytest.mark.slow])]
STACKED = [
    *slow_unless_varied(METHODS),
    *(pytest.param(name, marks=[NEEDS_FASHION_MNIST, pytest.mark.slow]) for name in PRESETS),
]


def test_every_case_was_recorded_on_some_processor() -> None:
    assert {*METHODS, *PRESETS} <= {case for cases in recorded().values() for case in cases}


def test_clusters_split_and_batch_norm_is_private_in_their_cases() -> None:
    split, normed = experiment_of("cfl-splitting"), experiment_of("fedbn-batch-norm")
    population = split.load_population()
    *_, last = simulate(split.algorithm, population, SerialPool(split.algorithm, population))
    assert len(last.method["clusters"]) > 1
    assert FedBN().private_keys(normed.load_population().context(0))


@pytest.mark.parametrize("case", CASES)
def test_one_by_one(case: str) -> None:
    assert serial_digests(experiment_of(case)) == digests_of(case, "one by one")


@pytest.mark.parametrize("case", STACKED)
def test_three_clients_at_once(case: str) -> None:
    assert stacked_digests(experiment_of(case)) == digests_of(case, "stacked")


@pytest.mark.reference
@pytest.mark.parametrize("case", CASES)
def test_one_and_two_workers(case: str, actor_group: ActorGroup) -> None:
    assert ray_digests(experiment_of(case), actor_group) == digests_of(case, "one by one")
