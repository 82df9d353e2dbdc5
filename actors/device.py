"""The device of an actor: its share of a GPU, or the CPU."""

from __future__ import annotations

import torch

CUDA_CONTEXT_BYTES = 512 << 20
"""What CUDA itself takes of a GPU in each process, outside of the allocator that a cap binds; about."""


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


def claim(gpus: float) -> tuple[str, int | None]:
    """Take the device that an actor was given, and keep this process to its share of the memory.

    Args:
        gpus: the share of a GPU, or how many; 0 for the CPU.

    Returns:
        "cuda" or "cpu", and how many bytes torch may allocate there; None where nothing limits it.
    """
    if not gpus or not torch.cuda.is_available():
        return "cpu", None
    total = torch.cuda.get_device_properties(0).total_memory
    cap = memory_cap(gpus, total)
    if cap is not None:
        torch.cuda.set_per_process_memory_fraction(cap / total)
    return "cuda", cap
