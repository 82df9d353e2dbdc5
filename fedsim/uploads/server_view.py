"""The server's view: what it learns of single clients beside the sums of their uploads.

Every upload has a mark, its reduction: of a MEAN or a SUM the server needs the sum of a cohort alone; of a
GATHER it reads the payload of every client. Clients also answer questions: a label census before round 1,
and surveys of losses.
"""

from __future__ import annotations

from fedsim.core import Algorithm, Reduction
from fedsim.core.capabilities import ClientInstructions, ClientSurvey, LabelCensus


def explain_single_reads(algorithm: Algorithm | type[Algorithm]) -> str:
    """Return what the server learns of single clients; "" if it sees sums of uploads alone."""
    single = sorted(name for name, kind in algorithm.uploads.items() if kind is Reduction.GATHER)
    if wired := [name for name in single if name not in algorithm.free_uploads]:
        return f"the server reads the payload {wired[0]} of every single client"
    if free := sorted(algorithm.free_uploads):
        return f"the server reads {free[0]}, which it computes from the clients' models"
    if answer := explain_answers(algorithm):
        return answer
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    return "the server sends instructions to single clients" if issubclass(kind, ClientInstructions) else ""


def explain_answers(algorithm: Algorithm | type[Algorithm]) -> str:
    """Return what single clients tell the server beside their uploads; "" for nothing."""
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    if issubclass(kind, LabelCensus):
        return "clients tell the shares of their labels before round 1"
    if issubclass(kind, ClientSurvey):
        return "clients tell the loss of the global model on their examples"
    return ""
