"""Values of environment variables, read with errors that name the variable and the way out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedsim.errors import SettingsError

SECRETS_VARIABLE = "FEDSIM_SECRETS"
"""The variable that names a JSON file of secret variables, for a process whose environment is public."""


def read_secrets_file(env: Mapping[str, str]) -> dict[str, str]:
    """Read the variables in the file that `FEDSIM_SECRETS` names; they override the environment."""
    path = env.get(SECRETS_VARIABLE)
    if not path:
        return {}
    try:
        found = json.loads(Path(path).read_text("utf-8"))
        return {str(name): str(value) for name, value in found.items()}
    except (OSError, ValueError, AttributeError) as error:
        if env.get("FEDSIM_DATABASE_URL"):
            return {}
        raise SettingsError(
            f"{SECRETS_VARIABLE} is {path!r}, and that file cannot be read: {error}",
            "share FEDSIM_HOME with the head of the cluster, or set FEDSIM_DATABASE_URL where Ray is started",
        ) from error


def read_whole_number(env: Mapping[str, str], name: str, *, minimum: int) -> int | None:
    """Read a whole number from the environment; None if the variable is unset or empty."""
    text = env.get(name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < minimum:
        raise SettingsError(
            f"{name} is {text!r}", f"set it to a whole number of at least {minimum}, or unset it"
        )
    return int(text)


def read_choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """Read a word from the environment; the first allowed word if the variable is unset or empty."""
    text = env.get(name, "").strip() or allowed[0]
    if text not in allowed:
        words = " or ".join(filter(None, allowed))
        raise SettingsError(f"{name} is {text!r}", f"set it to {words}, or unset it")
    return text


def read_switch(env: Mapping[str, str], name: str) -> bool | None:
    """Read 0 or 1 from the environment; None if the variable is unset or empty."""
    return {"": None, "0": False, "1": True}[read_choice(env, name, ("", "0", "1"))]
