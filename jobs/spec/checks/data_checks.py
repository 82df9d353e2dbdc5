"""Checks of a spec against the facts of its data set: task, public set, partition and clients' test sets."""

from __future__ import annotations

from collections.abc import Collection

from fedsim.algorithms import ALGORITHMS
from fedsim.base.parameters import list_parameters
from fedsim.curriculum.scores import PREDICTION_SCORES
from fedsim.data import DATASETS, PARTITIONS, PartitionCounts, find_faults_by_counts
from fedsim.data.client_tests import list_conventions
from fedsim.data.partitions import find_task_fault
from fedsim.data.places import DataRoots
from fedsim.errors import FieldError, SpecError
from fedsim.learning_tasks.tasks import CLASS_TASKS, LEARNING_TASKS
from jobs.spec.checks.name_checks import make_public_set_error, needs_public_set
from jobs.spec.checks.privacy_checks import find_delta_faults
from jobs.spec.checks.upload_checks import find_label_faults
from jobs.spec.dataset_facts import DatasetFacts, FileFacts
from jobs.spec.job_spec import JobSpec

IMAGE_DIMENSIONS = 3
"""Channels, rows and columns."""

_SPEC_PATHS = {
    "num_clients": "clients.total",
    "public": "data.public.fraction",
    "tests": "data.tests.kind",
    "test_share": "data.tests.share",
}


def spec_path(argument: str) -> str:
    """Return the spec's path for an argument that `Experiment.prepare_population` names in an error.

    Args:
        argument: of `make_federation`, such as `num_clients` (`clients.total`), a parameter of the partition,
            or a path below `dataset` or `model`.
    """
    section, dot, _ = argument.partition(".")
    if dot and section in JobSpec.model_fields:
        return argument
    if dot and section == "dataset":
        return f"data.{argument}"
    return _SPEC_PATHS.get(argument, f"data.partition.{argument}")


def use_spec_paths(error: Exception) -> Exception:
    """Return a `SpecError` of the run with the paths of the spec; return any other error as it is."""
    if not isinstance(error, SpecError):
        return error
    return SpecError(fault._replace(path=spec_path(fault.path)) for fault in error.errors)


def find_data_faults(
    spec: JobSpec, facts: DatasetFacts, places: DataRoots, wrong_paths: Collection[str]
) -> list[FieldError]:
    """Find what the size, the classes and the task of the data set rule out; the models are not checked.

    Args:
        spec: of the right shape.
        facts: of its data set.
        places: the data roots, for a partition from a file.
        wrong_paths: of the spec, reported already: their values are not checked further.
    """
    tests_valid = "data.tests.kind" not in wrong_paths
    faults = find_task_faults(spec, facts.task, tests_valid=tests_valid)
    share, examples = spec.data.public.fraction, facts.all_examples
    if needs_public_set(spec) and share and not round(share * examples):
        faults.append(make_public_set_error(spec, f"that is none of {examples:,} examples"))
    validation, left = spec.evaluation.validation, examples - round(share * examples)
    if validation and left and not round(validation * left):
        message = f"is none of {left:,} training examples"
        faults.append(FieldError("evaluation.validation", validation, message, "raise it, or leave it out"))
    if spec.data.public.copies and not _has_images(spec, facts):
        message = f"are copies of images, and {spec.data.dataset.name} has none"
        faults.append(FieldError("data.public.copies", spec.data.public.copies, message, "leave it out"))
    if not any(path.startswith("attack") for path in wrong_paths):
        faults += find_label_faults(spec, facts)
    if not any(path.startswith("data.partition") for path in wrong_paths):
        faults += find_delta_faults(spec, facts)
    faults += _find_partition_faults(spec, facts, places)
    if facts.file_facts is not None and tests_valid:
        faults += _find_client_test_faults(spec, facts.file_facts)
        faults += _find_membership_faults(spec, facts.file_facts)
    return faults


def _has_images(spec: JobSpec, facts: DatasetFacts) -> bool:
    """Whether the examples are images with one label, or several, for the whole image."""
    name, is_image = spec.data.dataset.name, len(facts.input_shape) == IMAGE_DIMENSIONS
    parameters = {each.name for each in list_parameters(DATASETS[name].load)}
    return is_image and facts.task in CLASS_TASKS and ("augment" in parameters or bool(DATASETS.source(name)))


def find_task_faults(spec: JobSpec, task: str, *, tests_valid: bool = True) -> list[FieldError]:
    """Find an algorithm, a curriculum, a test convention or a metric that does not suit the labels.

    Args:
        spec: of the right shape.
        task: of the data set, such as "classes" or "regression"; see `fedsim.data.Dataset`.
        tests_valid: whether `data.tests.kind` passed the checks so far.
    """
    dataset, asks, conventions = spec.data.dataset.name, LEARNING_TASKS[task].asks, list_conventions(task)
    hint, paths = f"use one of {', '.join(conventions)}", spec.data.tests.paths if tests_valid else {}
    faults = [
        FieldError(path, kind, f"{dataset} has {asks}", hint)
        for kind, path in paths.items()
        if kind not in conventions
    ]
    algorithm = ALGORITHMS.get(spec.algorithm.name)
    if algorithm is not None and task not in algorithm.tasks:
        served = " or ".join(LEARNING_TASKS[name].asks for name in LEARNING_TASKS if name in algorithm.tasks)
        message = f"needs {served}, and {dataset} has {asks}"
        others = ", ".join(name for name in sorted(ALGORITHMS) if task in ALGORITHMS[name].tasks)
        faults.append(FieldError("algorithm.name", spec.algorithm.name, message, f"algorithms: {others}"))
    curriculum = spec.curriculum.data
    if curriculum is not None and curriculum.score in PREDICTION_SCORES and task not in CLASS_TASKS:
        message, hint = f"compares predicted classes, and {dataset} has {asks}", "score by a loss"
        faults.append(FieldError("curriculum.data.score", curriculum.score, message, hint))
    if (smoothing := spec.local.label_smoothing) and task == "regression":
        message = f"smooths classes, and {dataset} has {asks}"
        faults.append(FieldError("local.label_smoothing", smoothing, message, "leave it out"))
    known = LEARNING_TASKS[task].metrics
    for number, metric in enumerate(spec.evaluation.metrics or ()):
        if metric not in known:
            message, hint = f"is no metric of {dataset}, which has {asks}", f"metrics: {', '.join(known)}"
            faults.append(FieldError(f"evaluation.metrics.{number}", metric, message, hint))
    return faults


