"""The device of an actor: its share of a GPU, or the CPU; never the CPU unnoticed in the place of a GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch

from actors.resources import CUDA_CONTEXT_BYTES
from fedsim.errors import DoesNotFit

LOGICAL_GPUS = "FEDSIM_LOGICAL_GPUS"
"""With this variable set to 1, the GPUs of a node are numbers alone: who is given one trains on the CPU."""

DRIVER = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/nvidia0"))
"""What is there where the kernel has NVIDIA's driver; the first also in containers that were given no GPU."""

IN_PLACE = "cpu in the place of a logical GPU"
"""The name of the device of an actor that was given a GPU of a node that has none."""


@dataclass(frozen=True)
class Claim:
    """The device that an actor has.

    Attributes:
        device: "cuda" or "cpu".
        cap: bytes that torch may allocate there; None where nothing limits it.
        name: of the device, as records have it: "cpu", "cuda:0 NVIDIA H200", or `IN_PLACE`.
        refused: why the actor is not to work at all.
    """

    device: str = "cpu"
    cap: int | None = None
    name: str = "cpu"
    refused: DoesNotFit | None = None

    def check(self) -> None:
        """See that the actor may work; not when it starts, where an error would pass for its death.

        Raises:
            DoesNotFit: if it was given a share of a real GPU and cannot use it.
        """
        if self.refused is not None:
            raise self.refused


def memory_cap(gpus: float, total: int) -> int | None:
    """Bytes that torch may allocate in an actor on a share of one GPU; None for all there is.

    The share is of everything that the process has on the GPU, so CUDA's own part is taken off: else four
    actors of 0.25 would together want more than the GPU has, and whoever comes last would fail.

    Args:
        gpus: the share; from 1 on, the actor's GPUs are its own.
        total: bytes of the GPU.
    """
    share = int(gpus * total)
    return max(share - CUDA_CONTEXT_BYTES, share // 2) if gpus < 1 else None


def claim(gpus: float, field: str = "resources.gpus_per_worker") -> Claim:
    """Take the device that an actor was given, and keep this process to its share of the memory.

    Whoever was given a GPU works on it. Where torch cannot use it, the claim is refused if NVIDIA's driver is
    there, and is the CPU on a node without one, whose GPUs somebody has declared: they are logical.

    Args:
        gpus: the share of a GPU, or how many; 0 for the CPU.
        field: of the spec, that asks for it.
    """
    if not gpus:
        return Claim()
    logical = os.environ.get(LOGICAL_GPUS) == "1"
    if logical or not torch.cuda.is_available():
        refused = None if logical or not driver() else _unusable(gpus, field)
        return Claim(name=IN_PLACE, refused=refused)
    total = torch.cuda.get_device_properties(0).total_memory
    cap = memory_cap(gpus, total)
    if cap is not None:
        torch.cuda.set_per_process_memory_fraction(cap / total)
    return Claim("cuda", cap, f"cuda:0 {torch.cuda.get_device_name(0)}")


def driver() -> str:
    """What is seen of NVIDIA's driver on this node, with its version where that is known; "" for nothing."""
    found = next((path for path in DRIVER if path.exists()), None)
    if found is None:
        return ""
    version = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", found.read_text()) if found == DRIVER[0] else None
    return f"driver {version[0]}" if version else f"a driver ({found})"


def _unusable(gpus: float, field: str) -> DoesNotFit:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        why = "it is not available"
    except Exception as error:
        why = str(error).strip().partition("\n")[0]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return DoesNotFit(
        f"node {ray.util.get_node_ip_address()}: an actor was given {gpus:g} GPU and cannot use it: {why} "
        f"(torch {torch.__version__}, made for {_cuda()}; NVIDIA: {driver()}; "
        f"CUDA_VISIBLE_DEVICES={visible!r})",
        f"have a torch with CUDA there and a driver that is new enough for it, set {field} to 0, or, where "
        f"GPUs are to be numbers alone, start Ray on that node with {LOGICAL_GPUS}=1",
        field,
        gpus,
    )


def _cuda() -> str:
    version = torch.version.cuda
    return f"CUDA {version}" if version else "CPUs alone"


def notice(members: Sequence[Mapping[str, Any]], who: str = "clients train") -> str | None:
    """What people are to know of actors that train on the CPU though a GPU was asked for; None for nothing.

    Args:
        members: what each actor said of itself; see `Crew`.
        who: does what, as the beginning of a sentence.
    """
    nodes = sorted({each["address"] for each in members if each["name"] == IN_PLACE})
    if not nodes:
        return None
    return (
        f"warning: {who} on the CPU, though the spec asks for GPUs: those of {', '.join(nodes)} are logical "
        f"(no NVIDIA driver, or {LOGICAL_GPUS}=1), and resources.graphs does nothing there"
    )
