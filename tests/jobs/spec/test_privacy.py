"""The section `privacy`: what it makes of an algorithm, what is refused, and the budget of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedsim.algorithms import ALGORITHMS, FedAvg, Scaffold
from fedsim.core import Context
from fedsim.core.capabilities import CohortSelection
from fedsim.engine.pools import SerialPool
from fedsim.engine.results import RoundResult
from fedsim.engine.simulation import simulate
from fedsim.errors import SpecError
from fedsim.uploads import (
    AdaptiveClip,
    AttackedClients,
    PrivateExamples,
    PrivateUpdates,
    RobustAggregation,
    SecureAggregation,
)
from fedsim.uploads import accounting as accounts
from fedsim.uploads.shuffling import compute_shuffled_epsilon
from jobs.run.checkpoint_policy import depends_on_num_rounds, describe_experiment
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.resolve import make_algorithm, resolve_spec

pytest.importorskip("opacus")


def private(privacy: Any, **fields: Any) -> JobSpec:
    common = {"algorithm": "fedavg", "rounds": 3, "clients": {"total": 20, "fraction": 0.5}}
    return parse_spec({**common, **fields, "privacy": privacy})


def run_experiment(spec: JobSpec, settings: Settings) -> list[RoundResult]:
    experiment = resolve_spec(spec, settings)
    population = experiment.load_population()
    pool = SerialPool(experiment.algorithm, population)
    return list(simulate(experiment.algorithm, population, pool, stop=experiment.stop))


def test_a_target_epsilon_finds_the_noise_and_is_reported(settings: Settings) -> None:
    results = run_experiment(private({"epsilon": 20, "delta": 1e-4, "clip": 0.5}), settings)
    found = [result.method["privacy"] for result in results]
    assert found[-1]["epsilon"] == pytest.approx(20, rel=2e-3)
    assert found[-1]["epsilon"] <= 20
    assert found[0]["epsilon"] < found[1]["epsilon"] < found[2]["epsilon"]
    assert {each["delta"] for each in found} == {1e-4}


def test_a_tree_spends_the_target_epsilon_without_random_cohorts(settings: Settings) -> None:
    spec = private({"kind": "tree", "epsilon": 20, "clip": 0.5, "tree_rounds": 2}, rounds=5)
    found = run_experiment(spec, settings)
    budgets = [each.method["privacy"]["epsilon"] for each in found]
    assert 20 * 0.998 < budgets[-1] <= 20
    assert budgets == sorted(budgets)
    assert found[0].cohort == found[2].cohort == found[4].cohort
    assert not set(found[0].cohort) & set(found[1].cohort)


def test_a_shuffler_needs_less_noise_for_the_same_budget() -> None:
    clients = {"total": 40_000, "fraction": 1}
    alone, shuffled = (
        make_algorithm(private({"kind": "local", "epsilon": 2, "shuffled": given}, clients=clients))
        for given in (False, True)
    )
    assert isinstance(alone, PrivateUpdates)
    assert isinstance(shuffled, PrivateUpdates)
    assert shuffled.noise_multiplier < 0.6 * alone.noise_multiplier
    spent = compute_shuffled_epsilon(shuffled.noise_multiplier, 40_000, 3, 1e-5)
    assert spent == pytest.approx(2, rel=2e-3)


@pytest.mark.parametrize(
    ("privacy", "rounds"), [({"noise_multiplier": 1.0}, 4), ({"kind": "tree", "noise_multiplier": 2.0}, 3)]
)
def test_a_run_ends_when_its_budget_is_spent(
    privacy: dict[str, Any], rounds: int, settings: Settings
) -> None:
    """After the last round that keeps the budget, with the digests of a run without one."""
    whole = run_experiment(private(privacy, rounds=8), settings)
    budget = whole[rounds - 1].method["privacy"]["epsilon"] + 1e-3
    assert whole[rounds].method["privacy"]["epsilon"] > budget
    found = run_experiment(private({**privacy, "epsilon": budget}, rounds=8), settings)
    assert [each.digest for each in found] == [each.digest for each in whole[:rounds]]
    assert found[-1].end is not None
    assert (found[-1].end.reason, found[-1].end.round) == ("privacy_budget", rounds)
    assert "another round would spend more than privacy.epsilon" in found[-1].end.message
    kept = resolve_spec(private({**privacy, "epsilon": 1e3}, rounds=8), settings)
    assert kept.stop is None


def test_specs_without_a_tree_or_a_shuffler_go_on_from_older_checkpoints() -> None:
    assert not {"tree_rounds", "shuffled"} & describe_experiment(private(NOISE))["privacy"].keys()
    described = describe_experiment(private({**NOISE, "kind": "tree", "tree_rounds": 2}))
    assert described["privacy"]["tree_rounds"] == 2


def test_the_fields_reach_the_wrapper() -> None:
    section = {"noise_multiplier": 0.5, "clip": 2, "delta": 1e-6, "accountant": "prv"}
    made = make_algorithm(private({**section, "adaptive_clip": {"quantile": 0.9}}, attack="sign_flip"))
    assert isinstance(made, PrivateUpdates)
    assert isinstance(made.base, AttackedClients)
    assert (made.kind, made.clip, made.delta, made.accountant) == ("central", 2, 1e-6, "prv")
    assert (made.noise_multiplier, made.adaptive) == (0.5, AdaptiveClip(quantile=0.9))
    local = make_algorithm(private({"kind": "local", "epsilon": 50}))
    assert isinstance(local, PrivateUpdates)
    spent = accounts.compute_epsilon("rdp", local.noise_multiplier / 2, 1.0, 3, 1e-5)
    assert spent == pytest.approx(50, rel=2e-3)


EXAMPLES = {"kind": "examples", "noise_multiplier": 1.0}


def test_privacy_for_examples_is_innermost(settings: Settings) -> None:
    spec = private({"kind": "examples", "epsilon": 8, "clip": 2}, attack="sign_flip", aggregation="median")
    made = resolve_spec(spec, settings).algorithm
    assert isinstance(made, AttackedClients)
    assert isinstance(made.base, RobustAggregation)
    assert made.base.base == PrivateExamples(base=FedAvg(), clip=2, epsilon=8)
    assert depends_on_num_rounds(spec)
    assert not depends_on_num_rounds(private(EXAMPLES))


@pytest.mark.parametrize(
    ("privacy", "fields", "path", "text"),
    [
        ({**EXAMPLES, "epsilon": 8}, {}, "privacy.epsilon", "without noise_multiplier"),
        ({**EXAMPLES, "adaptive_clip": {}}, {}, "privacy.adaptive_clip", "kind: examples"),
        ({**EXAMPLES, "delta": 0.02}, {}, "privacy.delta", "mean number of examples"),
        (
            {**EXAMPLES, "delta": 0.01},
            {"data": {"partition": {"kind": "sampled", "size": 200}}},
            "privacy.delta",
            "1 / 200",
        ),
        (
            EXAMPLES,
            {"data": {"partition": {"kind": "sampled", "size": "many"}}},
            "data.partition.size",
            "many",
        ),
        (EXAMPLES, {"algorithm": "fedlc"}, "privacy", "label counts"),
        (EXAMPLES, {"algorithm": "ditto"}, "privacy", "a second local loop"),
        (EXAMPLES, {"algorithm": "kdia"}, "privacy", "outside of local steps"),
        (EXAMPLES, {"local": {"clip_norm": 1.0}}, "local.clip_norm", "each example"),
        (EXAMPLES, {"curriculum": {"data": {}}}, "curriculum.data", "random batches"),
        (EXAMPLES, {"fairness": {"tilt": 1}}, "fairness.tilt", "no noise"),
        (EXAMPLES, {"clients": {"total": 20, "sampler": "oort"}}, "clients.sampler", "no noise"),
        (EXAMPLES, {"aggregation": "fltrust", "data": {"public": {"fraction": 0.1}}}, "aggregation", "steps"),
        (
            EXAMPLES,
            {"devices": {"fleet": "phones", "policy": {"name": "deadline", "seconds": 9}}},
            "devices.policy",
            "spent their budget",
        ),
    ],
)
def test_what_does_not_go_with_privacy_for_examples_is_refused(
    privacy: Any, fields: dict[str, Any], path: str, text: str, settings: Settings
) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_spec(private(privacy, **fields), settings)
    faults = [fault for fault in caught.value.errors if fault.path == path]
    assert len(faults) == 1
    assert text in str(caught.value)


def test_a_schedule_that_follows_losses_is_refused_with_every_kind(settings: Settings) -> None:
    for privacy in (NOISE, EXAMPLES):
        spec = private(privacy, algorithm={"name": "layer_schedule", "times": "plateau"})
        with pytest.raises(SpecError, match="follows the clients' training losses"):
            resolve_spec(spec, settings)


def test_secure_aggregation_is_made_and_described(settings: Settings) -> None:
    spec = parse_spec({"algorithm": "scaffold", "secure_aggregation": {"neighbours": 4}})
    made = resolve_spec(spec, settings).algorithm
    assert made == SecureAggregation(base=Scaffold(), neighbours=4, threshold=0.66)
    assert describe_experiment(spec)["secure_aggregation"] == {"neighbours": 4, "threshold": 0.66}
    assert "secure_aggregation" not in describe_experiment(parse_spec({"algorithm": "fedavg"}))


@pytest.mark.parametrize(
    ("fields", "path", "text"),
    [
        ({"algorithm": "ifca"}, "secure_aggregation", "the payload cluster of every single client"),
        ({"algorithm": "cfl"}, "secure_aggregation", "models, which it computes"),
        ({"aggregation": "median"}, "aggregation", "single updates"),
        ({"compression": "top_k"}, "compression", "whole vectors"),
        ({"clients": {"total": 20, "sampler": "oort"}}, "clients.sampler", "single clients"),
        ({"curriculum": {"clients": {}}}, "curriculum.clients", "single clients"),
        ({"curriculum": {"phases": {}}}, "curriculum.phases", "asks single clients"),
        (
            {"devices": {"fleet": "phones", "policy": {"name": "over_selection", "factor": 2}}},
            "devices.policy.factor",
            "10 of 20 clients count",
        ),
        (
            {"devices": {"fleet": "phones", "policy": {"name": "over_selection", "faktor": 2}}},
            "devices.policy.faktor",
            "did you mean 'factor'",
        ),
        ({"secure_aggregation": {"neighbours": 10}}, "secure_aggregation.neighbours", "which are 9"),
        ({"secure_aggregation": {"threshold": 0}}, "secure_aggregation.threshold", "0"),
    ],
)
def test_what_needs_more_than_sums_is_refused(
    fields: dict[str, Any], path: str, text: str, settings: Settings
) -> None:
    common = {"algorithm": "fedavg", "clients": {"total": 20, "fraction": 0.5}, "secure_aggregation": {}}
    with pytest.raises(SpecError) as caught:
        resolve_spec(parse_spec({**common, **fields}), settings)
    assert [fault.path for fault in caught.value.errors] == [path]
    assert text in str(caught.value)


@pytest.mark.slow
def test_noise_for_a_budget_depends_on_the_number_of_rounds() -> None:
    assert depends_on_num_rounds(private({"epsilon": 8}))
    assert not depends_on_num_rounds(private({"noise_multiplier": 1}))
    assert "privacy" not in describe_experiment(parse_spec({"algorithm": "fedavg"}))


NOISE = {"noise_multiplier": 1.0}
TREE = {"kind": "tree", "noise_multiplier": 1.0}
SHUFFLED = {"kind": "local", "noise_multiplier": 1.0, "shuffled": True}


@pytest.mark.parametrize(
    ("privacy", "fields", "path", "text"),
    [
        ({}, {}, "privacy", "set epsilon"),
        ({"kind": "local", "epsilon": 1, "adaptive_clip": {}}, {}, "privacy.adaptive_clip", "kind: local"),
        ({"kind": "tree", "epsilon": 1, "adaptive_clip": {}}, {}, "privacy.adaptive_clip", "kind: tree"),
        ({**NOISE, "tree_rounds": 2}, {}, "privacy.tree_rounds", "kind: central"),
        ({**NOISE, "shuffled": True}, {}, "privacy.shuffled", "kind: central"),
        (SHUFFLED, {"faults": {"client_error": "skip"}}, "faults.client_error", "whole cohorts"),
        (SHUFFLED, {"devices": {"fleet": "phones"}}, "devices", "whole cohorts"),
        (SHUFFLED, {"secure_aggregation": {}}, "secure_aggregation", "names of clients"),
        (SHUFFLED, {"compression": "random_k"}, "compression", "tell clients apart"),
        (SHUFFLED, {"algorithm": "scaffold"}, "privacy.shuffled", "keep the noise"),
        *(
            (
                {"kind": "local", "noise_multiplier": 1},
                {"devices": {"fleet": "phones", "policy": policy}},
                "devices.policy",
                "numbers of examples",
            )
            for policy in ("over_selection", {"name": "deadline", "seconds": 9})
        ),
        ({**TREE, "epsilon": 4}, {}, "privacy.epsilon", "one round with noise_multiplier 1 spends"),
        (TREE, {"aggregation": "median"}, "aggregation", "no known sensitivity"),
        (TREE, {"clients": {"total": 20, "sampler": "oort"}}, "clients.sampler", "does not hold"),
        (TREE, {"compression": "top_k"}, "compression", "the clipping bound"),
        *(
            (
                {**privacy, "noise_multiplier": 1},
                {"devices": {"fleet": "phones", "policy": policy}},
                "devices.policy",
                "by chance or in turn",
            )
            for privacy in ({"kind": "central"}, TREE)
            for policy in ("over_selection", "tiers", {"name": "deadline", "seconds": 9})
        ),
        (NOISE, {"devices": {"fleet": "phones", "dropout": 0.1}}, "devices.dropout", "all vanish"),
        (NOISE, {"algorithm": "fedexp"}, "privacy", "a figure of their whole update"),
        ({"noise_multiplier": 1, "epsilon": 0.5}, {}, "privacy.epsilon", "leave noise_multiplier out"),
        ({**NOISE, "delta": 5e-324, "accountant": "prv"}, {}, "privacy.delta", "1e-100"),
        ({**NOISE, "delta": 0.05}, {}, "privacy.delta", "below 1 / clients.total"),
        ({**NOISE, "adaptive_clip": {}}, {}, "privacy.adaptive_clip.count_noise", "has to be above"),
        (NOISE, {"algorithm": "ifca"}, "privacy", "of every single client"),
        (NOISE, {"algorithm": "ace_pfl"}, "privacy", "do not send a model"),
        (NOISE, {"aggregation": "median"}, "aggregation", "no known sensitivity"),
        (NOISE, {"attack": "alie"}, "attack", "single updates"),
        (NOISE, {"clients": {"total": 20, "sampler": "oort"}}, "clients.sampler", "does not hold"),
        (NOISE, {"curriculum": {"clients": {}}}, "curriculum.clients", "without noise"),
        (NOISE, {"local": {"schedule": "plateau"}}, "local.schedule", "training losses"),
        (NOISE, {"stop": {"metric": "train_loss", "target": 0.1}}, "stop.metric", "without noise"),
        (
            NOISE,
            {"stop": {"metric": "global_members_accuracy", "patience": 2}},
            "stop.metric",
            "without noise",
        ),
        (NOISE, {"model": ["mlp", "logistic"]}, "model", "several models"),
        *(
            (
                privacy,
                {"curriculum": {"data": {"score": "expert_loss"}}},
                "curriculum.data.score",
                "of all clients",
            )
            for privacy in (NOISE, TREE, {"kind": "local", "noise_multiplier": 1})
        ),
        (
            NOISE,
            {"data": {"tests": "merged"}, "stop": {"metric": "global_accuracy", "patience": 2}},
            "stop.metric",
            "cut off the clients' own",
        ),
        (TREE, {"algorithm": "layer_schedule"}, "algorithm", "other parts of the model"),
        ({**NOISE, "delta": 1e-16, "accountant": "prv"}, {}, "privacy.delta", "accountant: rdp"),
    ],
)
def test_what_does_not_go_together_is_refused(
    privacy: Any, fields: dict[str, Any], path: str, text: str, settings: Settings
) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_spec(private(privacy, **fields), settings)
    faults = {fault.path: str(caught.value) for fault in caught.value.errors}
    assert path in faults
    assert text in faults[path]


@dataclass(frozen=True, kw_only=True)
class SelectsAll(FedAvg, CohortSelection):
    """An algorithm of a user, of which every client takes part in every round."""

    def select_cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> Sequence[int]:
        return range(ctx.num_clients)


def test_an_algorithm_that_chooses_its_clients_keeps_its_choice_or_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS.own, "selects_all", SelectsAll)  # type: ignore[arg-type]
    for privacy in (NOISE, TREE, SHUFFLED):
        with pytest.raises(SpecError, match="selects_all chooses its clients itself"):
            resolve_spec(private(privacy, algorithm="selects_all"), settings)
        with pytest.raises(ValueError, match="SelectsAll chooses its clients itself"):
            PrivateUpdates(base=SelectsAll(), **privacy)
    assert resolve_spec(private({**NOISE, "kind": "local"}, algorithm="selects_all"), settings)


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [NOISE, EXAMPLES])
def test_a_model_with_statistics_is_refused(privacy: Any, settings: Settings) -> None:
    with pytest.raises(SpecError, match="sends statistics of its examples") as caught:
        resolve_spec(private(privacy, model="resnet18"), settings)
    assert [fault.path for fault in caught.value.errors] == ["model.name"]
    assert resolve_spec(private(NOISE, model={"name": "resnet18", "norm": "group"}), settings)


def test_scores_of_a_clients_own_model_go_with_privacy(settings: Settings) -> None:
    assert resolve_spec(private(NOISE, curriculum={"data": {"score": "global_loss"}}), settings)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_a_budget_is_never_below_zero(accountant: Any) -> None:
    assert accounts.compute_epsilon(accountant, 1e5, 1.0, 1, 0.19) == 0


@pytest.mark.parametrize("privacy", [{"epsilon": 3.25}, {"noise_multiplier": 1.25}])
def test_without_opacus_the_check_says_what_to_install(
    privacy: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise ValueError("needs the package opacus; install the extra")

    monkeypatch.setattr(accounts, "_load_accountants", fail)
    accounts.compute_epsilon.cache_clear()
    accounts.find_noise_multiplier.cache_clear()
    with pytest.raises(SpecError, match="needs the package opacus") as caught:
        resolve_spec(private(privacy), settings)
    assert [fault.path for fault in caught.value.errors] == ["privacy"]
