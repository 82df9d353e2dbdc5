"""What `data.tests` and `data.public` of a spec, and its method, do not go together with."""

from __future__ import annotations

from fedsim.algorithms import ALGORITHMS
from fedsim.data import PARTITIONS
from fedsim.data.client_tests import FOR_SEVERAL_LABELS
from fedsim.errors import FieldError
from jobs.spec.curricula import expert_epochs
from jobs.spec.job_spec import JobSpec


def tests_faults(spec: JobSpec) -> list[FieldError]:
    """Why clients cannot have tests of their own by this convention, whatever the data is.

    Args:
        spec: of the right shape.
    """
    kind, partition = spec.data.tests.kind, spec.data.partition.kind
    if kind == "global":
        return []
    entry, message, hint = PARTITIONS.get(partition), "", "use kind: global"
    if entry is not None and entry.shares_examples:
        message = f"clients of a {partition} partition draw from the whole set"
    elif kind == "merged" and (partition == "difficulty" or expert_epochs(spec) is not None):
        message = "an expert knows the training set only, and here clients hold test examples too"
        hint = "use kind: matched, or do without the expert"
    return [FieldError("data.tests.kind", kind, message, hint)] if message else []


def task_faults(spec: JobSpec, task: str) -> list[FieldError]:
    """A convention for the clients' tests, and a method, that cannot do with what these examples carry.

    Args:
        spec: of the right shape.
        task: of the data set, "classes" or "labels".
    """
    kind, dataset, errors = spec.data.tests.kind, spec.data.dataset.name, list[FieldError]()
    # The way out that is named here would be none where no convention of the clients' own will do.
    if task == "labels" and kind not in FOR_SEVERAL_LABELS and not tests_faults(spec):
        hint = f"use one of {', '.join(FOR_SEVERAL_LABELS)}"
        errors.append(FieldError("data.tests.kind", kind, f"{dataset} has several labels per example", hint))
    method = ALGORITHMS.get(spec.algorithm.name)
    if method is not None and task not in method.tasks:
        message = f"needs one class for each example, and those of {dataset} carry several labels"
        hint = "choose another method or data set"
        errors.append(FieldError("algorithm.name", spec.algorithm.name, message, hint))
    return errors


def public_faults(spec: JobSpec, examples: int | None = None) -> list[FieldError]:
    """Whether the method has the public set that it needs.

    Args:
        spec: of the right shape.
        examples: how many there are for training before one is taken away; None before the data is known,
            when only a spec that names no share is refused.
    """
    method, share = ALGORITHMS.get(spec.algorithm.name), spec.data.public.fraction
    if method is None or not method.needs_public_set:
        return []
    if not share:
        found = "there is none"
    elif examples is not None and not round(share * examples):
        found = f"that is none of {examples:,} examples"
    else:
        return []
    message = f"{spec.algorithm.name} exchanges predictions on a public set, and {found}"
    return [FieldError("data.public.fraction", share, message, "the papers take 0.1 of the data")]
