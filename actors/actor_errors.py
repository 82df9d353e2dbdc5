"""What Ray says when an actor, an object or a node is gone, told apart."""

from __future__ import annotations

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from fedsim.core.error_attribution import MEMORY_HINT, is_out_of_memory
from fedsim.errors import FedsimError, OutOfMemory, PoolFailed

ACTOR_DEATH_ERRORS = (RayActorError, OutOfMemoryError, WorkerCrashedError, NodeDiedError)
"""An actor is gone. Ray's memory monitor has an error of its own, which is none of an actor's."""

LOST_OBJECT_ERRORS = (ObjectLostError,)
"""An object is gone, with its node or with its owner."""

MEMORY_MONITOR = ("running low on memory", "memory usage threshold")
"""Words of Ray's memory monitor. (Ray names the kernel's OOM killer in every death, as a possible cause.)"""


def unwrap_task_error(error: RayTaskError, who: str) -> Exception:
    """What an actor's code raised, as it was raised; a death that it met as what it is.

    Args:
        error: what Ray made of it.
        who: raised it, in case memory ran out.
    """
    if isinstance(error, ACTOR_DEATH_ERRORS) or not isinstance(error.cause, Exception):
        return error
    if is_out_of_memory(error.cause):
        return OutOfMemory(f"{who} ran out of memory: {first_line(error.cause)}", MEMORY_HINT)
    return error.cause


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an actor was killed because its node ran out of memory."""
    return isinstance(error, OutOfMemoryError) or any(words in str(error) for words in MEMORY_MONITOR)


def make_death_error(what: str, times: int, error: Exception) -> FedsimError:
    """The error for actors that die however often their work is begun again.

    Args:
        what: was tried, as the beginning of a sentence.
        times: how often.
        error: the last death.
    """
    often = f" {times} times" if times > 1 else ""
    if ran_out_of_memory(error):
        return OutOfMemory(
            f"{what}{often}, because their node ran out of memory: {first_line(error)}", MEMORY_HINT
        )
    return PoolFailed(
        f"{what}{often}: {error}",
        "look at the log for the cause; if memory ran out, use fewer workers per node",
    )


def first_line(error: BaseException) -> str:
    """The beginning of what Ray says; the rest is a list of processes."""
    return str(error).strip().partition("\n")[0]


def living_nodes() -> set[str]:
    """The ids of the nodes that the cluster counts as alive."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
