"""A data set shared out whole: public set, clients' training examples, clients' test examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsim.base import rng
from fedsim.base.parameters import make_spec_error, suggest_name
from fedsim.data.client_tests import CONVENTIONS, FOR_SEVERAL_LABELS, merge_tests, share_tests, split_clients
from fedsim.data.dataset import Array, Dataset, Examples
from fedsim.data.partition import Partition, SampledPartition
from fedsim.data.partitions import make_partition


@dataclass(frozen=True, eq=False)
class Federation:
    """Who has what.

    Attributes:
        dataset: what is left for the clients; `train` and `tests` refer to its training and test set.
        train: each client's training examples.
        tests: each client's test examples, positions in `dataset.test`; None when all are tested on all of
            it.
        public: the labelled examples that everybody and the server may use, and no client holds.
    """

    dataset: Dataset
    train: Partition
    tests: Partition | None = None
    public: Examples | None = None


def make_federation(
    dataset: Dataset,
    kind: str,
    *,
    num_clients: int,
    seed: int,
    public: float = 0.0,
    tests: str = "global",
    test_share: float = 0.25,
    losses: Array | None = None,
    **given: Any,
) -> Federation:
    """Takes the public set away, shares out the rest, and says what each client is tested on.

    Args:
        dataset: as loaded.
        kind: of partition.
        num_clients: N.
        seed: of the experiment.
        public: the share of the data that becomes the public set.
        tests: a name in `CONVENTIONS`.
        test_share: of each client's examples, with the convention `merged`.
        losses: an expert's loss of each example that is left to share out; for the kind `difficulty`.
        given: the partition's parameters.

    Raises:
        SpecError: anything that does not go together; paths are argument names.
    """
    if tests not in CONVENTIONS:
        raise make_spec_error("tests", tests, "no such convention", suggest_name(tests, CONVENTIONS))
    dataset, taken = take_public(dataset, public, seed)
    if tests == "merged":
        dataset = merge_tests(dataset)
    partition = make_partition(
        kind,
        labels=dataset.train.y,
        num_clients=num_clients,
        num_classes=dataset.num_classes,
        seed=seed,
        groups=dataset.train.groups,
        losses=losses,
        **given,
    )
    if tests == "global":
        return Federation(dataset, partition, None, taken)
    if isinstance(partition, SampledPartition):
        raise make_spec_error("tests", tests, "not for clients that draw from the whole set", "use 'global'")
    if dataset.task == "labels" and tests not in FOR_SEVERAL_LABELS:
        raise make_spec_error(
            "tests", tests, "not for examples of several labels", "use 'matched' or 'merged'"
        )
    if tests == "merged":
        made = Federation(*split_clients(dataset, partition, seed, test_share), taken)
    else:
        made = Federation(dataset, partition, share_tests(tests, dataset, partition, seed), taken)
    return _require_tests(made, tests)


def _require_tests(made: Federation, tests: str) -> Federation:
    """The same, if anybody has a test example."""
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
    """Takes a random share of the training set away, for the server to choose among its models by.

    Args:
        dataset: what is to be shared out.
        share: of its training examples, at least 0 and below 1.
        seed: of the experiment.

    Returns:
        What is left, and the validation set (None when the share is 0).
    """
    if share == 0:
        return dataset, None
    order = rng.stream(seed, "validation").permutation(len(dataset.train))
    cut = round(share * len(order))
    taken, left = (dataset.train.select_rows(np.sort(part)) for part in (order[:cut], order[cut:]))
    return replace(dataset, train=left), taken


def take_public(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Examples | None]:
    """Takes a random share of the training set and of the test set away as a labelled public set.

    Args:
        dataset: the whole.
        share: of all its examples, at least 0 and below 1; ACE-pFL's 10 % of CIFAR-10 is 6,000 images.
        seed: of the experiment.

    Returns:
        What is left, and the public set (None when the share is 0).

    Raises:
        SpecError: the share is out of range.
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
    public = Examples(*(np.concatenate(pair) for pair in zip(*((t.x, t.y) for t in taken), strict=True)))
    return replace(dataset, train=left[0], test=left[1]), public