def _find_partition_faults(spec: JobSpec, facts: DatasetFacts, places: DataRoots) -> list[FieldError]:
    """Find what arithmetic shows of the partition; the run finds the rest.

    If the files are not here, only the number of clients is compared with the number of examples.
    """
    partition, files, faults = spec.data.partition, facts.file_facts, list[FieldError]()
    entry, counts = PARTITIONS.get(partition.kind), _count_supply(spec, facts)
    if fault := find_task_fault(partition.kind, facts.task):
        faults.append(fault._replace(path="data.partition.kind"))
    if entry is None or (faults and facts.task not in CLASS_TASKS):
        return faults
    # Merged test examples count too, and their number is in the files.
    counted = files is not None or spec.data.tests.kind != "merged"
    if not entry.shares_examples and counted and spec.clients.total > counts.examples:
        faults.append(_make_too_many_clients_error(spec, counts.examples))
    elif files is not None:
        found = find_faults_by_counts(partition.kind, partition.params, counts._replace(places=places))
        faults += [fault._replace(path=spec_path(fault.path)) for fault in found]
    return faults


def _count_supply(spec: JobSpec, facts: DatasetFacts) -> PartitionCounts:
    """Count the examples, classes and owners that the partition can deal out.

    The public and the validation set are taken away first, and may take all examples of a small class.
    """
    clients, files = spec.clients.total, facts.file_facts
    if files is None:
        return PartitionCounts(facts.examples, clients, (0, facts.num_classes), 0)
    merged = spec.data.tests.kind == "merged"
    examples = facts.examples + (_count_tests_left(spec, files) if merged else 0)
    taken, sizes = sum(files.classes) - facts.examples, files.classes
    fewest = sum(size > taken for size in sizes)
    if merged and sizes:
        sizes = tuple(sum(pair) for pair in zip(sizes, files.tested_classes, strict=True))
    most = sum(size > 0 for size in sizes) or facts.num_classes + (facts.task == "labels")
    owners = files.all_owners if merged else files.owners
    return PartitionCounts(examples, clients, (fewest, min(most, examples)), owners)


def _count_tests_left(spec: JobSpec, files: FileFacts) -> int:
    """Count the test examples without the public set's share."""
    return files.tests - round(spec.data.public.fraction * files.tests)


def _make_too_many_clients_error(spec: JobSpec, examples: int) -> FieldError:
    name = spec.data.dataset.name
    parts = "training and test" if spec.data.tests.kind == "merged" else "training"
    takers = {
        "data.limit": spec.data.limit is not None,
        "data.public": spec.data.public.fraction > 0,
        "evaluation.validation": spec.evaluation.validation > 0,
    }
    named = " and ".join(path for path, takes in takers.items() if takes)
    left = f" after {named}" if named else ""
    less = f", or let {named} leave more examples" if named else ""
    return FieldError(
        "clients.total",
        spec.clients.total,
        f"more clients than {parts} examples: {name} has {examples:,}{left}",
        f"at most {examples:,}{less}, or a partition whose clients share examples (kind: sampled)",
    )


def _find_client_test_faults(spec: JobSpec, files: FileFacts) -> list[FieldError]:
    """Find a convention for the clients' test sets that gives no client a test example."""
    paths = spec.data.tests.paths
    found = (_find_kind_fault(spec, files, kind, path) for kind, path in paths.items())
    return [fault for fault in found if fault is not None]


def _find_membership_faults(spec: JobSpec, files: FileFacts) -> list[FieldError]:
    """Find membership inference without test examples to compare with."""
    if not spec.evaluation.membership or spec.data.tests.kind == "merged" or _count_tests_left(spec, files):
        return []
    message = f"compares with test examples, and {spec.data.dataset.name} has none"
    hint = "leave it out, or take a data set with a test part (a test_share above 0)"
    return [FieldError("evaluation.membership", True, message, hint)]


def _find_kind_fault(spec: JobSpec, files: FileFacts, kind: str, path: str) -> FieldError | None:
    clients = spec.clients.total
    if kind in ("global", "merged", "validation"):
        return None
    if not _count_tests_left(spec, files):
        message = f"{spec.data.dataset.name} has no test examples to share out"
        hint = "use kind: merged, or a data set with a test part (a test_share above 0)"
    elif kind == "labels" and files.tested_classes and max(files.tested_classes) < clients:
        most = max(files.tested_classes)
        message = f"each of {clients:,} clients would get an equal share of at most {most:,} tests of a class"
        message += ", which is none"
        hint = f"use kind: matched or classes, or at most {most:,} clients"
    else:
        return None
    return FieldError(path, kind, message, hint)
