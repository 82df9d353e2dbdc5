"""Purposes: what an algorithm is for, in words that users search by (`fedsim algorithms --for PURPOSE`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedsim.errors import FieldError, RequestError

PURPOSES: Mapping[str, str] = {
    "client-drift": "local training moves the clients' models apart",
    "clustering": "groups of similar clients learn together",
    "communication": "far fewer bytes than FedAvg",
    "curriculum": "clients learn in the order of difficulty",
    "distillation": "models learn from the predictions of other models",
    "fairness": "alike accuracies for all clients",
    "generalisation": "a global model that predicts unseen examples better",
    "label-skew": "clients with unequal shares of the classes",
    "model-heterogeneity": "clients with different architectures learn from one another",
    "personalisation": "a model for each client",
    "privacy": "no model of a client reaches the server",
    "server-optimisation": "the server's step on the clients' mean",
}
"""Every purpose that an algorithm may declare, and its meaning."""


def find_purpose(word: str) -> str:
    """Return the purpose that a word names; case, underscores and American spelling do not matter.

    Raises:
        RequestError: there is no such purpose.

    >>> find_purpose("Personalization")
    'personalisation'
    """
    name = word.strip().lower().replace("_", "-").replace(" ", "-").replace("ization", "isation")
    if name not in PURPOSES:
        raise RequestError([FieldError("for", word, "is no purpose", f"one of: {', '.join(PURPOSES)}")])
    return name


def check_purposes(owner: str, purposes: Iterable[str]) -> None:
    """Raise an error if a class declares an unknown purpose.

    Args:
        owner: name of the class.
        purposes: its declared purposes.

    Raises:
        ValueError: it names the unknown purpose and the known ones.
        TypeError: the purposes are a single string.
    """
    if isinstance(purposes, str):
        raise TypeError(f"{owner}.purposes is the string {purposes!r}; write a tuple: ({purposes!r},)")
    for purpose in purposes:
        if purpose not in PURPOSES:
            raise ValueError(f"{owner}.purposes has {purpose!r}, which is none of {', '.join(PURPOSES)}")
