"""A federation: a data set divided into a public set, and training and test examples of the clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fedsim.base import rng, tree
from fedsim.base.parameters import make_spec_error, suggest_name
from fedsim.data.augment import Augment, Steps
from fedsim.data.client_tests import (
    CONVENTIONS,
    VALIDATION,
    list_conventions,
    merge_tests,
    share_tests,
    share_validation,
    split_clients,
)
from fedsim.data.dataset import Array, Dataset, Examples
from fedsim.data.partition import Partition, SampledPartition
from fedsim.data.partitions import find_task_fault, make_partition
from fedsim.data.places import NO_ROOTS, DataRoots
from fedsim.errors import DataError, SpecError
from fedsim.learning_tasks.tasks import LEARNING_TASKS


@dataclass(frozen=True, eq=False)
class Federation:
    """The data of the server and of all clients.

    Attributes:
        dataset: the data set without the public set; `train` and `tests` refer to its training and test set.
        train: each client's training examples.
        tests: each client's test examples, positions in `dataset.test`; None if all clients are tested on the
            whole test set.
        more_tests: the same by further conventions, by name; by `validation`, positions in the validation
            set.
        public: labelled examples for the server and all clients, which no client holds.
    """

    dataset: Dataset
    train: Partition
    tests: Partition | None = None
    public: Examples | None = None
    more_tests: Mapping[str, Partition | None] = field(default_factory=dict)


def make_federation(
    dataset: Dataset,
    kind: str,
    *,
    num_clients: int,
    seed: int,
    public: float = 0.0,
    tests: str = "global",
    test_share: float = 0.25,
    more_tests: Sequence[str] = (),
    validation: Examples | None = None,
    losses: Array | None = None,
    places: DataRoots = NO_ROOTS,
    **given: Any,
) -> Federation:
    """Remove the public set, partition the rest, and choose each client's test examples.

    Args:
        dataset: as loaded.
        kind: partition kind, such as "dirichlet".
        num_clients: N.
        seed: of the experiment.
        public: share of the data that becomes the public set.
        tests: a name in `CONVENTIONS`.
        test_share: share of each client's examples, with the convention `merged`.
        more_tests: further conventions of test examples, which do not change the training examples.
        validation: the validation set, from `take_validation`; for the convention `validation`.
        losses: an expert's loss of each training example; for the kind `difficulty`.
        places: the data roots; for the kind `file`.
        given: the partition's parameters.

    Raises:
        SpecError: if arguments do not fit together; paths are argument names.

    Example:
        >>> from fedsim.data import load_dataset
        >>> digits = load_dataset("digits", roots=())
        >>> federation = make_federation(
        ...     digits, "dirichlet", num_clients=10, seed=0, beta=0.5, tests="matched", public=0.1
        ... )
        >>> federation.train.num_clients, len(federation.public)
        (10, 180)
        >>> len(federation.tests.indices) == len(federation.dataset.test)
        True
    """
    _check_conventions(tests, more_tests, validation)
    dataset, taken = take_public(dataset, public, seed)
    if tests == "merged":
        dataset = merge_tests(dataset)
    if fault := find_task_fault(kind, dataset.task):
        raise SpecError([fault])
    labels, num_classes = dataset.partition_labels()
    partition = make_partition(
        kind,
        labels=labels,
        num_clients=num_clients,
        num_classes=num_classes,
        seed=seed,
        groups=dataset.train.groups,
        losses=losses,
        places=places,
        **given,
    )
    partition = _name_clients(partition, dataset.train)
    made = _share_tests(Federation(dataset, partition, None, taken), tests, seed, test_share)
    more = {name: _share_tests(made, name, seed).tests for name in more_tests if name != VALIDATION}
    if VALIDATION in more_tests and validation is not None:
        more[VALIDATION] = share_validation(tests, made.dataset, validation, made.train, seed)
    return replace(made, more_tests=more)


def _check_conventions(tests: str, more_tests: Sequence[str], validation: Examples | None) -> None:
    """Raise SpecError if there is no such convention of test examples, or these do not go together."""
    for name in (tests, *more_tests):
        if name not in CONVENTIONS:
            hint = suggest_name(name, CONVENTIONS)
            raise make_spec_error("tests", name, "there is no such convention", hint)
    if "merged" in more_tests:
        message = "changes the clients' training examples"
        raise make_spec_error("more_tests", "merged", message, "take it as the first convention")
    if tests == VALIDATION:
        message = "holds no test examples"
        raise make_spec_error("tests", VALIDATION, message, "name it after another convention")
    if VALIDATION in more_tests and validation is None:
        raise make_spec_error("more_tests", VALIDATION, "needs a validation set", "take one away first")


def _name_clients(partition: Partition, train: Examples) -> Partition:
    """Return the partition with the names of the natural clients, if each client is another one of them."""
    if partition.names or train.groups is None or not train.group_names or not len(partition.indices):
        return partition
    if (partition.sizes() == 0).any():
        return partition
    groups, starts = train.groups[partition.indices], partition.offsets[:-1]
    first, last = np.minimum.reduceat(groups, starts), np.maximum.reduceat(groups, starts)
    names = tuple(train.group_names[number] for number in first)
    if (first != last).any() or len(set(names)) < len(names) or "" in names:
        return partition
    return replace(partition, names=names)


def _share_tests(made: Federation, tests: str, seed: int, share: float = 0.0) -> Federation:
    """Return the federation with the clients' test examples by a convention."""
    dataset, partition, taken = made.dataset, made.train, made.public
    if tests == "global":
        return replace(made, tests=None)
    if isinstance(partition, SampledPartition):
        raise make_spec_error(
            "tests", tests, "does not work with clients that draw from the whole set", "use 'global'"
        )
    if tests not in list_conventions(dataset.task):
        message = f"does not work with {LEARNING_TASKS[dataset.task].asks}"
        raise make_spec_error(
            "tests", tests, message, f"use one of {', '.join(list_conventions(dataset.task))}"
        )
    if tests == "merged":
        made = Federation(*split_clients(dataset, partition, seed, share), taken)
    else:
        made = Federation(dataset, partition, share_tests(tests, dataset, partition, seed), taken)
    return _require_tests(made, tests)


