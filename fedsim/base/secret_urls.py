"""Secrets in URLs, such as passwords and tokens: find them, and hide them in URLs and texts."""

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
"""Names of URL parameters whose values are secret, such as `password`, `token` and `sig`."""

_PARAMETER = re.compile(r"([?&;])([^=&;#\s]+)=([^&;#\s]+)")


def find_secrets(url: str) -> frozenset[str]:
    """Return the secrets in a URL, each as it is written and decoded: `a%20b` and `a b`."""
    found = {value for name, value in _parameters(url) if SECRET_NAME.search(unquote(name))}
    with suppress(ValueError):  # the brackets hold no IPv6 address
        found.add(urlsplit(url).password or "")
    meant = {decode(text) for text in found for decode in (unquote, unquote_plus)}
    return frozenset((found | meant) - {""})


def remove_secrets(url: str) -> str:
    """Replace the user, the password and the secret parameters of a URL by `***`."""
    url = re.sub(r"//[^/?#]*@", f"//{HIDDEN}@", url)

    def hide_parameter(match: re.Match[str]) -> str:
        mark, name, value = match.groups()
        return f"{mark}{name}={HIDDEN if SECRET_NAME.search(unquote(name)) else value}"

    return _PARAMETER.sub(hide_parameter, url)


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace every secret in a text by `***`, the longest first: one secret may be a part of another."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _parameters(url: str) -> list[tuple[str, str]]:
    return [(name, value) for _, name, value in _PARAMETER.findall(url)]
