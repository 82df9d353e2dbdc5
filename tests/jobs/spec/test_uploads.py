"""The fields `attack`, `aggregation` and `compression`: what they make, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fedsim.core import Algorithm
from fedsim.errors import SpecError
from fedsim.samplers import CohortSampling
from fedsim.uploads import (
    AGGREGATORS,
    ATTACKS,
    COMPRESSORS,
    AttackedClients,
    CompressedUpdates,
    RobustAggregation,
)
from jobs.run.checkpoint_policy import describe_experiment
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.resolve import make_algorithm, resolve_spec


def spec_with(**fields: Any) -> JobSpec:
    return parse_spec({"algorithm": "fedavg", "clients": {"total": 20, "fraction": 0.5}, **fields})


def list_wrappers(algorithm: Algorithm) -> list[str]:
    found = [type(algorithm).__name__]
    return [*found, *list_wrappers(algorithm.base)] if hasattr(algorithm, "base") else found


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_rule_is_made_from_its_name(name: str, settings: Settings) -> None:
    algorithm = resolve_spec(
        spec_with(aggregation=name, data={"public": {"fraction": 0.1}}), settings
    ).algorithm
    assert isinstance(algorithm, RobustAggregation)
    assert type(algorithm.aggregator) is AGGREGATORS[name]


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_compressor_is_made_from_its_name(name: str, settings: Settings) -> None:
    algorithm = resolve_spec(spec_with(compression=name, aggregation="median"), settings).algorithm
    assert isinstance(algorithm, CompressedUpdates)
    assert isinstance(algorithm.base, RobustAggregation)
    assert algorithm.compressor == COMPRESSORS[name]()


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_made_from_its_name(name: str, settings: Settings) -> None:
    experiment = resolve_spec(spec_with(attack={"name": name, "share": 0.3}), settings)
    assert isinstance(experiment.algorithm, AttackedClients)
    assert experiment.algorithm.attack == experiment.attack == ATTACKS[name](share=0.3)


def test_the_order_of_the_wrappers() -> None:
    spec = spec_with(
        attack="alie",
        aggregation="krum",
        fairness={"tilt": 1.0},
        clients={"total": 20, "fraction": 0.5, "sampler": "oort"},
        curriculum={"data": {}, "layers": {}},
    )
    order = ["CohortSampling", "AttackedClients", "RobustAggregation"]
    assert list_wrappers(make_algorithm(spec)) == [
        *order,
        "TiltedWeights",
        "DataCurriculum",
        "LayerCurriculum",
        "FedAvg",
    ]
    assert isinstance(make_algorithm(spec), CohortSampling)


def test_a_run_without_them_has_the_same_description_as_ever() -> None:
    plain = describe_experiment(spec_with())
    assert not {"attack", "aggregation", "privacy", "compression"} & set(plain)
    assert describe_experiment(spec_with(attack="alie")) == {**plain, "attack": {"name": "alie"}}
    assert describe_experiment(spec_with(aggregation="krum")) != plain


@pytest.mark.parametrize(
    ("fields", "path", "text"),
    [
        ({"attack": "sign_flp"}, "attack.name", "did you mean 'sign_flip'"),
        ({"attack": {"name": "alie", "share": 2}}, "attack.share", "of at most 1"),
        ({"attack": {"name": "alie", "z": -1}}, "attack.z", "above 0"),
        ({"attack": "alie", "algorithm": "fedcl"}, "attack", "of every single client"),
        ({"attack": "sign_flip", "algorithm": "cd2_pfed"}, "attack", "in another shape"),
        ({"attack": {"name": "backdoor", "target": 10}}, "attack.target", "0 to 9"),
        (
            {"attack": "backdoor", "data": {"dataset": "diabetes"}, "model": "linear"},
            "attack",
            "no single class",
        ),
        ({"attack": "label_flip", "data": {"partition": "sampled"}}, "attack", "share examples"),
        ({"fairness": {"tilt": 11}}, "fairness.tilt", "is too large"),
        ({"fairness": {"tilt": 1.0}, "algorithm": "feddyn"}, "fairness.tilt", "a way of its own"),
        ({"fairness": {"tilt": 1.0}, "algorithm": "feddistill"}, "fairness.tilt", "no mean of models"),
        ({"fairness": {"tilt": 1.0}, "algorithm": "fedproto"}, "fairness.tilt", "no mean of models"),
        ({"fairness": {"tilt": 1.0}, "aggregation": "median"}, "fairness.tilt", "counts clients evenly"),
        ({"fairness": {"tilt": 1.0}, "privacy": {"noise_multiplier": 1}}, "fairness.tilt", "the weight 1"),
        ({"algorithm": "qfedavg", "privacy": {"noise_multiplier": 1}}, "algorithm", "the weight 1"),
        ({"algorithm": "qfedavg", "aggregation": "median"}, "algorithm", "counts clients evenly"),
        ({"algorithm": "qfedavg", "fairness": {"tilt": 1.0}}, "fairness.tilt", "a way of its own"),
        ({"algorithm": "afl", "compression": "qsgd"}, "compression", "loss of every single client"),
        ({"compression": "topk"}, "compression.name", "did you mean 'top_k'"),
        ({"compression": {"name": "qsgd", "bits": 1}}, "compression.bits", "of at least 2"),
        ({"compression": "qsgd", "algorithm": "fedpac"}, "compression", "of every single client"),
        ({"compression": "top_k", "algorithm": "fedexp"}, "compression", "a figure of their whole update"),
        ({"compression": "qsgd", "privacy": {"noise_multiplier": 1}}, "compression", "longer than"),
        ({"aggregation": "krums"}, "aggregation.name", "did you mean 'krum'"),
        ({"aggregation": {"name": "trimmed_mean", "trim": 0.5}}, "aggregation.trim", "below 0.5"),
        ({"aggregation": {"name": "foolsgold", "bucket_size": 2}}, "aggregation.bucket_size", "leave it out"),
        ({"aggregation": {"name": "krum", "bucket_size": 5}}, "aggregation", "leave none"),
        ({"aggregation": {"name": "trimmed_mean", "trim": 0.05}}, "aggregation", "of 10 updates leaves none"),
        ({"aggregation": {"name": "multi_krum", "selected": 10}}, "aggregation", "select fewer"),
        ({"aggregation": "fltrust"}, "data.public.fraction", "there is none"),
        ({"aggregation": "fltrust", "algorithm": "fedcog"}, "aggregation", "random numbers"),
        ({"aggregation": "fltrust", "curriculum": {"data": {}}}, "curriculum.data", "no such order"),
        ({"aggregation": "median", "algorithm": "ifca"}, "aggregation", "cluster of every single client"),
        ({"aggregation": "median", "algorithm": "fedkd"}, "aggregation", "do not send a model"),
    ],
)
def test_what_does_not_go_together_is_refused(
    fields: dict[str, Any], path: str, text: str, settings: Settings
) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_spec(spec_with(**fields), settings)
    faults = {fault.path: str(caught.value) for fault in caught.value.errors}
    assert path in faults
    assert text in faults[path]


def test_a_run_can_stop_by_the_success_of_a_backdoor(settings: Settings) -> None:
    stop = {"metric": "global_backdoor_accuracy", "target": 0.9}
    assert resolve_spec(spec_with(attack="backdoor", stop=stop), settings).stop is not None
    with pytest.raises(SpecError, match="is no metric of this run"):
        resolve_spec(spec_with(stop=stop), settings)


def test_a_label_flip_suits_an_algorithm_with_any_upload(settings: Settings) -> None:
    fields = {"algorithm": "ifca", "attack": "label_flip"}
    experiment = resolve_spec(spec_with(**fields), settings)
    poisoned = experiment.load_population().dataset.train
    clean = resolve_spec(spec_with(algorithm="ifca"), settings).load_population().dataset.train
    changed = (poisoned.y != clean.y).mean()
    assert 0.1 < changed < 0.4
