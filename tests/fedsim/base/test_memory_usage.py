"""The memory of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsim.base import memory_usage
from fedsim.data import load_dataset
from fedsim.data.decode import decode_images
from fedsim.errors import DataError


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


def test_data_larger_than_the_machine_is_refused_before_it_is_unpacked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory_usage, "machine_bytes", lambda: 1000)
    Image.new("RGB", (20, 20)).save(tmp_path / "image.png")
    np.savez(tmp_path / "large.npz", x=np.zeros((200, 2)), y=np.zeros(200, np.int64))
    for name, params in (
        ("npz", {"path": "large.npz"}),
        ("synthetic", {"examples": 200}),
        ("synthetic_images", {"examples": 10, "test_examples": 1, "size": 8}),
        ("shapes", {"examples": 10, "test_examples": 1}),
    ):
        with pytest.raises(DataError, match=r"GB of memory, and at most 1e-06 GB may be used"):
            load_dataset(name, roots=(tmp_path,), **params)
    with pytest.raises(DataError, match=r"1 images like .*image\.png"):
        decode_images([tmp_path / "image.png"])
