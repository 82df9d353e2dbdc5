"""The methods, by the name that a spec gives them."""

from __future__ import annotations

from inspect import isabstract
from typing import Any

from ..core import Algorithm
from ..plugins import Registry
from .ace_pfl import AcePFL
from .cd2_pfed import CD2PFed
from .fedad import FedAD
from .fedala import FedALA
from .fedavg import FedAvg
from .fedavgm import FedAvgM
from .fedbabu import FedBABU
from .fedcl import FedCL
from .fedcog import FedCOG
from .feddf import FedDF
from .feddisco import FedDisco
from .feddistill import FedDistill, FedDistillPlus
from .fedensemble import FedEnsemble
from .fedgen import FedGen
from .fedgkd import FedGKD
from .fedkd import FedKD
from .fednova import FedNova
from .fedper import FedPer
from .fedprox import FedProx
from .fedrep import FedRep
from .fedrod import FedROD
from .kdia import KDIA
from .kt_pfl import KTpFL
from .layer_schedule import LayerSchedule
from .lg_fedavg import LGFedAvg
from .moon import Moon
from .per_fedavg import PerFedAvg
from .pfedme import PFedMe
from .scaffold import Scaffold

_OWN: dict[str, type[Algorithm]] = {
    "ace_pfl": AcePFL,
    "cd2_pfed": CD2PFed,
    "fedad": FedAD,
    "fedala": FedALA,
    "fedavg": FedAvg,
    "fedbabu": FedBABU,
    "fedavgm": FedAvgM,
    "fedcl": FedCL,
    "fedcog": FedCOG,
    "feddf": FedDF,
    "feddisco": FedDisco,
    "feddistill": FedDistill,
    "feddistill_plus": FedDistillPlus,
    "fedensemble": FedEnsemble,
    "fedgen": FedGen,
    "fedgkd": FedGKD,
    "fedkd": FedKD,
    "fednova": FedNova,
    "fedper": FedPer,
    "fedprox": FedProx,
    "fedrep": FedRep,
    "fedrod": FedROD,
    "kdia": KDIA,
    "kt_pfl": KTpFL,
    "layer_schedule": LayerSchedule,
    "lg_fedavg": LGFedAvg,
    "moon": Moon,
    "per_fedavg": PerFedAvg,
    "pfedme": PFedMe,
    "scaffold": Scaffold,
}


def _fits(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Algorithm) and not isabstract(thing)


ALGORITHMS = Registry("algorithms", "algorithm", _OWN, _fits, "a whole subclass of fedsim.core.Algorithm")

__all__ = [
    "ALGORITHMS",
    "KDIA",
    "AcePFL",
    "CD2PFed",
    "FedAD",
    "FedALA",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedCL",
    "FedCOG",
    "FedDF",
    "FedDisco",
    "FedDistill",
    "FedDistillPlus",
    "FedEnsemble",
    "FedGKD",
    "FedGen",
    "FedKD",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedROD",
    "FedRep",
    "KTpFL",
    "LGFedAvg",
    "LayerSchedule",
    "Moon",
    "PFedMe",
    "PerFedAvg",
    "Scaffold",
]
