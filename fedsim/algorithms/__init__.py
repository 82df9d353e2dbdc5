"""The methods, by the name that a spec gives them."""

from __future__ import annotations

from collections.abc import Mapping

from ..core import Algorithm
from .fedavg import FedAvg
from .fedprox import FedProx

ALGORITHMS: Mapping[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
}

__all__ = ["ALGORITHMS", "FedAvg", "FedProx"]
