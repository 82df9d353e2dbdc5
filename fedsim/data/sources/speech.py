"""Spoken words: Speech Commands, and folders of recordings whose names give word and speaker."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heapreplace
from math import gcd
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fedsim.base.parameters import Range, Share, make_spec_error
from fedsim.data.audio import RECIPE, read_spectrograms
from fedsim.data.cache import load_or_make
from fedsim.data.dataset import Array, Dataset, Examples
from fedsim.data.places import DataPath, DataRoots
from fedsim.data.sources.folders import class_folders, cut_test_positions, interleave
from fedsim.data.sources.groups import number_groups
from fedsim.errors import DataError

_COMMANDS = ("speech_commands_v0.02", "SpeechCommands/speech_commands_v0.02", "speech_commands")
_TEN_WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
_DIGITS = ("spoken-digits", "free-spoken-digit-dataset/recordings", "fsdd/recordings")
_TEST_TAKES = 5
MOST_FIELDS = 20
_COMMAND_NAME = "{label}/{speaker}_nohash_{take}"
_PIECE = re.compile(r"(\{label\}|\{speaker\}|\{take\}|\*)")
_FIELDS = {"{label}": r"[^/_]+", "{speaker}": r"[^/_]+", "{take}": r"[0-9]+", "*": r"[^/]*"}


class _Recording(NamedTuple):
    file: Path
    word: str
    speaker: str
    take: int


def speech_commands(places: DataRoots, *, words: Literal["ten", "all"] = "ten") -> Dataset:
    """Speech Commands (version 0.02) as log-mel spectrograms; float32, [1, 32, 32].

    The test set is `testing_list.txt`; the recordings in `validation_list.txt` are left out. The natural
    groups are the speakers.

    Args:
        places: the data roots.
        words: the usual ten (yes, no, up, down, left, right, on, off, stop, go) or all words.

    Raises:
        DataNotFound: if it is in no data root.
        DataError: if a recording is damaged, or a list and the recordings do not belong together.
    """
    get = "unpack speech_commands_v0.02.tar.gz into a folder of that name there"
    folder = places.require_path("speech_commands", _COMMANDS, get)
    names = _TEN_WORDS if words == "ten" else _words(folder)
    lists = {part: _read_list(folder, f"{part}_list.txt", names) for part in ("testing", "validation")}
    recordings = interleave(_list_commands(folder, word) for word in names)
    left = [r for r in recordings if r.file not in lists["validation"]]
    tested = np.array([r.file in lists["testing"] for r in left])
    return _dataset("speech_commands", places, folder, left, names, tested)


def spoken_digits(places: DataRoots) -> Dataset:
    """The Free Spoken Digit Dataset as log-mel spectrograms; float32, [1, 32, 32].

    Files are named DIGIT_SPEAKER_INDEX.wav. As its authors say, the recordings of index 0 to 4 are the test
    set. The natural groups are the speakers. Words and speakers alternate: the first n are a balanced sample.

    Raises:
        DataNotFound: if it is in no data root.
        DataError: if a recording is damaged or misnamed.
    """
    folder = places.require_path("spoken_digits", _DIGITS, "put the recordings (0_george_0.wav, ...) there")
    recordings = _find_recordings(folder, "{label}_{speaker}_{take}")
    names = tuple("0123456789")
    strange = next((r for r in recordings if r.word not in names), None)
    if strange is not None:
        raise DataError(f"{strange.file}: {strange.word!r} is not a digit", "remove or rename it")
    ordered, tested = _arrange_recordings(recordings, [r.take < _TEST_TAKES for r in recordings])
    return _dataset("spoken_digits", places, folder, ordered, names, tested)


def audio_folder(
    places: DataRoots,
    *,
    path: DataPath,
    pattern: str = "{label}_{speaker}_{take}",
    test_takes: Annotated[int, Range(0)] = 0,
    test_share: Share = 0.2,
) -> Dataset:
    """The user's own WAV recordings as log-mel spectrograms; float32, [1, 32, 32].

    Words and speakers alternate: the first n are a balanced sample.

    Args:
        places: the data roots.
        path: the folder, relative to a data root.
        pattern: pattern of the file names, with folders and without `.wav`: `{label}` is the word,
            `{speaker}` the natural client (optional), `{take}` a number (optional), each once; `*` anything.
        test_takes: recordings whose take is below this number are the test set; 0 to draw a test set.
        test_share: share drawn as the test set in that case, always the same recordings.

    Raises:
        SpecError: if the pattern has no label, a field twice, or no take although `test_takes` needs one.
        DataNotFound: if there is no such folder in a data root.
        DataError: if a recording is damaged, or its name does not match the pattern.
    """
    if "{label}" not in pattern or (test_takes and "{take}" not in pattern):
        raise make_spec_error("pattern", pattern, "needs {label}, and {take} if test_takes is given")
    if twice := [field for field in _FIELDS if field != "*" and pattern.count(field) > 1]:
        raise make_spec_error(
            "pattern", pattern, f"has {twice[0]} more than once", "write * in the place of the second one"
        )
    if len(_PIECE.findall(pattern)) > MOST_FIELDS:
        raise make_spec_error("pattern", pattern, f"has more than {MOST_FIELDS} fields and *", "use fewer *")
    folder = places.resolve_path("audio_folder", path, "put the folder there")
    recordings = _find_recordings(folder, pattern)
    names = sorted({r.word for r in recordings})
    if test_takes:
        drawn: Sequence[bool] = [r.take < test_takes for r in recordings]
    else:
        drawn = np.isin(
            np.arange(len(recordings)), cut_test_positions(len(recordings), test_share)[1]
        ).tolist()
    ordered, tested = _arrange_recordings(recordings, drawn)
    return _dataset("audio_folder", places, folder, ordered, names, tested)


def _words(folder: Path) -> tuple[str, ...]:
    return tuple(name for name in class_folders(folder) if not name.startswith("_"))


def _list_commands(folder: Path, word: str) -> list[_Recording]:
    """The recordings of one word, named SPEAKER_nohash_TAKE.wav."""
    files = _list_recordings(folder / word, (folder / word).glob("*"))
    if not files:
        raise DataError(f"{folder / word}: has no recordings", "unpack the archive again")
    return [_parse_recording(file, file.relative_to(folder), _COMMAND_NAME) for file in files]


def _list_recordings(folder: Path, found: Iterable[Path]) -> list[Path]:
    """The recordings among files below a folder, in order, without hidden files such as those of macOS."""
    return sorted(
        file
        for file in found
        if file.suffix.lower() == ".wav"
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )


def _read_list(folder: Path, name: str, words: Sequence[str]) -> set[Path]:
    """The recordings of these words in one of the archive's lists."""
    file = folder / name
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error})", "unpack the archive again") from error
    listed = {number: folder / line for number, line in enumerate(lines, 1) if line.split("/")[0] in words}
    for number, recording in listed.items():
        if not recording.is_file():
            raise DataError(f"{file}: line {number} names {lines[number - 1]!r}, which is missing")
    return set(listed.values())


