"""The methods, by the name that a spec gives them."""

from __future__ import annotations

from collections.abc import Mapping

from ..core import Algorithm
from .fedavg import FedAvg
from .fedbabu import FedBABU
from .fednova import FedNova
from .fedper import FedPer
from .fedprox import FedProx
from .fedrep import FedRep
from .fedrod import FedROD
from .layer_schedule import LayerSchedule
from .lg_fedavg import LGFedAvg
from .scaffold import Scaffold

ALGORITHMS: Mapping[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedbabu": FedBABU,
    "fednova": FedNova,
    "fedper": FedPer,
    "fedprox": FedProx,
    "fedrep": FedRep,
    "fedrod": FedROD,
    "layer_schedule": LayerSchedule,
    "lg_fedavg": LGFedAvg,
    "scaffold": Scaffold,
}

__all__ = [
    "ALGORITHMS",
    "FedAvg",
    "FedBABU",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedROD",
    "FedRep",
    "LGFedAvg",
    "LayerSchedule",
    "Scaffold",
]
