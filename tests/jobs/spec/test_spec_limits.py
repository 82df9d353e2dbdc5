"""What a spec's text may cost to read: sizes, numbers of values, depths."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedsim.errors import SpecError
from jobs.spec.error_messages import shorten_value
from jobs.spec.spec_text import apply_overrides, parse_text, set_fields

PAIRS = "".join(f'"{number}": 1,' for number in range(60_000))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("k: " + "x" * 100_000, "longer than 100,000 characters, which is the most for YAML"),
        ("k: [" + "1," * 20_000 + "]", "more than 20,000 keys and values"),
        ("{" + PAIRS + '"59999": 1}', "'59999' stands twice"),
        ("{" + '"a": 1,' * 20_000, "property name"),
        ('{"a":' * 50 + "1" + "}" * 50, "deeply"),
        ('{"a":' * 900 + "1" + "}" * 900, "deeply"),
    ],
    ids=["long", "many", "twice", "broken", "deep", "deeper"],
)
def test_a_text_that_would_take_long_to_read_is_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_text(text)
    (fault,) = caught.value.errors
    assert fault.path == "spec"
    assert words in fault.message


def test_a_path_without_end_is_refused() -> None:
    deep = ".".join("a" * 1001)
    for overridden in (lambda: apply_overrides({}, [f"{deep}=1"]), lambda: set_fields({}, {deep: 1})):
        with pytest.raises(SpecError) as caught:
            overridden()
        (fault,) = caught.value.errors
        assert (fault.message, len(fault.path)) == ("is a path of 1,001 parts", 200)


def test_a_value_too_deep_to_be_written_out_is_named_so() -> None:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    with pytest.raises(RecursionError):
        json.dumps(value)
    assert shorten_value(value) == "a value that is nested too deeply to be shown"
