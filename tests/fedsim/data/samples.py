"""Small files in the real formats of the data sets."""

import gzip
import pickle
import wave
from pathlib import Path

import numpy as np
from PIL import Image

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def broken(whole: bytes) -> list[bytes]:
    """A file's content damaged in the ways that files are: by the disk, or by a copy that broke off.

    Empty, cut off near its beginning and near its end, all zeros, with zeros for its second half, and with
    some bytes in its middle turned round.
    """
    half = len(whole) // 2
    turned = bytes(255 - byte for byte in whole[half : half + 8])
    return [
        b"",
        whole[:100],
        whole[:-100],
        bytes(len(whole)),
        whole[:half] + bytes(len(whole) - half),
        whole[:half] + turned + whole[half + 8 :],
    ]


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_image(path: Path, colour: tuple[int, int, int] = (10, 20, 30), size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), colour).save(path, quality=95)


def write_folders(root: Path, classes: tuple[str, ...], train: int = 3, test: int = 2, size: int = 8) -> None:
    """PNG image folders; the red value is the class, the green value the image's number."""
    for part, number in (("train", train), ("test", test)):
        for label, name in enumerate(classes):
            for i in range(number):
                write_image(root / part / name / f"{i:03d}.png", (label, i, 0), size)


def write_batch(path: Path, labels: list[int], key: bytes = b"labels", numpy_1: bool = False) -> np.ndarray:
    """A CIFAR batch: a dict of byte strings, pickled by protocol 2, as the published files are."""
    data = (np.arange(len(labels) * 3072) % 256).astype(np.uint8).reshape(-1, 3072)
    content = pickle.dumps({b"batch_label": b"a sample", key: labels, b"data": data}, protocol=2)
    if numpy_1:
        content = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return data.reshape(-1, 3, 32, 32)


def write_wav(
    path: Path,
    frequency: float = 440.0,
    seconds: float = 0.5,
    rate: int = 8_000,
    width: int = 2,
    channels: int = 1,
) -> None:
    """A sine tone at half the full scale."""
    tone = 0.5 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)
    whole = np.round(np.repeat(tone, channels) * (2 ** (8 * width - 1) - 1)).astype("<i8")
    raw = (whole + 128).astype(np.uint8) if width == 1 else whole.view(np.uint8).reshape(-1, 8)[:, :width]
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as target:
        target.setnchannels(channels)
        target.setsampwidth(width)
        target.setframerate(rate)
        target.writeframes(raw.tobytes())
