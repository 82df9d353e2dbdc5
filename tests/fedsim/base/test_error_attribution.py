"""The text of an error of somebody else's code."""

from __future__ import annotations

from fedsim.base.error_attribution import MOST_CHARACTERS, format_error


def test_every_file_can_hold_the_text_of_an_error() -> None:
    text = format_error(OSError("cannot read caf\udce9.png"))  # as Python reads a name that is not UTF-8
    assert text == "OSError: cannot read caf\\udce9.png"
    assert text.encode()


def test_a_huge_message_is_cut_and_its_place_stays() -> None:
    try:
        raise ValueError("7" * 10**6)
    except ValueError as error:
        text = format_error(error)
    assert text.startswith("ValueError: 777")
    assert text.endswith("test_a_huge_message_is_cut_and_its_place_stays)")
    assert len(text) < MOST_CHARACTERS + 200
