"""The text of an error of somebody else's code."""

from __future__ import annotations

from fedsim.base.error_attribution import format_error


def test_every_file_can_hold_the_text_of_an_error() -> None:
    text = format_error(OSError("cannot read caf\udce9.png"))  # as Python reads a name that is not UTF-8
    assert text == "OSError: cannot read caf\\udce9.png"
    assert text.encode()
