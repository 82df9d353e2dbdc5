"""Uploads: what happens to clients' updates between local training and `Algorithm.aggregate`.

Each step is a wrapper around any algorithm whose uploads are model updates
(`fedsim.uploads.model_updates`). The order is fixed (`jobs.spec.upload_wrappers`). At a client: local
training (by private steps, with privacy for examples), attack, clipping and noise of local privacy,
compression. At the server: colluding attackers, then a robust rule in place of the mean; or the noise of
central privacy on the sum. Secure aggregation hides the single updates from the server, and counts what that
costs. Privacy for examples and weights by losses (`TiltedWeights`) are innermost.
"""

from fedsim.uploads.aggregators import AGGREGATORS, Aggregator
from fedsim.uploads.attacked_clients import AttackedClients
from fedsim.uploads.attacks import ATTACKS, Attack
from fedsim.uploads.compressed_updates import CompressedUpdates
from fedsim.uploads.compressors import COMPRESSORS, Compressor
from fedsim.uploads.private_examples import PrivateExamples
from fedsim.uploads.private_updates import AdaptiveClip, PrivateUpdates
from fedsim.uploads.robust_aggregation import RobustAggregation
from fedsim.uploads.secure_aggregation import SecureAggregation
from fedsim.uploads.tilted_weights import TiltedWeights

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
    "PrivateExamples",
    "PrivateUpdates",
    "RobustAggregation",
    "SecureAggregation",
    "TiltedWeights",
]
