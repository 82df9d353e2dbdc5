"""Ray's errors for dead actors, lost objects and lost nodes, and fedsim's errors for them."""

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

from fedsim.base.error_attribution import MEMORY_HINT, is_out_of_memory
from fedsim.errors import FedsimError, OutOfMemory, PoolFailed

ACTOR_DEATH_ERRORS = (RayActorError, OutOfMemoryError, WorkerCrashedError, NodeDiedError)
"""Errors that mean a dead actor. The `OutOfMemoryError` of Ray's memory monitor is no `RayActorError`."""

LOST_OBJECT_ERRORS = (ObjectLostError,)
"""Errors that mean a lost object: its node or its owner is gone."""

LOST_RAYLET = ("Broken pipe", "Connection reset", "raylet")
"""Words of Ray's errors for a raylet that does not answer any more."""

MEMORY_MONITOR = ("running low on memory", "memory usage threshold")
"""Words of Ray's memory monitor. (Ray names the kernel's OOM killer as a possible cause of every death.)"""


def unwrap_task_error(error: RayTaskError, who: str) -> Exception:
    """Return the error that an actor's code raised; return Ray's own error for a death.

    Args:
        error: Ray's error around it.
        who: the actor's name, for the message of an `OutOfMemory` error.
    """
    if isinstance(error, ACTOR_DEATH_ERRORS) or not isinstance(error.cause, Exception):
        return error
    if is_out_of_memory(error.cause):
        return OutOfMemory(f"{who} ran out of memory: {first_line(error.cause)}", MEMORY_HINT)
    return error.cause


def has_lost_raylet(error: BaseException) -> bool:
    """Return whether a call of Ray failed because the raylet of its node is gone.

    Ray raises a plain `OSError` for it, without the number that the errors of the system have.
    """
    return type(error) is OSError and error.errno is None and any(w in str(error) for w in LOST_RAYLET)


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether Ray killed an actor because its node ran out of memory."""
    return isinstance(error, OutOfMemoryError) or any(words in str(error) for words in MEMORY_MONITOR)


def make_death_error(what: str, times: int, error: Exception) -> FedsimError:
    """Make the error for actors that died each time their work was repeated.

    Args:
        what: the start of the message, such as "the coordinator died".
        times: how many actors died.
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
    """Return the first line of Ray's message; the other lines list processes."""
    return str(error).strip().partition("\n")[0]


def living_nodes() -> set[str]:
    """Return the ids of the nodes that the cluster counts as alive."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
