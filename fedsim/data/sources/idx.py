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
    """The array in an IDX file of unsigned bytes.

    Args:
        path: the file; a name ending in .gz is decompressed.
        dimensions: how many dimensions it has to have (3 for images, 1 for labels).

    Returns:
        uint8, of the shape that the file states; not a copy, so read-only.

    Raises:
        DataError: the file is truncated, is no IDX file, or holds something else.
    """
    content = _content(path)
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


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        # Unzipped in one call: half the time of reading through a gzip file object.
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})", "fetch the file again") from error
