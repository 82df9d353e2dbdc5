"""Reuters-21578 as text of characters, for next-token prediction; topics as natural clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from fedsim.base.parameters import Range
from fedsim.data.dataset import Array, Dataset, Examples, Indices
from fedsim.data.places import DataRoots
from fedsim.data.sources.reuters import Story, find_folder, read_mod_apte
from fedsim.learning_tasks.learning_task import UNKNOWN

PADDING = 0
FIRST, LAST = 32, 126
"""The characters of ASCII that have a token of their own; any other is read as a question mark."""

VOCABULARY = LAST - FIRST + 2


def reuters_characters(
    places: DataRoots,
    *,
    length: Annotated[int, Range(8, 512)] = 64,
    tests: Annotated[int, Range(1, 100_000)] = 1_000,
) -> Dataset:
    """The stories of Reuters-21578 in lower case, cut into windows; the label of a character is the next one.

    Token 0 is padding, tokens 1 to 95 are the characters from space to `~`. Windows follow each other without
    a gap. A story belongs to its first topic, the natural client; stories without a topic to one more.

    Args:
        places: the data roots.
        length: characters of a window; the last window of a story is padded.
        tests: number of test windows, the first ones of the test stories of the ModApte split.

    Raises:
        DataNotFound: if the files are missing.
        DataError: if a file is missing or truncated.
    """
    folder = find_folder(places, "reuters_characters")
    train, test = read_mod_apte(folder)
    topics = sorted({story.topics[0] for story in (*train, *test) if story.topics})
    numbers = {topic: number for number, topic in enumerate(topics)}
    parts = [_cut(stories, numbers, length) for stories in (train, test)]
    return Dataset(
        name="reuters_characters",
        train=parts[0],
        test=parts[1].select_rows(slice(tests)),
        num_classes=VOCABULARY,
        input_shape=(length,),
        classes=(),
        task="next_token",
        source=str(folder),
        vocabulary=VOCABULARY,
    )


def _cut(stories: Sequence[Story], numbers: dict[str, int], length: int) -> Examples:
    """Cut stories into windows: tokens int32 [n, length] and next tokens int64 [n, length]."""
    x, y, groups = list[Array](), list[Array](), list[Indices]()
    for story in stories:
        tokens = _encode(story.text)
        windows = -(-max(len(tokens) - 1, 0) // length)
        if not windows:
            continue
        padded = np.full(windows * length + 1, PADDING, np.int64)
        padded[: len(tokens)] = tokens
        targets = padded[1:].copy()
        targets[len(tokens) - 1 :] = UNKNOWN
        inputs = padded[:-1].copy()
        inputs[len(tokens) - 1 :] = PADDING
        x.append(inputs.astype(np.int32).reshape(windows, length))
        y.append(targets.reshape(windows, length))
        owner = numbers[story.topics[0]] if story.topics else len(numbers)
        groups.append(np.full(windows, owner, np.int64))
    names = (*numbers, "no topic")
    return Examples(np.concatenate(x), np.concatenate(y), np.concatenate(groups), names)


def _encode(text: str) -> Array:
    """The tokens of a text, int64."""
    codes = np.frombuffer(text.lower().encode("ascii", "replace"), np.uint8).astype(np.int64)
    return np.where((codes >= FIRST) & (codes <= LAST), codes, ord("?")) - FIRST + 1
