"""Convert an error of a plug-in's data set or partition into one that names the plug-in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedsim.base.error_attribution import format_error, format_traceback, is_out_of_memory
from fedsim.errors import DataCodeFailed, FedsimError
from fedsim.plugins import Registry


@contextmanager
def attribute_plugin_errors(registry: Registry[Any], name: str) -> Iterator[None]:
    """Convert an error of the code of a plug-in, raised within the block, into `DataCodeFailed`.

    A `FedsimError`, a lack of memory and the errors of fedsim's own objects pass unchanged.

    Args:
        registry: the data sets or the partitions.
        name: of the object.
    """
    try:
        yield
    except FedsimError:
        raise
    except Exception as error:
        if name in registry.own or is_out_of_memory(error):
            raise
        what = f"the {registry.one} {name!r}"
        raise DataCodeFailed(what, format_error(error), format_traceback(error)) from error