def match_name(pattern: str, name: str) -> dict[str, str] | None:
    """Match the name of a recording with a user's pattern; fields contain neither slashes nor underscores.

    A regular expression of several `*` may take hours. This takes at most as many steps as the pattern has
    pieces, times the square of the length of the name.

    Returns:
        The text of each field, by its name; None if the name does not match.
    """
    pieces, failed = [piece for piece in _PIECE.split(pattern) if piece], set[tuple[int, int]]()

    def match_from(number: int, start: int) -> list[str] | None:
        """The texts of the pieces from `number` on, which match the name from `start` on."""
        if number == len(pieces):
            return [] if start == len(name) else None
        if (number, start) in failed:
            return None
        piece = pieces[number]
        if piece not in _FIELDS:
            ends = [start + len(piece)] if name.startswith(piece, start) else []
        else:
            found = re.compile(_FIELDS[piece]).match(name, start)
            # The longest text first, as a regular expression does; each shorter one matches too.
            ends = list(range(found.end(), start - (piece == "*"), -1)) if found else []
        for end in ends:
            if (rest := match_from(number + 1, end)) is not None:
                return [name[start:end], *rest]
        failed.add((number, start))
        return None

    texts = match_from(0, 0)
    if texts is None:
        return None
    found = dict(zip(pieces, texts, strict=True))
    return {field[1:-1]: found[field] for field in _FIELDS if field in found and field != "*"}


