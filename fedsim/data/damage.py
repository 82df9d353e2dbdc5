"""The errors of damaged files."""

from __future__ import annotations

import tokenize
import zipfile
import zlib

UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, RuntimeError, MemoryError, OverflowError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""The errors that NumPy and `zipfile` raise for a damaged file. Invalid flags raise a RuntimeError, a damaged
header a TokenError, an invalid shape a MemoryError or an OverflowError.
"""
