"""Whether a data set can be dealt out as a spec says, and where in the spec a fault of that stands."""

from __future__ import annotations

from fedsim.data import PARTITIONS, PartitionFigures, find_figure_faults
from fedsim.errors import FieldError, SpecError
from jobs.spec.client_test_checks import tests_faults
from jobs.spec.dataset_facts import DatasetFacts, FileFacts
from jobs.spec.job_spec import JobSpec

_SPEC_PATHS = {
    "num_clients": "clients.total",
    "public": "data.public.fraction",
    "tests": "data.tests.kind",
    "test_share": "data.tests.share",
}


def spec_path(argument: str) -> str:
    """The place in a spec of what an experiment's faults name, as `Experiment.population` says.

    Args:
        argument: of `federate`, be it one of the partition's own, or below `dataset` or `model`.
    """
    section, dot, _ = argument.partition(".")
    if dot and section in JobSpec.model_fields:
        return argument
    if dot and section == "dataset":
        return f"data.{argument}"
    return _SPEC_PATHS.get(argument, f"data.partition.{argument}")


def use_spec_paths(error: Exception) -> Exception:
    """A fault that only the data has shown, with the paths of the whole spec; any other error as it is."""
    if not isinstance(error, SpecError):
        return error
    return SpecError(fault._replace(path=spec_path(fault.path)) for fault in error.errors)


def find_data_partition_faults(spec: JobSpec, facts: DatasetFacts) -> list[FieldError]:
    """Why these examples cannot be dealt out so, as far as arithmetic tells; the run knows the rest.

    Args:
        spec: of the right shape.
        facts: of its data set; where its files were not seen, only the clients are counted.
    """
    partition, seen, errors = spec.data.partition, facts.file_facts, list[FieldError]()
    entry, supply = PARTITIONS.get(partition.kind), _supply(spec, facts)
    if partition.kind == "difficulty" and facts.task != "classes":
        message = f"needs one class for each example, and those of {spec.data.dataset.name} carry several"
        errors.append(FieldError("data.partition.kind", "difficulty", message, "use another partition"))
    if entry is None:
        return errors
    counted = seen is not None or spec.data.tests.kind != "merged"  # tests that are merged count as well
    if not entry.shares_examples and counted and spec.clients.total > supply.examples:
        errors.append(_make_too_many_error(spec, supply.examples))
    elif seen is not None:
        faults = find_figure_faults(partition.kind, partition.params, supply)
        errors += [fault._replace(path=spec_path(fault.path)) for fault in faults]
    if seen is not None and not tests_faults(spec):
        errors += _find_untested_clients(spec, seen)
    return errors


def _supply(spec: JobSpec, facts: DatasetFacts) -> PartitionFigures:
    """What there is to deal out; some classes and owners may have gone with what is taken away first."""
    clients, seen = spec.clients.total, facts.file_facts
    if seen is None:
        return PartitionFigures(facts.examples, clients, (0, facts.num_classes), 0)
    merged = spec.data.tests.kind == "merged"
    there = facts.examples + (_tests_left(spec, seen) if merged else 0)
    gone, sizes = sum(seen.classes) - facts.examples, seen.classes
    fewest = sum(size > gone for size in sizes)
    if merged and sizes:
        sizes = tuple(sum(pair) for pair in zip(sizes, seen.tested_classes, strict=True))
    most = sum(size > 0 for size in sizes) or facts.num_classes + (facts.task == "labels")
    return PartitionFigures(
        there, clients, (fewest, min(most, there)), seen.all_owners if merged else seen.owners
    )


def _tests_left(spec: JobSpec, seen: FileFacts) -> int:
    """How many test examples there are beside the public set."""
    return seen.tests - round(spec.data.public.fraction * seen.tests)


def _make_too_many_error(spec: JobSpec, examples: int) -> FieldError:
    name = spec.data.dataset.name
    examples_of = "training and test" if spec.data.tests.kind == "merged" else "training"
    return FieldError(
        "clients.total",
        spec.clients.total,
        f"more clients than {examples_of} examples: {name} has {examples:,}",
        f"at most {examples:,}, or a partition whose clients share examples (kind: sampled)",
    )


def _find_untested_clients(spec: JobSpec, seen: FileFacts) -> list[FieldError]:
    """The convention for the clients' tests, where it would give nobody any."""
    kind, clients, tests = spec.data.tests.kind, spec.clients.total, _tests_left(spec, seen)
    if kind in ("global", "merged"):
        return []
    if not tests:
        message = f"{spec.data.dataset.name} has no test examples to share out"
        hint = "use kind: merged, or a data set with a test part (a test_share above 0)"
    elif kind == "labels" and seen.tested_classes and max(seen.tested_classes) < clients:
        most = max(seen.tested_classes)
        message = f"each of {clients:,} clients would get an equal share of at most {most:,} tests of a class"
        message += ", which is none"
        hint = f"use kind: matched or classes, or at most {most:,} clients"
    else:
        return []
    return [FieldError("data.tests.kind", kind, message, hint)]
