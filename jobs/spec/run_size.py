"""The size of a run, from its spec alone: its FLOPs, its seconds, and whether it needs workers.

Nothing is measured: `jobs.plan.planner` measures a run, which takes too long for a submission.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from fedsim.algorithms import ALGORITHMS
from fedsim.base.wire import NUMBER_BYTES
from fedsim.core.capabilities import PersonalModels
from fedsim.data import DATASETS, PARTITIONS, find_dataset_faults, find_published, reads_files
from fedsim.data.partitions import MADE_FROM_A_BASE
from fedsim.data.places import DataRoots
from fedsim.errors import FedsimError
from fedsim.models import MODELS
from fedsim.plugins import Registry
from fedsim.training.flops import example_flops
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.checks.device_checks import count_updates_per_round
from jobs.spec.dataset_facts import DatasetFacts, look_up_facts
from jobs.spec.fields import Choice
from jobs.spec.resolve import make_spec_net

FLOPS_PER_CORE = 1e10
"""FLOPs per second that one CPU core reaches in training. Measured on a server's core: 1.1e10 with LeNet-5 in
batches of 10, 2e10 with a larger CNN in batches of 32."""

STEP_SECONDS = 1e-3
"""Seconds of a local step besides its FLOPs: the calls of torch for a small model."""

SHORT_RUN_SECONDS = 10.0
"""A run that one process ends within so many seconds needs no workers: Ray takes as long to start them."""

MOST_STATE_BYTES = 2**30
"""Largest size of all client states of a run in one process. Ray could write them to disk."""

GUESSED_TEST_SHARE = 0.2
"""Test examples of a data set whose files are not read, as a share of its training examples."""

MOST_DRAWN = 2**16
"""Largest product of the sizes of generated data whose check needs no process: one example is drawn there."""

MOST_UNITS = 2**12
"""Largest product of the sizes of a model whose check needs no process."""

MOST_WEIGHTS = 2**20
"""Largest product of the sizes of a model and of its generated data whose check needs no process."""

MOST_LAYERS = 30

MOST_MODELS = 4
"""Most models of a spec whose check needs no process: it builds each of them."""

FILE_PARTITIONS = ("file", *MADE_FROM_A_BASE)
"""Partitions from a file; the others may have any other as their base."""

DEEP = ("googlenet", "resnet18", "resnet34", "resnet50")
"""Models that take seconds to build."""

LIBRARIES = ("distilbert", "python", "timm", "torchvision", "transformers")
"""Models that somebody else's code or files define."""

COUNTS = ("examples", "test_examples", "seed")
"""Parameters of generated data that say nothing about the size of one example."""


def needs_data(spec: JobSpec) -> bool:
    """Return whether the check of a spec reads files, computes much, or runs code of others.

    Args:
        spec: of the right shape; its names may be unknown.
    """
    files = spec.clients.sampler.name == "trace" or (spec.devices and spec.devices.fleet.name == "file")
    if files or any(model.init for model in spec.models):
        return True
    if spec.privacy is not None:  # the accountants of a budget may take minutes
        return True
    dataset = spec.data.dataset
    if find_dataset_faults(dataset.name, dataset.params):
        return False  # without facts of the data, neither partition nor model is checked
    return reads_files(dataset.name) or _needs_more_than_files(spec)


def _needs_more_than_files(spec: JobSpec) -> bool:
    """Return whether a spec needs more than the files of one of fedsim's own data sets."""
    dataset, partition, models = spec.data.dataset, spec.data.partition.kind, spec.models
    return (
        _is_foreign(DATASETS, dataset.name)
        or _measure_size(dataset.params) > MOST_DRAWN
        or len(models) > MOST_MODELS
        or any(_is_large(model.params, dataset.params) or model.name in DEEP for model in models)
        or _is_foreign(PARTITIONS, partition)
        or partition in FILE_PARTITIONS
        or any(_is_foreign(MODELS, model.name) or model.name in LIBRARIES for model in models)
        or any(model.params.get("pretrained") or model.params.get("lora") for model in models)
    )


def _is_foreign(registry: Registry[Any], name: str) -> bool:
    return name in registry and bool(registry.source(name))


def _is_large(model: Mapping[str, Any], dataset: Mapping[str, Any]) -> bool:
    units, layers = _measure_size(model), model.get("layers", 0)
    is_wide = units > MOST_UNITS or units * _measure_size(dataset) > MOST_WEIGHTS
    return is_wide or (isinstance(layers, int) and layers > MOST_LAYERS)


def _measure_size(params: Mapping[str, Any]) -> int:
    """Return the product of the sizes among the parameters of generated data or of a model."""
    sizes = (value for name, value in params.items() if name not in COUNTS and isinstance(value, int))
    return math.prod(max(1, size) for size in sizes)


def is_short(spec: JobSpec, settings: Settings) -> bool:
    """Return whether one process ends a run before Ray would have started its workers.

    A spec that asks for several workers, for a GPU or for more than one CPU is never short.

    Args:
        spec: that can run.
        settings: the data roots.
    """
    return _asks_for_one_cpu(spec) and _is_short(spec, settings, look_up_facts(spec, settings))


def is_short_unread(spec: JobSpec, settings: Settings) -> bool:
    """Return whether a run is short, as `is_short`, for a caller who must not open data or run foreign code.

    A run whose size only its data, or the code of others, would show is not short.
    """
    chosen = spec.data.dataset
    if not _asks_for_one_cpu(spec) or any(model.init for model in spec.models):
        return False
    try:
        if ALGORITHMS.source(spec.algorithm.name) or _needs_more_than_files(spec):
            return False
        if not reads_files(chosen.name):
            return _is_short(spec, settings, look_up_facts(spec, settings))
        published = find_published(chosen.name, **chosen.params)
    except (FedsimError, LookupError):
        return False
    if published is None:
        return False
    facts = DatasetFacts(*published)
    examples = min(facts.examples, spec.data.limit or facts.examples)
    return _is_short(spec, settings, facts._replace(examples=examples))


