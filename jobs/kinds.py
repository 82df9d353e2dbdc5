"""The kinds of names in a spec, which the catalogue lists.

It stands outside of `jobs.spec`, whose libraries would keep `fedsim --help` waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal[
    "algorithms",
    "models",
    "datasets",
    "partitions",
    "samplers",
    "attacks",
    "aggregators",
    "compressors",
    "optimizers",
    "schedules",
    "fleets",
    "policies",
]

KINDS: Mapping[Kind, tuple[str, str]] = {
    "models": ("model", "List the models, and whether clients can be stacked (trained at once as one loop)."),
    "datasets": ("data set", "List the data sets and the folders where fedsim looks for their files."),
    "partitions": ("partition", "List the partitions: ways to divide a data set among clients."),
    "samplers": ("sampler", "List the samplers: ways to select the clients of a round (clients.sampler)."),
    "attacks": ("attack", "List the attacks of malicious clients (attack)."),
    "aggregators": (
        "aggregator",
        "List the robust rules in place of the mean of the clients' models (aggregation).",
    ),
    "compressors": ("compressor", "List the compressors of what clients send (compression)."),
    "optimizers": ("optimizer", "List the optimizers of local steps (local.optimizer)."),
    "schedules": ("schedule", "List the schedules of the learning rate (local.schedule)."),
    "fleets": ("fleet", "List the fleets: the devices of the clients (devices.fleet)."),
    "policies": ("policy", "List the policies: for whom the server waits (devices.policy)."),
}
"""The word for one entry of each list, and the help of its command and route; `algorithms` has its own."""