def _require_tests(made: Federation, tests: str) -> Federation:
    """Return the federation; raise an error if no client has a test example."""
    if made.tests is not None and not len(made.tests.indices):
        count = made.train.num_clients
        raise make_spec_error(
            "tests",
            tests,
            f"gives none of the {count:,} clients a test example: there are {len(made.dataset.test):,}",
            "use 'matched' or 'classes', more data or fewer clients",
        )
    return made


def take_validation(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Examples | None]:
    """Move a random share of the training set into a validation set for the server.

    Args:
        dataset: the data set before the partition.
        share: of its training examples, at least 0 and below 1.
        seed: of the experiment.

    Returns:
        The rest of the data set, and the validation set (None if the share is 0).
    """
    if share == 0:
        return dataset, None
    order = rng.stream(seed, "validation").permutation(len(dataset.train))
    cut = round(share * len(order))
    taken, left = (dataset.train.select_rows(np.sort(part)) for part in (order[:cut], order[cut:]))
    return replace(dataset, train=left), taken


def take_public(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Examples | None]:
    """Move a random share of the training set and of the test set into a labelled public set.

    Args:
        dataset: the whole.
        share: of all its examples, at least 0 and below 1; ACE-pFL's 10 % of CIFAR-10 is 6,000 images.
        seed: of the experiment.

    Returns:
        The rest of the data set, and the public set (None if the share is 0).

    Raises:
        SpecError: if the share is out of range.
    """
    if not 0 <= share < 1:
        raise make_spec_error("public", share, "has to be a number of at least 0 and below 1")
    if share == 0:
        return dataset, None
    generator = rng.stream(seed, "public")
    left, taken = [], []
    for examples in (dataset.train, dataset.test):
        order = generator.permutation(len(examples))
        cut = round(share * len(examples))
        taken.append(examples.select_rows(np.sort(order[:cut])))
        left.append(examples.select_rows(np.sort(order[cut:])))
    x, y = (np.concatenate(pair) for pair in zip(*((t.x, t.y) for t in taken), strict=True))
    public = Examples(x, y)
    return replace(dataset, train=left[0], test=left[1]), public


def augment_public(public: Examples, steps: Steps, copies: int, seed: int) -> Examples:
    """Add augmented copies of each public image to the set: first the images, then the copies of all of them.

    Args:
        public: the public set.
        steps: of the augmentation of the copies.
        copies: number of copies of each image; 0 returns the set as it is.
        seed: of the experiment.

    Raises:
        DataError: if the examples are no images.
    """
    if not copies:
        return public
    if public.x.ndim != 4 or public.x.dtype != np.uint8:
        raise DataError("the public set has no images to augment", "set data.public.copies to 0")
    generator = torch.Generator().manual_seed(rng.torch_seed(seed, "public-augment"))
    augment, images = Augment(tuple(steps)), torch.split(tree.wrap_array(public.x), 1000)
    copied = [augment(part, generator).numpy() for _ in range(copies) for part in images]
    return Examples(np.concatenate([public.x, *copied]), np.concatenate([public.y] * (copies + 1)))
