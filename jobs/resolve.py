"""From a spec to an experiment: what needs the catalogue or the data is checked here, all of it at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from actors.resources import Node, place
from fedsim.algorithms import ALGORITHMS
from fedsim.core import Local
from fedsim.data import (
    DATASETS,
    PARTITIONS,
    dataset_faults,
    load_dataset,
    partition_faults,
)
from fedsim.errors import DataError, FieldError, SpecError
from fedsim.experiment import Experiment
from fedsim.models import MODELS, make_net
from fedsim.parameters import check as parameter_faults
from fedsim.parameters import unknown
from jobs.settings import Settings
from jobs.spec import Choice, JobSpec


class Facts(NamedTuple):
    """What a check needs to know of a data set, without its examples.

    Attributes:
        examples: how many there are to deal out.
        input_shape: of one example.
        num_classes: C.
        vocabulary: how many token numbers there are; 0 for data that is not tokens.
    """

    examples: int
    input_shape: tuple[int, ...]
    num_classes: int
    vocabulary: int


def resolve(spec: JobSpec, settings: Settings) -> Experiment:
    """The experiment that a spec describes.

    Args:
        spec: of the right shape.
        settings: where data is looked for.

    Raises:
        SpecError: with every name, parameter and size that does not fit, each with path, value and hint.
        DataNotFound, DataError: if the data set cannot be read.
    """
    errors = [
        *_choice_faults("algorithm", spec.algorithm, ALGORITHMS),
        *_choice_faults("model", spec.model, MODELS),
        *_under("data.dataset", dataset_faults(spec.data.dataset.name, spec.data.dataset.params)),
        *_under("data.partition", partition_faults(spec.data.partition.kind, spec.data.partition.params)),
    ]
    if not any(error.path.startswith("data.dataset") for error in errors):
        errors += _data_faults(spec, settings, model=not any(e.path.startswith("model") for e in errors))
    if errors:
        raise SpecError(errors)
    return _experiment(spec, settings)


def check(spec: JobSpec, settings: Settings, nodes: Sequence[Node] | None = None) -> Experiment:
    """Everything that can be known of a spec before it runs.

    With the cluster's nodes, that includes whether it fits.

    Raises:
        SpecError, DataNotFound, DataError: as `resolve`.
        DoesNotFit: if the cluster, empty, could not hold the workers.
    """
    experiment = resolve(spec, settings)
    if nodes is not None:
        asked = spec.resources
        place(asked.workers, asked.cpus_per_worker, asked.gpus_per_worker, nodes)
    return experiment


def cohort_size(spec: JobSpec) -> int:
    """K: the fraction of the clients, rounded to the nearest, at least one."""
    return max(1, round(spec.clients.fraction * spec.clients.total))


def _experiment(spec: JobSpec, settings: Settings) -> Experiment:
    local = spec.local
    return Experiment(
        algorithm=ALGORITHMS[spec.algorithm.name](**spec.algorithm.params),
        local=Local(
            epochs=local.epochs or 1,
            steps=local.steps,
            batch_size=local.batch_size,
            lr=local.lr,
            momentum=local.momentum,
            weight_decay=local.weight_decay,
        ),
        seed=spec.seed,
        rounds=spec.rounds,
        num_clients=spec.clients.total,
        cohort_size=cohort_size(spec),
        dataset=(spec.data.dataset.name, spec.data.dataset.params),
        partition=(spec.data.partition.kind, spec.data.partition.params),
        model=(spec.model.name, spec.model.params),
        roots=settings.data_roots,
        limit=spec.data.limit,
        evaluate_every=spec.evaluation.every,
    )


def _under(prefix: str, errors: Iterable[FieldError]) -> list[FieldError]:
    """The same faults with the paths of the whole spec."""
    return [error._replace(path=f"{prefix}.{error.path}") for error in errors]


def _choice_faults(path: str, choice: Choice, registry: Any) -> list[FieldError]:
    if choice.name not in registry:
        return [FieldError(f"{path}.name", choice.name, f"no such {path}", unknown(choice.name, registry))]
    return _under(path, parameter_faults(registry[choice.name], choice.params))


def _data_faults(spec: JobSpec, settings: Settings, model: bool) -> list[FieldError]:
    """What the data set's own size and shape rule out."""
    facts = _facts(spec, settings)
    errors = []
    entry = PARTITIONS.get(spec.data.partition.kind)
    if entry is not None and not entry.shares and spec.clients.total > facts.examples:
        errors.append(
            FieldError(
                "clients.total",
                spec.clients.total,
                f"more clients than training examples: {spec.data.dataset.name} has {facts.examples:,}",
                f"at most {facts.examples:,}, or a partition whose clients share examples (kind: sampled)",
            )
        )
    if model and (fault := _model_fault(spec.model.name, spec.model.params, facts)):
        errors.append(FieldError("model.name", spec.model.name, fault, "choose another model or data set"))
    return errors


def _model_fault(name: str, params: dict[str, Any], facts: Facts) -> str | None:
    """Why this model cannot read this data; a Net holds no weights, so making one costs little."""
    try:
        make_net(
            name,
            input_shape=facts.input_shape,
            num_classes=facts.num_classes,
            vocabulary=facts.vocabulary,
            **params,
        )
    except ValueError as error:
        return str(error)
    return None


def _facts(spec: JobSpec, settings: Settings) -> Facts:
    chosen = spec.data.dataset
    params = tuple(sorted((name, _hashable(value)) for name, value in chosen.params.items()))
    try:
        facts = _read_facts(chosen.name, params, settings.data_roots)
    except SpecError as error:
        raise SpecError(_under("data.dataset", error.errors)) from None
    except DataError as error:
        error.errors = [FieldError("data.dataset.name", chosen.name, error.message, error.hint)]
        raise
    examples = facts.examples if spec.data.limit is None else min(facts.examples, spec.data.limit)
    return facts._replace(examples=examples)


@lru_cache(maxsize=32)
def _read_facts(name: str, params: tuple[tuple[str, Any], ...], roots: tuple[Path, ...]) -> Facts:
    data = load_dataset(name, roots=roots, **dict(params))
    return Facts(len(data.train), data.input_shape, data.num_classes, data.vocabulary)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


__all__ = ["DATASETS", "Facts", "check", "cohort_size", "resolve"]
