"""Uploads: attacks on clients' updates, their privacy, and robust aggregation, around any algorithm."""

from fedsim.uploads.aggregators import AGGREGATORS, Aggregator
from fedsim.uploads.attacked_clients import AttackedClients
from fedsim.uploads.attacks import ATTACKS, Attack
from fedsim.uploads.private_updates import AdaptiveClip, PrivateUpdates
from fedsim.uploads.robust_aggregation import RobustAggregation

__all__ = [
    "AGGREGATORS",
    "ATTACKS",
    "AdaptiveClip",
    "Aggregator",
    "Attack",
    "AttackedClients",
    "PrivateUpdates",
    "RobustAggregation",
]
