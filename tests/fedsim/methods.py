"""Every method as tests run it: the defaults, with less of what takes seconds in each round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsim.algorithms import ALGORITHMS
from fedsim.core import Algorithm

QUICK: Mapping[str, Mapping[str, Any]] = {
    "kdia": {"generator_epochs": 2, "generator_batches": 4, "generator_batch_size": 8, "generator_noise": 8},
    "fedgen": {"generator_steps": 6, "generator_batch_size": 8, "generator_noise": 8, "samples": 8},
    "fedcl": {
        "generator_steps": 6,
        "generator_batch_size": 8,
        "generator_noise": 8,
        "samples": 8,
        "draws": 20,
    },
    "fedad": {"server_epochs": 60, "server_batch_size": 20, "server_lr": 0.01, "lambda_att": 0.0},
    "fedkd": {"server_epochs": 60, "server_batch_size": 20, "server_lr": 0.01},
    "feddf": {"steps": 12, "batch_size": 12, "check_every": 4, "patience": 8, "lr": 0.003},
    "fedcog": {"start_round": 1, "samples": 12, "descent": 3},
}

FREEZING: Mapping[str, Any] = {
    **QUICK["fedcl"],
    "levels": (0.9, 0.6),
    "order": "descending",
    "v": 0.5,
    "finished": 0.9,
    "cap": 8,
}
"""FedCL so that clients freeze from the first round on: of ten with six in a round, in rounds 1 to 4."""


def quick(name: str) -> Algorithm:
    """A method by its name in the registry."""
    return ALGORITHMS[name](**QUICK.get(name, {}))
