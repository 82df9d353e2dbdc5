"""The memory of a process."""

from __future__ import annotations

import subprocess
import sys


def test_the_peak_of_memory_is_seen_after_it_has_gone() -> None:
    program = """
from fedsim.base.memory_usage import peak_private_bytes
before = peak_private_bytes()
block = bytearray(80_000_000)
del block
print(peak_private_bytes() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 70e6 < int(done.stdout) < 100e6
