"""The state of fedsim's code on the disk: two processes with the same state run the same code."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PACKAGES = ("fedsim", "actors", "jobs")

ROOT = Path(__file__).parents[3]
"""The folder that has the packages."""


def compute_code_state(root: Path = ROOT) -> str:
    """Compute a text that changes with every change of fedsim's code: its place, and the files' times.

    Args:
        root: the folder that has the packages.
    """
    state = hashlib.sha256(str(root).encode())
    for package in PACKAGES:
        for folder, folders, files in os.walk(root / package):
            folders.sort()
            for file in sorted(name for name in files if name.endswith(".py")):
                path = os.path.join(folder, file)
                state.update(f"{path} {os.stat(path).st_mtime_ns}\n".encode())
    return state.hexdigest()
