"""How a file shows that it is damaged."""

from __future__ import annotations

import tokenize
import zipfile
import zlib

UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, RuntimeError, MemoryError, OverflowError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""What NumPy and `zipfile` raise for a damaged file: a RuntimeError stands for senseless flags, a TokenError
for a damaged header, a MemoryError or an OverflowError for a senseless shape."""