def _find_recordings(folder: Path, pattern: str) -> list[_Recording]:
    """Every recording below the folder, in the order of the names."""
    files = _list_recordings(folder, folder.rglob("*"))
    if not files:
        raise DataError(f"{folder}: has no .wav files", "put recordings there")
    return [_parse_recording(file, file.relative_to(folder), pattern) for file in files]


def _arrange_recordings(
    recordings: Sequence[_Recording], tested: Sequence[bool]
) -> tuple[list[_Recording], Array]:
    """The training recordings, then the test recordings, each in an even order; and which are for testing."""
    parts = [
        _order_evenly([r for r, test in zip(recordings, tested, strict=True) if test == which])
        for which in (False, True)
    ]
    return parts[0] + parts[1], np.repeat([False, True], [len(part) for part in parts])


def _order_evenly(recordings: Iterable[_Recording]) -> list[_Recording]:
    """Order recordings: every beginning of the order is nearly even over the words, and over the speakers.

    Words alternate. A word's turn goes to the speaker with the fewest turns so far; among several, to the
    next one in the word's own order of speakers. With W words and S speakers who all said all of them, turn i
    of W S is that of speaker i + i // lcm(W, S), modulo S. No speaker is ever two turns ahead, and every pair
    comes once before any pair comes again.
    """
    said: dict[str, dict[str, list[_Recording]]] = {}
    for recording in recordings:
        said.setdefault(recording.word, {}).setdefault(recording.speaker, []).append(recording)
    speakers = sorted({speaker for by_speaker in said.values() for speaker in by_speaker})
    taken: Counter[str] = Counter()
    return interleave(
        _take_word(said[w], _speaker_order(n, len(said), speakers), taken) for n, w in enumerate(said)
    )


def _speaker_order(word: int, words: int, speakers: Sequence[str]) -> list[str]:
    """The order of the speakers for this word; each word has its own."""
    number = len(speakers)
    again = number // gcd(words, number)  # turns of this word until the same speaker is due again
    return [speakers[(word + turn * words + turn // again) % number] for turn in range(number)]


def _take_word(
    said: Mapping[str, Sequence[_Recording]], order: Sequence[str], taken: Counter[str]
) -> Iterator[_Recording]:
    """The recordings of one word; `taken` counts those of each speaker, over all words."""
    due = [(0, turn, speaker) for turn, speaker in enumerate(order) if speaker in said]
    while due:
        count, turn, speaker = due[0]
        if count < taken[speaker]:  # for other words, meanwhile
            heapreplace(due, (taken[speaker], turn, speaker))
            continue
        taken[speaker] += 1
        mine, which = said[speaker], turn // len(order)
        if which + 1 < len(mine):
            heapreplace(due, (taken[speaker], turn + len(order), speaker))
        else:
            heappop(due)
        yield mine[which]


def _parse_recording(file: Path, name: Path, pattern: str) -> _Recording:
    fields = match_name(pattern, name.with_suffix("").as_posix())
    if fields is None:
        raise DataError(f"{file}: does not match {pattern!r}", "rename it, or give another pattern")
    return _Recording(file, fields["label"], fields.get("speaker") or "", int(fields.get("take") or 0))


def _dataset(
    name: str,
    places: DataRoots,
    folder: Path,
    recordings: Sequence[_Recording],
    words: Sequence[str],
    tested: Array,
) -> Dataset:
    files = [recording.file for recording in recordings]
    x = load_or_make(places, folder, files, RECIPE, lambda: {"x": read_spectrograms(files)})["x"]
    y = np.array([words.index(recording.word) for recording in recordings], np.int64)
    names = [recording.speaker for recording in recordings]  # all empty if the pattern names no speaker
    [speakers], owners = number_groups(folder, [np.array(names) if any(names) else None])
    whole = Examples(x, y, speakers, owners)
    return Dataset(
        name=name,
        train=whole.select_rows(np.flatnonzero(~tested)),
        test=whole.select_rows(np.flatnonzero(tested)),
        num_classes=len(words),
        input_shape=x.shape[1:],
        classes=tuple(words),
        source=str(folder),
    )
