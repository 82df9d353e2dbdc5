"""The device of an actor: a share of a GPU, or the CPU. An actor never replaces a GPU by the CPU silently."""

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
"""If this variable is 1, the GPUs of a node are logical: an actor with a GPU trains on the CPU."""

DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/nvidia0"))
"""Files that exist if the kernel has NVIDIA's driver; the first one also in containers without a GPU."""

CPU_FALLBACK_NAME = "cpu in the place of a logical GPU"
"""The device name of an actor that was given a logical GPU."""


@dataclass(frozen=True)
class DeviceShare:
    """The device of an actor.

    Attributes:
        device: "cuda" or "cpu".
        cap: bytes that torch may allocate on the device; None for no limit.
        name: of the device in round records: "cpu", "cuda:0 NVIDIA H200", or `CPU_FALLBACK_NAME`.
        refusal: the error of an actor that must not work; None if it may.
    """

    device: str = "cpu"
    cap: int | None = None
    name: str = "cpu"
    refusal: DoesNotFit | None = None

    def raise_if_refused(self) -> None:
        """Raise the refusal. Not called in the actor's constructor, where Ray takes an error for a death.

        Raises:
            DoesNotFit: if the actor was given a share of a real GPU and cannot use it.
        """
        if self.refusal is not None:
            raise self.refusal


def memory_cap(gpus: float, total: int) -> int | None:
    """Return the bytes that torch may allocate on a share of one GPU; None for no limit.

    The share covers all memory of the process on the GPU, so CUDA's own part is subtracted: four actors of
    0.25 GPU else ask for more than the GPU has, and the last actor fails.

    Args:
        gpus: the share; an actor with 1 or more GPUs has them alone.
        total: bytes of the GPU.
    """
    share = int(gpus * total)
    return max(share - CUDA_CONTEXT_BYTES, share // 2) if gpus < 1 else None


def acquire_device(gpus: float, field: str = "resources.gpus_per_worker") -> DeviceShare:
    """Take the device that an actor was given, and limit this process to its share of the GPU's memory.

    An actor with a GPU trains on the GPU. If torch cannot use the GPU, the share is refused on a node with
    NVIDIA's driver. On a node without the driver the GPU is logical, and the device is the CPU.

    Args:
        gpus: the share of a GPU, or the number of GPUs; 0 for the CPU.
        field: of the spec that asks for the GPU; for the error.
    """
    if not gpus:
        return DeviceShare()
    logical = os.environ.get(LOGICAL_GPUS) == "1"
    if logical or not torch.cuda.is_available():
        refused = None if logical or not describe_driver() else _make_unusable_error(gpus, field)
        return DeviceShare(name=CPU_FALLBACK_NAME, refusal=refused)
    total = torch.cuda.get_device_properties(0).total_memory
    cap = memory_cap(gpus, total)
    if cap is not None:
        torch.cuda.set_per_process_memory_fraction(cap / total)
    return DeviceShare("cuda", cap, f"cuda:0 {torch.cuda.get_device_name(0)}")


def describe_driver() -> str:
    """Describe NVIDIA's driver on this node, such as "driver 550.54"; "" if there is no driver."""
    found = next((path for path in DRIVER_FILES if path.exists()), None)
    if found is None:
        return ""
    version = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", found.read_text()) if found == DRIVER_FILES[0] else None
    return f"driver {version[0]}" if version else f"a driver ({found})"


def _make_unusable_error(gpus: float, field: str) -> DoesNotFit:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        why = "it is not available"
    except Exception as error:
        why = str(error).strip().partition("\n")[0]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return DoesNotFit(
        f"node {ray.util.get_node_ip_address()}: an actor was given {gpus:g} GPU and cannot use it: {why} "
        f"(torch {torch.__version__}, made for {_describe_cuda()}; NVIDIA: {describe_driver()}; "
        f"CUDA_VISIBLE_DEVICES={visible!r})",
        f"install a torch with CUDA and a driver that is new enough for it, or set {field} to 0; for logical "
        f"GPUs, start Ray on that node with {LOGICAL_GPUS}=1",
        field,
        gpus,
    )


def _describe_cuda() -> str:
    version = torch.version.cuda
    return f"CUDA {version}" if version else "CPUs alone"


def describe_cpu_fallback(members: Sequence[Mapping[str, Any]], who: str = "clients train") -> str | None:
    """Return a warning if actors train on the CPU although the spec asks for GPUs; None if none do.

    Args:
        members: the info of each actor; see `ActorGroup.actor_infos`.
        who: the start of the sentence, such as "clients train".
    """
    nodes = sorted({each["address"] for each in members if each["name"] == CPU_FALLBACK_NAME})
    if not nodes:
        return None
    return (
        f"warning: {who} on the CPU, though the spec asks for GPUs: those of {', '.join(nodes)} are logical "
        f"(no NVIDIA driver, or {LOGICAL_GPUS}=1), and resources.graphs does nothing there"
    )
