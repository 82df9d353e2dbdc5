"""What is wrong with a request's parameters or body, from pydantic's words to ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsim.errors import FieldError

MOST_FAULTS = 100
"""So many faults are told in one answer, however many there are."""

MAX_NAME_LETTERS = 200

OPENAPI_HINT = "GET /api/v1/openapi.json describes this request"

MESSAGES: dict[str, tuple[str, str]] = {
    "missing": ("is missing", "{model}"),
    "extra_forbidden": ("is no field of this request", "{model}"),
    "model_type": ("is not a mapping of fields", "{model}"),
    "dict_type": ("is not a mapping of fields", "write {{name: value}}"),
    "string_type": ("is not a text", "write a text"),
    "string_too_short": ("is too short", "characters: at least {min_length}"),
    "string_too_long": ("is too long", "characters: at most {max_length}"),
    "string_pattern_mismatch": ("is not of the right form", "it has to match {pattern}"),
    "too_many": ("{count:,} are too many", "at most {most}"),
    "too_long": ("are too many", "at most {max_length}"),
    "too_short": ("are too few", "at least {min_length}"),
    "int_type": ("is not a whole number", "write a whole number"),
    "int_parsing": ("is not a whole number", "write a whole number"),
    "int_from_float": ("is not a whole number", "write a whole number"),
    "int_parsing_size": ("is too large", "write a smaller number"),
    "bool_parsing": ("is neither true nor false", "write true or false"),
    "greater_than_equal": ("is too small", "at least {ge}"),
    "less_than_equal": ("is too large", "at most {le}"),
    "literal_error": ("is none of what there is", "one of {expected}"),
    "enum": ("is none of what there is", "one of {expected}"),
}
"""Message and hint for kinds of faults that pydantic words for programmers."""


def make_field_error(item: Mapping[str, Any]) -> FieldError:
    """Make a fault of one that pydantic found; its context may name the fields of the `model`."""
    # The first part of a location says whether it is a query, path, header or body; people know that.
    path = ".".join(str(part)[:MAX_NAME_LETTERS] for part in item["loc"][1:]) or str(item["loc"][0])
    context = {"model": OPENAPI_HINT} | item.get("ctx", {})
    if item["type"] in MESSAGES:
        message, hint = (text.format_map(context) for text in MESSAGES[item["type"]])
    else:
        message, hint = item["msg"][:1].lower() + item["msg"][1:], OPENAPI_HINT
    return FieldError(path, None if item["type"] == "missing" else item.get("input"), message, hint)
