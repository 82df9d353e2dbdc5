"""The methods, by the name that a spec gives them."""

from __future__ import annotations

from inspect import isabstract
from typing import Any

from fedsim.algorithms.ace_pfl import AcePFL
from fedsim.algorithms.cd2_pfed import CD2PFed
from fedsim.algorithms.fedad import FedAD
from fedsim.algorithms.fedala import FedALA
from fedsim.algorithms.fedavg import FedAvg
from fedsim.algorithms.fedavgm import FedAvgM
from fedsim.algorithms.fedbabu import FedBABU
from fedsim.algorithms.fedcl import FedCL
from fedsim.algorithms.fedcog import FedCOG
from fedsim.algorithms.feddf import FedDF
from fedsim.algorithms.feddisco import FedDisco
from fedsim.algorithms.feddistill import FedDistill, FedDistillPlus
from fedsim.algorithms.fedensemble import FedEnsemble
from fedsim.algorithms.fedgen import FedGen
from fedsim.algorithms.fedgkd import FedGKD
from fedsim.algorithms.fedkd import FedKD
from fedsim.algorithms.fednova import FedNova
from fedsim.algorithms.fedper import FedPer
from fedsim.algorithms.fedprox import FedProx
from fedsim.algorithms.fedrep import FedRep
from fedsim.algorithms.fedrod import FedROD
from fedsim.algorithms.kdia import KDIA
from fedsim.algorithms.kt_pfl import KTpFL
from fedsim.algorithms.layer_schedule import LayerSchedule
from fedsim.algorithms.lg_fedavg import LGFedAvg
from fedsim.algorithms.moon import Moon
from fedsim.algorithms.per_fedavg import PerFedAvg
from fedsim.algorithms.pfedme import PFedMe
from fedsim.algorithms.scaffold import Scaffold
from fedsim.core import Algorithm
from fedsim.plugins import Registry

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
