"""Plans for the service's callers: measured in a process of its own, one after another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from api.server.errors import STATUS_OF_CODE
from fedsim.errors import FieldError, ServiceError
from jobs.local_ray.embedded_ray import find_ray, package_path
from jobs.local_ray.keeper_files import TOKEN, is_keeper_alive
from jobs.plan.plan import Plan
from jobs.settings import Settings
from jobs.spec import JobSpec

PLAN_SECONDS = 300.0
"""After which a plan is given up: data that has to be unpacked first may take minutes."""

MOST_WAITING = 8

END_SECONDS = 3.0
"""Time for a planner that is told to stop; then it is killed, and the kernel ends a Ray that it started."""

LOOK_SECONDS = 0.5
"""How often it is found out whether the caller is still there."""

Gone = Callable[[], Awaitable[bool]]
"""Tells whether the caller has gone."""


class Planning:
    """Runs planners. Two at once would measure each other, so there is never more than one.

    Args:
        settings: where data and Ray are.
        seconds: after which a plan is given up.
    """

    def __init__(self, settings: Settings, seconds: float = PLAN_SECONDS) -> None:
        self.settings, self.seconds = settings, seconds
        self.waiting = 0
        self._turn = asyncio.Lock()
        self._work: set[asyncio.Task[Plan]] = set()
        self._closed = False

    async def plan(self, spec: JobSpec, gone: Gone | None = None) -> Plan:
        """Measure a spec.

        Args:
            spec: what would run.
            gone: asked now and then; a plan that nobody waits for any more is given up.

        Raises:
            ServiceError: the planner's own error with its code; or it took too long, too many wait, or the
                service stops.
        """
        if self._closed:
            raise _not_now("the service is stopping")
        if self.waiting >= MOST_WAITING:
            raise _not_now(f"{self.waiting} plans are being made or wait for it")
        self.waiting += 1
        work = asyncio.create_task(self._in_turn(spec))
        self._work.add(work)
        try:
            return await self._awaited(work, gone)
        finally:
            await _given_up(work)
            self._work.discard(work)
            self.waiting -= 1

    def close(self) -> None:
        """End what is under way, and begin nothing any more; whoever waits for it is told so."""
        self._closed = True
        for work in self._work:
            work.cancel()

    async def _awaited(self, work: asyncio.Task[Plan], gone: Gone | None) -> Plan:
        try:
            async with asyncio.timeout(self.seconds):
                while not work.done():
                    await asyncio.wait({work}, timeout=LOOK_SECONDS)
                    if not work.done() and gone is not None and await gone():
                        raise _not_now("nobody waits for this plan any more")
        except TimeoutError:
            raise _not_now(f"the plan took longer than {self.seconds:g} s") from None
        if work.cancelled():
            raise _not_now("the service is stopping")
        return work.result()

    async def _in_turn(self, spec: JobSpec) -> Plan:
        async with self._turn:
            return await self._measure(spec)

    async def _measure(self, spec: JobSpec) -> Plan:
        environment = await asyncio.to_thread(self._environment)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "jobs.plan.planner",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        try:
            answer, words = await process.communicate(json.dumps(spec.model_dump(mode="json")).encode())
        finally:
            await _end(process)
        if process.returncode not in (0, 1) or not answer:
            raise RuntimeError(f"the planner ended with {process.returncode}: {words.decode()[-2000:]}")
        if process.returncode == 1:
            raise _error(json.loads(answer))
        return Plan.model_validate_json(answer)

    def _environment(self) -> dict[str, str]:
        settings = self.settings
        numbers = {"FEDSIM_RAY_NUM_CPUS": settings.ray_num_cpus, "FEDSIM_RAY_NUM_GPUS": settings.ray_num_gpus}
        environment = os.environ | settings.environment() | {"PYTHONPATH": package_path()}
        environment |= {name: str(value) for name, value in numbers.items() if value is not None}
        environment.pop("FEDSIM_TOKEN", None)
        if own := self._own_ray():
            environment.pop("RAY_AUTH_TOKEN", None)
        return environment | own

    def _own_ray(self) -> dict[str, str]:
        """The address of the Ray that the service runs, if any: plans and jobs then share what there is."""
        settings = self.settings
        if settings.ray_address is not None or not is_keeper_alive(settings.home):
            return {}
        address = find_ray(settings)
        if address is None:
            raise _not_now("Ray is starting")
        return {
            "FEDSIM_RAY_ADDRESS": address.gcs,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(settings.home / TOKEN),
            # As the keeper has it: Ray else looks for a loopback address at the machine's outward one.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }


async def _given_up(work: asyncio.Task[Plan]) -> None:
    """End a plan that may still be under way, and wait until its process has ended."""
    work.cancel()
    await asyncio.wait({work})


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a planner that still runs: politely first, so that it ends its Ray."""
    for end in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            end()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS)


def _error(answer: dict[str, Any]) -> ServiceError:
    faults = [FieldError(**fault) for fault in answer["errors"]]
    status = STATUS_OF_CODE.get(answer["code"], 500)
    return ServiceError(answer["message"], answer["hint"], status=status, code=answer["code"], errors=faults)


def _not_now(message: str) -> ServiceError:
    hint = "try again later, or plan on the command line: fedsim plan"
    return ServiceError(message, hint, status=503, code="NOT_READY")
