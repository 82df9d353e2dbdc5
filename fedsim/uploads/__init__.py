"""Uploads: attacks, privacy, compression and robust aggregation of updates, around any algorithm."""

from fedsim.uploads.aggregators import AGGREGATORS, Aggregator
from fedsim.uploads.attacked_clients import AttackedClients
from fedsim.uploads.attacks import ATTACKS, Attack
from fedsim.uploads.compressed_updates import CompressedUpdates
from fedsim.uploads.compressors import COMPRESSORS, Compressor
from fedsim.uploads.private_updates import AdaptiveClip, PrivateUpdates
from fedsim.uploads.robust_aggregation import RobustAggregation

__all__ = [
    "AGGREGATORS",
    "ATTACKS",
    "COMPRESSORS",
    "AdaptiveClip",
    "Aggregator",
    "Attack",
    "AttackedClients",
    "CompressedUpdates",
    "Compressor",
    "PrivateUpdates",
    "RobustAggregation",
]
