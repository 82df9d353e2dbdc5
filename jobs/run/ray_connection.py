"""Connect this process to a Ray cluster, or start a Ray of its own for a while."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import ray

from fedsim.errors import RayUnavailable
from jobs.local_ray.keeper_files import TOKEN, read_or_make_token
from jobs.local_ray.machine import RAY_FOLDER, count_cpus, find_user_directory, make_private_directory
from jobs.settings import Settings


@contextmanager
def connect_to_ray(settings: Settings) -> Iterator[None]:
    """Connect to the cluster that the settings name, or start a Ray of this process.

    A Ray that this process started ends with the `with` block.

    Raises:
        RayUnavailable: if the address is that of a dashboard, which takes jobs but no processes.
        SettingsError: if no private directory for Ray can be made.
    """
    if (settings.ray_address or "").startswith(("http://", "https://")):
        raise RayUnavailable(
            f"{settings.ray_address} takes jobs, but only a process on the cluster can join it",
            "submit a job, or run this on the head with --ray-address auto (FEDSIM_RAY_ADDRESS=auto)",
        )
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    if ray.is_initialized():
        yield
        return
    with ExitStack() as afterwards:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if settings.ray_address is None:
            options |= _make_ray_options(settings, afterwards)
        ray.init(address=settings.ray_address or "local", **options)
        try:
            yield
        finally:
            ray.shutdown()


def _make_ray_options(settings: Settings, afterwards: ExitStack) -> dict[str, Any]:
    """Make the options for starting Ray here; `afterwards` removes Ray's temporary directory."""
    _set_up_token(settings)
    options: dict[str, Any] = {"include_dashboard": False, "num_cpus": count_cpus(settings)}
    if settings.ray_num_gpus is not None:
        options["num_gpus"] = settings.ray_num_gpus
    private = make_private_directory(find_user_directory())
    afterwards.callback(shutil.rmtree, private, ignore_errors=True)
    options["_temp_dir"] = str(private / RAY_FOLDER)
    return options


def _set_up_token(settings: Settings) -> None:
    """Make Ray ask for the token in fedsim's home.

    By default Ray writes a token that all users can read to ~/.ray, and every later Ray here asks for it.
    Tokens that the user or an earlier Ray has set up stay as they are.
    """
    if "RAY_AUTH_MODE" in os.environ:
        return
    with suppress(OSError):
        home = settings.make_home()
        read_or_make_token(home)
        os.environ.setdefault("RAY_AUTH_TOKEN_PATH", str(home / TOKEN))
