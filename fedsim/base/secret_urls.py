"""Passwords in URLs: which parts of one must never be read by others, and the URL without them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import unquote, unquote_plus, urlsplit

HIDDEN = "***"

SECRET_NAME = re.compile(
    r"pass(word|wd|phrase|code)?$|pwd$|secret|token|credential|signature|(^|[_-])(sig|key)$|accesskey$",
    re.IGNORECASE,
)
"""The names of parameters whose values are nobody's business."""

_PARAMETER = re.compile(r"([?&;])([^=&;#\s]+)=([^&;#\s]+)")


def find_secrets(url: str) -> frozenset[str]:
    """Name the passwords in a URL, each as it stands there and as it is meant."""
    found = {value for name, value in _parameters(url) if SECRET_NAME.search(unquote(name))}
    with suppress(ValueError):  # brackets that are no address
        found.add(urlsplit(url).password or "")
    meant = {decode(text) for text in found for decode in (unquote, unquote_plus)}
    return frozenset((found | meant) - {""})


def remove_secrets(url: str) -> str:
    """Give a URL without who logs in with what password, and without the secrets among its parameters."""
    url = re.sub(r"//[^/?#]*@", f"//{HIDDEN}@", url)

    def hide_parameter(match: re.Match[str]) -> str:
        mark, name, value = match.groups()
        return f"{mark}{name}={HIDDEN if SECRET_NAME.search(unquote(name)) else value}"

    return _PARAMETER.sub(hide_parameter, url)


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace every secret that stands in a text, the longest first: one may be a part of another."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _parameters(url: str) -> list[tuple[str, str]]:
    return [(name, value) for _, name, value in _PARAMETER.findall(url)]
