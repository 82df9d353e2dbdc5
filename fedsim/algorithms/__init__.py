"""The algorithms, by the name that a spec gives them (`algorithm.name`)."""

from __future__ import annotations

from inspect import isabstract
from typing import Any

from fedsim.algorithms.averaging.afl import AFL
from fedsim.algorithms.averaging.fedavgm import FedAvgM
from fedsim.algorithms.averaging.fedcog import FedCOG
from fedsim.algorithms.averaging.feddc import FedDC
from fedsim.algorithms.averaging.feddisco import FedDisco
from fedsim.algorithms.averaging.feddyn import FedDyn
from fedsim.algorithms.averaging.fedexp import FedExP
from fedsim.algorithms.averaging.fedgkd import FedGKD
from fedsim.algorithms.averaging.fedlc import FedLC
from fedsim.algorithms.averaging.fednova import FedNova
from fedsim.algorithms.averaging.fedntd import FedNTD
from fedsim.algorithms.averaging.fedopt import FedAdagrad, FedAdam, FedYogi
from fedsim.algorithms.averaging.fedprox import FedProx
from fedsim.algorithms.averaging.fedrs import FedRS
from fedsim.algorithms.averaging.fedsam import FedSAM
from fedsim.algorithms.averaging.mimelite import MimeLite
from fedsim.algorithms.averaging.moon import Moon
from fedsim.algorithms.averaging.qfedavg import QFedAvg
from fedsim.algorithms.averaging.scaffold import Scaffold
from fedsim.algorithms.distillation.ace_pfl import AcePFL
from fedsim.algorithms.distillation.fedad import FedAD
from fedsim.algorithms.distillation.feddf import FedDF
from fedsim.algorithms.distillation.feddistill import FedDistill, FedDistillPlus
from fedsim.algorithms.distillation.fedensemble import FedEnsemble
from fedsim.algorithms.distillation.fedkd import FedKD
from fedsim.algorithms.distillation.kt_pfl import KTpFL
from fedsim.algorithms.fedavg import FedAvg
from fedsim.algorithms.generators.fedcl import FedCL
from fedsim.algorithms.generators.fedcl_code import FedCLCode
from fedsim.algorithms.generators.fedgen import FedGen
from fedsim.algorithms.generators.kdia import KDIA
from fedsim.algorithms.personalized.apfl import APFL
from fedsim.algorithms.personalized.cd2_pfed import CD2PFed
from fedsim.algorithms.personalized.cfl import CFL
from fedsim.algorithms.personalized.clustered_fedavg import ClusteredFedAvg
from fedsim.algorithms.personalized.ditto import Ditto
from fedsim.algorithms.personalized.fedala import FedALA
from fedsim.algorithms.personalized.fedbabu import FedBABU
from fedsim.algorithms.personalized.fedbn import FedBN
from fedsim.algorithms.personalized.fedpac import FedPAC
from fedsim.algorithms.personalized.fedper import FedPer
from fedsim.algorithms.personalized.fedproto import FedProto
from fedsim.algorithms.personalized.fedrep import FedRep
from fedsim.algorithms.personalized.fedrod import FedROD
from fedsim.algorithms.personalized.ifca import IFCA
from fedsim.algorithms.personalized.layer_schedule import LayerSchedule
from fedsim.algorithms.personalized.lg_fedavg import LGFedAvg
from fedsim.algorithms.personalized.per_fedavg import PerFedAvg
from fedsim.algorithms.personalized.pfedme import PFedMe
from fedsim.core import Algorithm
from fedsim.plugins import Registry

_OWN: dict[str, type[Algorithm]] = {
    "ace_pfl": AcePFL,
    "afl": AFL,
    "apfl": APFL,
    "cd2_pfed": CD2PFed,
    "cfl": CFL,
    "clustered_fedavg": ClusteredFedAvg,
    "ditto": Ditto,
    "fedad": FedAD,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedala": FedALA,
    "fedavg": FedAvg,
    "fedbabu": FedBABU,
    "fedavgm": FedAvgM,
    "fedbn": FedBN,
    "fedcl": FedCL,
    "fedcl_code": FedCLCode,
    "fedcog": FedCOG,
    "feddc": FedDC,
    "feddf": FedDF,
    "feddisco": FedDisco,
    "feddistill": FedDistill,
    "feddistill_plus": FedDistillPlus,
    "feddyn": FedDyn,
    "fedensemble": FedEnsemble,
    "fedexp": FedExP,
    "fedgen": FedGen,
    "fedgkd": FedGKD,
    "fedkd": FedKD,
    "fedlc": FedLC,
    "fednova": FedNova,
    "fedntd": FedNTD,
    "fedpac": FedPAC,
    "fedper": FedPer,
    "fedprox": FedProx,
    "fedproto": FedProto,
    "fedrep": FedRep,
    "fedrod": FedROD,
    "fedsam": FedSAM,
    "fedyogi": FedYogi,
    "fedrs": FedRS,
    "ifca": IFCA,
    "kdia": KDIA,
    "kt_pfl": KTpFL,
    "layer_schedule": LayerSchedule,
    "lg_fedavg": LGFedAvg,
    "mimelite": MimeLite,
    "moon": Moon,
    "per_fedavg": PerFedAvg,
    "pfedme": PFedMe,
    "qfedavg": QFedAvg,
    "scaffold": Scaffold,
}


def _is_algorithm_class(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Algorithm) and not isabstract(thing)


_ABSENT = ("fedamp", "fedcp", "fedopt", "fedsgd", "pfedhn", "pfedsim")
"""Names of the literature that fedsim does not have, and that are close to names that it has."""

ALGORITHMS = Registry(
    "algorithms",
    "algorithm",
    _OWN,
    _is_algorithm_class,
    "a whole subclass of fedsim.core.Algorithm",
    absent=_ABSENT,
)

__all__ = [
    "AFL",
    "ALGORITHMS",
    "APFL",
    "CFL",
    "IFCA",
    "KDIA",
    "AcePFL",
    "CD2PFed",
    "ClusteredFedAvg",
    "Ditto",
    "FedAD",
    "FedALA",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedCL",
    "FedCLCode",
    "FedCOG",
    "FedDC",
    "FedDF",
    "FedDisco",
    "FedDistill",
    "FedDistillPlus",
    "FedDyn",
    "FedEnsemble",
    "FedExP",
    "FedGKD",
    "FedGen",
    "FedKD",
    "FedLC",
    "FedNTD",
    "FedNova",
    "FedPAC",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedROD",
    "FedRS",
    "FedRep",
    "FedSAM",
    "FedYogi",
    "KTpFL",
    "LGFedAvg",
    "LayerSchedule",
    "MimeLite",
    "Moon",
    "PFedMe",
    "PerFedAvg",
    "QFedAvg",
    "Scaffold",
]
