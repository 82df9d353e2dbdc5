"""Error messages for the parameters and the body of a request, from pydantic's errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsim.errors import FieldError

MOST_FAULTS = 100
"""Most errors in one answer."""

MAX_NAME_LETTERS = 200

OPENAPI_HINT = "GET /api/v1/openapi.json describes this request"

MESSAGES: dict[str, tuple[str, str]] = {
    "missing": ("is missing", "{model}"),
    "extra_forbidden": ("unknown field", "{model}"),
    "model_type": ("must be an object, such as {{name: value}}", "{model}"),
    "dict_type": ("must be an object, such as {{name: value}}", "write {{name: value}}"),
    "string_type": ("must be a string", "write a string"),
    "string_too_short": ("is too short", "characters: at least {min_length}"),
    "string_too_long": ("is too long", "characters: at most {max_length}"),
    "string_pattern_mismatch": ("has the wrong form", "it must match {pattern}"),
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
    "literal_error": ("is not an allowed value", "one of {expected}"),
    "enum": ("is not an allowed value", "one of {expected}"),
}
"""Message and hint for each error type of pydantic."""


def make_field_error(item: Mapping[str, Any]) -> FieldError:
    """Make a field error from an error of pydantic; its context may name the fields of the `model`."""
    # Without the first part of the location: query, path, header or body.
    path = ".".join(str(part)[:MAX_NAME_LETTERS] for part in item["loc"][1:]) or str(item["loc"][0])
    context = {"model": OPENAPI_HINT} | item.get("ctx", {})
    if item["type"] in MESSAGES:
        message, hint = (text.format_map(context) for text in MESSAGES[item["type"]])
    else:
        message, hint = item["msg"][:1].lower() + item["msg"][1:], OPENAPI_HINT
    return FieldError(path, None if item["type"] == "missing" else item.get("input"), message, hint)
