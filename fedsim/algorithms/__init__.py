"""The methods, by the name that a spec gives them."""

from __future__ import annotations

from collections.abc import Mapping

from ..core import Algorithm
from .fedavg import FedAvg
from .fednova import FedNova
from .fedprox import FedProx
from .scaffold import Scaffold

ALGORITHMS: Mapping[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fednova": FedNova,
    "fedprox": FedProx,
    "scaffold": Scaffold,
}

__all__ = ["ALGORITHMS", "FedAvg", "FedNova", "FedProx", "Scaffold"]
