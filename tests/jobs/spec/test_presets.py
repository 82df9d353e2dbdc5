"""Nothing is misspelt in a preset, nor in what its comments say to set, be its data here or not."""

from __future__ import annotations

import io
import re
import shlex
from typing import NamedTuple

import pytest

from fedsim.errors import FieldError, SpecError
from jobs.spec import apply_overrides, parse_spec, parse_text, preset_text, presets
from jobs.spec.checks.name_checks import find_name_faults

Items = tuple[str, ...]
"""`--set` items that belong together."""

OPTION = "--set "

OTHERS = re.compile(r"\((?:[^();]*; (?=or ))??(?:or )?([\w.=-]+(?:, (?:or )?[\w.=-]+)*)(?:[;:][^()]*)?\)")
"""Other values in brackets, each a single word: (0.7, 0.8; 1.0: as printed), (section 5.3; or even)."""


class Option(NamedTuple):
    """One `--set` of a comment.

    Attributes:
        item: its PATH=VALUE.
        others: what the brackets after it name in its place.
        last: whether what follows is another variant, as two spaces before it say.
    """

    item: str
    others: Items
    last: bool


def commented(text: str) -> list[str]:
    """The comment lines that say what to set, each with those that go on with it: they have no label."""
    lines: list[str] = []
    for comment in re.findall(r"^ *#(.*)$", text, re.MULTILINE):
        if lines and comment.startswith(" " * 20):
            lines[-1] += f" {comment.strip()}"
        else:
            lines.append(comment)
    return [line for line in lines if OPTION in line]


def options(line: str) -> list[Option]:
    """The options of a line, in order."""
    found = []
    for part in line.split(OPTION)[1:]:
        stream = io.StringIO(part)
        # One token as a shell reads it, and no more: what follows is prose, with apostrophes of its own.
        lexer = shlex.shlex(stream, posix=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        item = (lexer.get_token() or "").rstrip("`.,;")
        rest = part[stream.tell() - 1 :]
        brackets = OTHERS.match(rest.lstrip())
        words = re.split(r", (?:or )?", brackets[1]) if brackets else []
        path = item.partition("=")[0]
        others = tuple(word if "=" in word else f"{path}={word}" for word in words)
        found.append(Option(item, others, rest.endswith("  ")))
    return found


def variants(text: str) -> list[Items]:
    """What the comments of a preset name: options that stand together, and again with each other value."""
    found: list[Items] = []
    for line in commented(text):
        together: Items = ()
        for option in options(line):
            found += [(*together, other) for other in option.others]
            together = (*together, option.item)
            if option.last:
                found.append(together)
                together = ()
        if together:
            found.append(together)
    return found


def referred(text: str) -> list[str]:
    """The presets whose variants are this one's as well."""
    return re.findall(r"`([\w-]+)` lists the options for the other experiments", text)


def faults_of(text: str, items: Items = ()) -> list[FieldError]:
    """What is wrong with a preset when these items are set."""
    try:
        return find_name_faults(parse_spec(apply_overrides(parse_text(text), items)))
    except SpecError as error:
        return error.errors


@pytest.mark.parametrize("name", list(presets()))
def test_nothing_is_misspelt_in_a_preset_and_in_what_its_comments_name(name: str) -> None:
    text = preset_text(name)
    lines = commented(text)
    assert sum(len(options(line)) for line in lines) == text.count(OPTION.strip())
    named = [items for other in (text, *map(preset_text, referred(text))) for items in variants(other)]
    wrong = {items: found for items in [(), *named] if (found := faults_of(text, items))}
    assert not wrong


COMMENTS = """\
# Its other cells, in the authors' words (Table 1):
#   strength (T. 2)   --set algorithm.mu=0.5 (0.7, 0.8; 1.0: as printed) --set rounds=3     (T. 4, 5)
#   methods           --set algorithm=fedavg    --set 'algorithm={name: moon, mu: 5.0}'  (or fedbabu, fedprox)
#   levels            --set 'algorithm.levels=[0.4, 0.8]', [0.3] or
#                     [0.2, 0.6]; it's --set algorithm.order=anti (section 5.3; or even, or plateau)
#   other data        --set data.partition.beta=0.9   (or data.partition=iid)
# It is for GPUs: `--set resources.gpus_per_worker=0.25`.
algorithm: {name: fedprox, mu: 0.1}   # not --set here
"""


def test_variants_are_read_as_they_are_written() -> None:
    levels = "algorithm.levels=[0.4, 0.8]"
    assert variants(COMMENTS) == [
        ("algorithm.mu=0.7",),
        ("algorithm.mu=0.8",),
        ("algorithm.mu=0.5", "rounds=3"),
        ("algorithm=fedavg",),
        ("algorithm=fedbabu",),
        ("algorithm=fedprox",),
        ("algorithm={name: moon, mu: 5.0}",),
        (levels, "algorithm.order=even"),
        (levels, "algorithm.order=plateau"),
        (levels, "algorithm.order=anti"),
        ("data.partition=iid",),
        ("data.partition.beta=0.9",),
        ("resources.gpus_per_worker=0.25",),
    ]


@pytest.mark.parametrize(
    ("right", "wrong", "path"),
    [
        ("algorithm.lambda_gen=0 ", "algorithm.lambda_gne=0 ", "algorithm.lambda_gne"),
        ("{name: moon, mu: 5.0}", "{name: moon, nu: 5.0}", "algorithm.nu"),
        ("--set algorithm=feddisco ", "--set algorithm=feddisko ", "algorithm.name"),
        ("data.partition.beta=5.0", "data.partition.bta=5.0", "data.partition.bta"),
        ("(or interval, count, volume)", "(or interval, cuont, volume)", "algorithm.weights"),
        ("model: moon_cnn", "model: moon_cn", "model.name"),
    ],
)
def test_what_is_misspelt_in_a_preset_is_found(right: str, wrong: str, path: str) -> None:
    text = preset_text("kdia-cifar10")
    assert right in text
    mistaken = text.replace(right, wrong)
    found = [fault.path for items in [(), *variants(mistaken)] for fault in faults_of(mistaken, items)]
    assert path in found
