"""What is known of a data set before anything runs: looked up once, and again when its files have changed."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from fedsim.data import find_published, list_locations, outline_dataset
from fedsim.data.dataset import Array
from fedsim.data.partitions import main_label
from fedsim.data.places import leaves_root
from fedsim.errors import DataError, DataNotFound, FieldError, SpecError
from jobs.settings import Settings
from jobs.spec.file_state import compute_file_state
from jobs.spec.job_spec import JobSpec

_LOCKS_LOCK = Lock()
"""Held while a data set's own lock is looked up, so that all who ask for one get the same."""


class FileFacts(NamedTuple):
    """What nobody knows of a data set before a look at its files.

    Attributes:
        tests: how many test examples there are.
        classes: how many training examples each class has (the first label of each, and none, where there are
            several); () for examples that are only drawn by the run.
        tested_classes: the same of the test examples.
        owners: how many natural clients have training examples; 0 where the data set names none, and as many
            as there are examples where these are only drawn by the run.
        all_owners: how many have training or test examples; 0 unless both parts name them.
    """

    tests: int
    classes: tuple[int, ...]
    tested_classes: tuple[int, ...]
    owners: int
    all_owners: int


class DatasetFacts(NamedTuple):
    """What a check needs to know of a data set, without its examples.

    Attributes:
        examples: how many there are to deal out.
        input_shape: of one example.
        num_classes: C.
        vocabulary: how many token numbers there are; 0 for data that is not tokens.
        task: "classes", or "labels" where each example has several.
        whole: how many examples there are for training, with those that are taken away first.
        seen: what a look at its files has told; None where they are not here.
    """

    examples: int
    input_shape: tuple[int, ...]
    num_classes: int
    vocabulary: int
    task: str
    all_examples: int = 0
    file_facts: FileFacts | None = None


def look_up_facts(spec: JobSpec, settings: Settings) -> DatasetFacts:
    """The facts of a spec's data set.

    Raises:
        SpecError, DataNotFound, DataError: if the data set cannot be read, with paths of the whole spec.
    """
    chosen = spec.data.dataset
    params = tuple(sorted((name, _hashable(value)) for name, value in chosen.params.items()))
    try:
        facts = _look_up_facts(chosen.name, params, settings.data_roots, spec.data.download)
    except SpecError as error:
        raise error.add_path_prefix("data.dataset") from None
    except DataError as error:
        error.errors = [FieldError("data.dataset.name", chosen.name, error.message, error.hint)]
        raise
    whole = min(facts.examples, spec.data.limit or facts.examples)
    examples = whole - round(spec.data.public.fraction * whole)
    examples -= round(spec.evaluation.validation * examples)
    return facts._replace(examples=examples, all_examples=whole)


def _look_up_facts(
    name: str, params: tuple[tuple[str, Any], ...], roots: tuple[Path, ...], download: bool
) -> DatasetFacts:
    """From the data set's files; while these are not here and may be fetched, from what is known of it.

    A check fetches no data set: it is asked while somebody types, and the run fetches it.
    """
    known = find_published(name, **dict(params)) if download else None
    state = _compute_file_state(name, dict(params), roots)
    with _LOCKS_LOCK:
        turn = _dataset_lock(name, params)
    # Whoever asks while somebody reads waits for what he finds, and does not decode it all a second time.
    with turn:
        if known is None:
            return _read_facts(name, params, roots, download, state)
        try:
            return _read_facts(name, params, roots, False, state)
        except DataNotFound:
            return DatasetFacts(*known)


@lru_cache(maxsize=1024)
def _dataset_lock(name: str, params: tuple[tuple[str, Any], ...]) -> Lock:
    """Held by whoever reads this data set."""
    return Lock()


def _compute_file_state(name: str, params: dict[str, Any], roots: tuple[Path, ...]) -> int:
    """What the files look like that a data set, and a tokenizer that is named, may be read from."""
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
    """What was found stands until the state of its files is another."""
    found = outline_dataset(name, roots=roots, download=download, **dict(params))
    data = found.dataset
    parts = data.train, data.test
    train, test = (() if found.is_drawn else _class_sizes(part.y, data.num_classes) for part in parts)
    groups = [part.groups for part in parts if part.groups is not None]
    owners = 0 if data.train.groups is None else len(np.unique(data.train.groups))
    everybody = len(np.unique(np.concatenate(groups))) if len(groups) == len(parts) else 0
    if found.is_drawn:  # one example was, of which all that is known is that somebody owns it
        owners, everybody = found.examples * bool(owners), (found.examples + found.tests) * bool(everybody)
    seen = FileFacts(found.tests, train, test, owners, everybody)
    return DatasetFacts(
        found.examples, data.input_shape, data.num_classes, data.vocabulary, data.task, file_facts=seen
    )


def _class_sizes(y: Array, num_classes: int) -> tuple[int, ...]:
    single = main_label(y) if y.ndim == 2 else y
    return tuple(np.bincount(single, minlength=num_classes + (y.ndim == 2)).tolist())


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
