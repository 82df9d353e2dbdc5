"""IDX files, the format of the MNIST family: a magic number, the sizes, then bytes; gzipped or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from fedsim.data.dataset import Array
from fedsim.errors import DataError

_UNSIGNED_BYTES = 0x08


def read_idx(path: Path, dimensions: int) -> Array:
    """Read the array in an IDX file of unsigned bytes.

    Args:
        path: the file; a name ending in .gz is decompressed.
        dimensions: expected number of dimensions (3 for images, 1 for labels).

    Returns:
        uint8, of the file's shape; read-only, because it is not a copy.

    Raises:
        DataError: if the file is truncated, not an IDX file, or of another type.
    """
    content = _read_content(path)
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(f"{path}: truncated, {len(content)} bytes are less than its header's {header}")
    if content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES or content[3] != dimensions:
        raise DataError(
            f"{path}: not an IDX file of bytes in {dimensions} dimensions (starts {content[:4].hex()})"
        )
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", dimensions, 4))
    wanted = int(np.prod(shape, dtype=np.int64))
    if len(content) - header != wanted:
        state = "truncated" if len(content) - header < wanted else "too long"
        raise DataError(f"{path}: {state}, {len(content) - header} bytes for {shape!r} = {wanted}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _read_content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        # Decompressed in one call: half the time of a gzip file object.
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})", "fetch the file again") from error
