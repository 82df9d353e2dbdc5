"""The test examples of each client: positions in the global test set.

Papers score personalised models in different ways, and their numbers must not be mixed:

| convention | test examples of a client | used by |
| --- | --- | --- |
| `global` | none of its own: all clients are scored on the whole test set | KDIA, curricula |
| `labels` | for every class that it holds, 1/N of that class's test examples | FedGen, FedCL |
| `matched` | a share of the test set in its own class proportions; together, all of it | ACE-pFL as read |
| `classes` | every test example of the classes that it holds (clients overlap) | FedZoo-Bench |
| `merged` | a quarter of its own examples, cut from training and test set merged | PFLlib, layer schedules |
| `validation` | none from the test set: a share of the validation set, to choose values by | searches |

With several labels per example, `matched` uses the first label of each example, as partitions do. Tasks
without class labels, such as a regression, have `global`, `merged` and `validation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from fedsim.base import rng
from fedsim.base.parameters import make_spec_error
from fedsim.base.shares import TINY
from fedsim.data.dataset import Dataset, Examples, Indices
from fedsim.data.partition import Partition, deal_examples, partition_from_owners
from fedsim.data.partitions import main_label
from fedsim.data.statistics import class_counts
from fedsim.learning_tasks.tasks import CLASS_TASKS

_MOST_PAIRS = 100_000_000


def by_labels(held: Indices, labels: Indices, generator: np.random.Generator) -> Partition:
    """For every class of a client, 1/N of that class's test examples; clients do not overlap.

    Args:
        held: int64 [N, C], training examples of each class per client.
        labels: int64 [m], the test labels.
        generator: draws the examples.
    """
    each = np.bincount(labels, minlength=held.shape[1]) // len(held)
    return partition_from_owners(deal_examples(labels, np.where(held > 0, each, 0), generator), len(held))


def match_tests(held: Indices, labels: Indices, generator: np.random.Generator) -> Partition:
    """Every class's test examples, divided in proportion to the clients' training examples of the class.

    Args:
        held: int64 [N, C], training examples of each class per client.
        labels: int64 [m], the test labels.
        generator: draws the examples.
    """
    available = np.bincount(labels, minlength=held.shape[1])
    edges = np.cumsum(held, axis=0) * (available / np.maximum(held.sum(axis=0), 1))
    counts = np.diff(np.rint(edges).astype(np.int64), axis=0, prepend=0)
    return partition_from_owners(deal_examples(labels, counts, generator), len(held))


def all_of_its_classes(held: Indices, labels: Indices, _generator: np.random.Generator) -> Partition:
    """Every test example of every class that a client holds; clients share examples.

    Args:
        held: int64 [N, C], training examples of each class per client.
        labels: int64 [m], the test labels.

    Raises:
        SpecError: if the lists of all clients together are too long.
    """
    sizes = (held > 0) @ np.bincount(labels, minlength=held.shape[1])
    if sizes.sum() > _MOST_PAIRS:
        message = f"{len(held):,} clients would be tested on {int(sizes.sum()):,} examples"
        raise make_spec_error("tests", "classes", message, "use 'matched'")
    positions = [np.flatnonzero(labels == label) for label in range(held.shape[1])]
    nothing = np.empty(0, np.int64)
    indices = [np.concatenate([nothing, *(positions[c] for c in np.flatnonzero(row))]) for row in held]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Partition(np.concatenate([np.sort(mine) for mine in indices]), offsets)


SHARES: Mapping[str, Callable[[Indices, Indices, np.random.Generator], Partition]] = {
    "labels": by_labels,
    "matched": match_tests,
    "classes": all_of_its_classes,
}

VALIDATION = "validation"
"""The convention whose examples are those of the validation set, not of the test set."""

CONVENTIONS = ("global", *SHARES, "merged", VALIDATION)


def list_conventions(task: str) -> tuple[str, ...]:
    """Return the conventions that work with the labels of this learning task."""
    if task == "classes":
        return CONVENTIONS
    return ("global", *(["matched"] if task in CLASS_TASKS else []), "merged", VALIDATION)


def share_tests(convention: str, dataset: Dataset, partition: Partition, seed: int) -> Partition:
    """Divide the test set by a convention that does not change the training partition.

    Args:
        convention: a key of `SHARES`.
        dataset: the data set with the test set.
        partition: of its training set.
        seed: of the experiment.
    """
    (train, classes), (test, _) = dataset.partition_labels(), dataset.partition_labels(test=True)
    if dataset.task == "labels":
        train, test, classes = main_label(train), main_label(test), classes + 1
    held = class_counts(partition, train, classes)
    return SHARES[convention](held, test, rng.stream(seed, f"tests-{convention}"))


def share_validation(
    first: str, dataset: Dataset, validation: Examples, partition: Partition, seed: int
) -> Partition | None:
    """Divide the validation set among the clients; None if each client is scored on all of it.

    Args:
        first: the convention of the test examples. After `global` each client has the whole set, after
            `classes` all examples of its classes. After any other one, the set is divided as by `matched`,
            which gives more clients an example than a share of 1/N of each class would.
        dataset: the data set.
        validation: the validation set.
        partition: of its training set.
        seed: of the experiment.
    """
    if first == "global":
        return None
    scored = replace(dataset, test=validation)
    return share_tests(first if first == "classes" else "matched", scored, partition, seed)


def merge_tests(dataset: Dataset) -> Dataset:
    """The data set with its test examples appended to its training examples."""
    train, test = dataset.train, dataset.test
    groups = None
    if train.groups is not None and test.groups is not None:
        groups = np.concatenate([train.groups, test.groups])
    x, y = np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y])
    both = Examples(x, y, groups, train.group_names)
    return replace(dataset, train=both)


def split_clients(
    dataset: Dataset, partition: Partition, seed: int, share: float = 0.25
) -> tuple[Dataset, Partition, Partition]:
    """Move a share of every client's examples into a test set.

    Args:
        dataset: from `merge_tests`.
        partition: of all its examples.
        seed: of the experiment.
        share: share of test examples, rounded down: every client keeps training examples.

    Returns:
        The data set with all test examples as its test set, the partition of the training examples, and the
        partition of the new test set.
    """
    generator = rng.stream(seed, "tests-merged")
    holder = np.repeat(np.arange(partition.num_clients), partition.sizes())
    # A random order within each client: sort by client, ties by a random key.
    order = np.lexsort((generator.random(len(holder)), holder))
    place = np.arange(len(holder)) - partition.offsets[holder]
    tested = np.zeros(len(holder), np.bool_)
    # 0.29 * 100 is a little less than 29.
    tested[order] = place < np.floor(partition.sizes() * share + TINY)[holder]
    owners = np.full(len(dataset.train), -1, np.int64)
    owners[partition.indices[~tested]] = holder[~tested]
    train = partition_from_owners(owners, partition.num_clients, partition.notes, partition.names)
    cut = partition.indices[tested]
    edges = np.concatenate([[0], np.cumsum(np.bincount(holder[tested], minlength=partition.num_clients))])
    tests = Partition(np.arange(len(cut)), edges)
    return replace(dataset, test=dataset.train.select_rows(cut)), train, tests