def _asks_for_one_cpu(spec: JobSpec) -> bool:
    asked = spec.resources
    is_on_cpu = not asked.gpus_per_worker and not asked.server_gpus
    return is_on_cpu and asked.workers in ("auto", 1) and asked.cpus_per_worker <= 1


def _is_short(spec: JobSpec, settings: Settings, facts: DatasetFacts | None) -> bool:
    if facts is None:
        return False
    try:
        if _keeps_states(spec) and _count_state_bytes(spec, facts, settings) > MOST_STATE_BYTES:
            return False
        return _estimate_seconds(spec, facts, settings) <= SHORT_RUN_SECONDS
    except FedsimError:  # such as weights that only the run downloads
        return False


def _keeps_states(spec: JobSpec) -> bool:
    """Whether each client keeps a state between rounds."""
    # Making the algorithm to ask it may take seconds: it searches the noise for a privacy budget.
    average = spec.evaluation.average
    return ALGORITHMS[spec.algorithm.name].stateful or (average is not None and average.clients is not None)


def _estimate_seconds(spec: JobSpec, facts: DatasetFacts, settings: Settings) -> float:
    """Estimate the seconds of a run in one process: its FLOPs and its local steps."""
    visits = spec.last_round * count_updates_per_round(spec)
    tuned = count_scored_clients(spec) * _count_personal_evaluations(spec)
    steps = spec.local.steps
    if steps is None:
        each = facts.examples / spec.clients.total
        steps = (spec.local.epochs or 1) * (1 + int(each / spec.local.batch_size))
    flops = count_flops(spec, facts, settings) * (visits + tuned) / visits
    return flops / FLOPS_PER_CORE + (visits + tuned) * (1 + steps) * STEP_SECONDS


def count_scored_clients(spec: JobSpec) -> int:
    """Count the clients whose personal models an evaluation scores."""
    return spec.evaluation.personal_clients or spec.clients.total


def _count_personal_evaluations(spec: JobSpec) -> int:
    """Count the rounds after which personal models are evaluated; see `is_personal_evaluation_due`."""
    policy, algorithm = spec.evaluation.personal, ALGORITHMS[spec.algorithm.name]
    if policy == "never":
        return 0
    if policy == "auto" and set(spec.data.tests.kinds) <= {"global", "validation"}:
        return 0 if algorithm.deploys_models else 1
    tunes = issubclass(algorithm, PersonalModels) and algorithm.plan_tuning is not PersonalModels.plan_tuning
    if policy == "last" or (policy == "auto" and tunes):
        return 1
    return -(-spec.last_round // spec.evaluation.every)


def _count_state_bytes(spec: JobSpec, facts: DatasetFacts, settings: Settings) -> int:
    """Count the bytes of the client states of a run, each as large as the model, at most."""
    places = DataRoots(settings.data_roots)
    visited = min(spec.clients.total, spec.last_round * count_updates_per_round(spec))
    sizes = (make_spec_net(model, facts, places).count_parameters() for model in spec.models)
    return visited * NUMBER_BYTES * max(sizes)


def count_flops(spec: JobSpec, facts: DatasetFacts, settings: Settings) -> float:
    """Return the FLOPs of all local steps, and of the evaluations on the test set."""
    places = DataRoots(settings.data_roots)
    costs = [_count_example_flops(model, facts, places) for model in spec.models]
    step, forward = (sum(each) / len(costs) for each in zip(*costs, strict=True))
    local = spec.local
    if local.steps is None:
        examples = (local.epochs or 1) * facts.examples / spec.clients.total
    else:
        examples = local.steps * local.batch_size
    trained = spec.last_round * count_updates_per_round(spec) * examples * step
    tests = _count_tests(facts)
    return float(trained + spec.last_round // spec.evaluation.every * tests * forward)


def count_personal_flops(spec: JobSpec, facts: DatasetFacts, settings: Settings) -> float:
    """Return the FLOPs of scoring the personal models of a run, without the tuning before."""
    places = DataRoots(settings.data_roots)
    forward = sum(_count_example_flops(model, facts, places)[1] for model in spec.models) / len(spec.models)

    def share_of_client(kind: str) -> float:
        # With the other kinds, the tests of all clients together are one set, or a share of the examples.
        return 1.0 if kind in ("global", "classes") else 1 / spec.clients.total

    tested = [kind for kind in spec.data.tests.kinds if kind != "validation"] if spec.evaluation.test else []
    tests = _count_tests(facts) * sum(map(share_of_client, tested))
    if "validation" in spec.data.tests.kinds:
        tests += spec.evaluation.validation * facts.examples * share_of_client(spec.data.tests.kind)
    return float(_count_personal_evaluations(spec) * count_scored_clients(spec) * tests * forward)


def _count_tests(facts: DatasetFacts) -> float:
    return facts.file_facts.tests if facts.file_facts else GUESSED_TEST_SHARE * facts.examples


@lru_cache(maxsize=64)
def _count_example_flops(model: Choice, facts: DatasetFacts, places: DataRoots) -> tuple[int, int]:
    """Return the FLOPs of one example: in a local step, and forward."""
    net = make_spec_net(model, facts, places)
    example = torch.zeros(facts.input_shape, dtype=torch.int64 if facts.vocabulary else torch.float32)
    return example_flops(net, net.parameters, example), example_flops(net, (), example)
