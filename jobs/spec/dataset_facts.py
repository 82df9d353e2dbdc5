"""Facts about a data set that the checks of a spec need; cached until the data set's files change."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from fedsim.data import awaits_download, find_published, list_locations, outline_dataset
from fedsim.data.dataset import Array
from fedsim.data.partitions import main_label
from fedsim.data.places import leaves_root
from fedsim.data.text import TokenizerNotFound
from fedsim.errors import DataError, DataNotFound, FieldError, SpecError
from jobs.settings import Settings
from jobs.spec.file_state import compute_file_state
from jobs.spec.job_spec import JobSpec

_LOCKS_LOCK = Lock()
"""Held while a data set's own lock is looked up, so that all threads get the same lock."""


class FileFacts(NamedTuple):
    """Facts that only the files of a data set show.

    Attributes:
        tests: the number of test examples.
        classes: the training examples of each class. With several labels per example the first label counts,
            and "no label" is a class; without class labels all are one class. () for synthetic data, which
            only the run draws.
        tested_classes: the test examples of each class, counted likewise.
        owners: the natural clients with training examples; 0 if the data set names none. For synthetic data
            the number of training examples, as an upper bound.
        all_owners: the natural clients with training or test examples; 0 unless both parts name clients.
    """

    tests: int
    classes: tuple[int, ...]
    tested_classes: tuple[int, ...]
    owners: int
    all_owners: int


class DatasetFacts(NamedTuple):
    """Facts about a data set for the checks of a spec; no examples.

    Attributes:
        examples: the training examples for the partition, without the public and the validation set.
        input_shape: of one example.
        num_classes: C.
        vocabulary: the number of different tokens; 0 for data without tokens.
        task: the learning task, such as "classes"; see `fedsim.data.Dataset`.
        all_examples: all training examples within `data.limit`.
        file_facts: facts from the files; None if the files are not here.
    """

    examples: int
    input_shape: tuple[int, ...]
    num_classes: int
    vocabulary: int
    task: str
    all_examples: int = 0
    file_facts: FileFacts | None = None


def look_up_facts(spec: JobSpec, settings: Settings, *, fetch: bool = False) -> DatasetFacts | None:
    """Look up the facts of a spec's data set.

    Args:
        spec: of the right shape.
        settings: the data roots.
        fetch: whether to download a data set whose facts are only in its files, if the spec allows downloads.

    Returns:
        The facts; None if only a download would show them, and `fetch` is false.

    Raises:
        SpecError, DataNotFound, DataError: if the data set cannot be read; with the paths of the spec.
    """
    chosen = spec.data.dataset
    params = tuple(sorted((name, _make_hashable(value)) for name, value in chosen.params.items()))
    try:
        download, roots = spec.data.download, settings.data_roots
        if download and not fetch and awaits_download(chosen.name, roots, dict(params)):
            return None
        facts = _look_up_facts(chosen.name, params, roots, download, fetch=fetch)
    except SpecError as error:
        raise error.add_path_prefix("data.dataset") from None
    except DataError as error:
        if isinstance(error, TokenizerNotFound) and download and not fetch:
            return None
        error.errors = [FieldError("data.dataset.name", chosen.name, error.message, error.hint)]
        raise
    all_examples = min(facts.examples, spec.data.limit or facts.examples)
    examples = all_examples - round(spec.data.public.fraction * all_examples)
    examples -= round(spec.evaluation.validation * examples)
    return facts._replace(examples=examples, all_examples=all_examples)


def _look_up_facts(
    name: str, params: tuple[tuple[str, Any], ...], roots: tuple[Path, ...], download: bool, *, fetch: bool
) -> DatasetFacts:
    """Read the facts from the files; if these are missing but may be downloaded, use the published facts.

    A check downloads nothing, because it runs while a user types; the run downloads the data set.
    """
    published = find_published(name, **dict(params)) if download else None
    state = _compute_file_state(name, dict(params), roots)
    with _LOCKS_LOCK:
        lock = _dataset_lock(name, params)
    # A second thread waits for the result of the first, instead of decoding the data set again.
    with lock:
        if published is None:
            return _read_facts(name, params, roots, download and fetch, state)
        try:
            return _read_facts(name, params, roots, False, state)
        except DataNotFound:
            return DatasetFacts(*published)


@lru_cache(maxsize=1024)
def _dataset_lock(name: str, params: tuple[tuple[str, Any], ...]) -> Lock:
    """Return the lock of this data set; its reader holds it."""
    return Lock()


def _compute_file_state(name: str, params: dict[str, Any], roots: tuple[Path, ...]) -> int:
    """Compute a number that changes with the files of the data set and of its tokenizer."""
    places = list_locations(name, roots, params)
    if isinstance(tokenizer := params.get("tokenizer"), str) and not leaves_root(tokenizer):
        places += [root.expanduser() / tokenizer / "tokenizer.json" for root in roots]
    return compute_file_state(places)


@lru_cache(maxsize=32)
def _read_facts(
    name: str,
    params: tuple[tuple[str, Any], ...],
    roots: tuple[Path, ...],
    download: bool,
    state: int,
) -> DatasetFacts:
    """Read the facts; the cache keeps them until the state of the files changes."""
    found = outline_dataset(name, roots=roots, download=download, **dict(params))
    data = found.dataset
    parts = data.train, data.test
    labels = [data.partition_labels(test=test) for test in (False, True)]
    train, test = (() if found.is_drawn else _class_sizes(*each) for each in labels)
    groups = [part.groups for part in parts if part.groups is not None]
    owners = 0 if data.train.groups is None else len(np.unique(data.train.groups))
    all_owners = len(np.unique(np.concatenate(groups))) if len(groups) == len(parts) else 0
    if found.is_drawn:  # only one example was drawn: it shows whether examples have owners, not how many
        owners = found.examples * bool(owners)
        all_owners = (found.examples + found.tests) * bool(all_owners)
    file_facts = FileFacts(found.tests, train, test, owners, all_owners)
    return DatasetFacts(
        found.examples, data.input_shape, data.num_classes, data.vocabulary, data.task, file_facts=file_facts
    )


def _class_sizes(y: Array, num_classes: int) -> tuple[int, ...]:
    single = main_label(y) if y.ndim == 2 else y
    return tuple(np.bincount(single, minlength=num_classes + (y.ndim == 2)).tolist())


def _make_hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
