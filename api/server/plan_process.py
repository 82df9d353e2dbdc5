"""Plans for the service's callers: measured in a process of its own, one after another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable

from api.server.errors import STATUS_OF_CODE
from fedsim.errors import FieldError, ServiceError
from jobs.local_ray.embedded_ray import find_ray, make_ray_environment, package_path
from jobs.local_ray.keeper_files import is_keeper_alive
from jobs.plan.plan import Plan
from jobs.settings import Settings
from jobs.spec import JobSpec

PLAN_SECONDS = 300.0
"""After which a plan is given up: data that has to be unpacked first may take minutes."""

MOST_WAITING = 8

END_SECONDS = 3.0
"""Time for a planner to stop by itself; then it is killed, and the kernel ends a Ray that it started."""

LOOK_SECONDS = 0.5
"""How often the service asks whether the caller is still there."""


class Planning:
    """Runs planners, never more than one at a time: two planners would measure each other."""

    def __init__(self, settings: Settings, seconds: float = PLAN_SECONDS) -> None:
        self.settings, self.seconds, self.waiting = settings, seconds, 0
        self._turn, self._closed = asyncio.Lock(), False
        self._work: set[asyncio.Task[Plan]] = set()

    async def plan(self, spec: JobSpec, gone: Callable[[], Awaitable[bool]] | None = None) -> Plan:
        """Measure a spec; give the plan up once the caller has `gone`.

        Raises:
            ServiceError: the planner's own error with its code; or it took too long, too many wait, or the
                service stops.
        """
        if self._closed:
            raise _not_now("the service is stopping")
        if self.waiting >= MOST_WAITING:
            raise _not_now(f"{self.waiting} plans are being made or wait for it")
        self.waiting += 1
        work = asyncio.create_task(self._measure(spec))
        self._work.add(work)
        try:
            async with asyncio.timeout(self.seconds):
                while not work.done():
                    await asyncio.wait({work}, timeout=LOOK_SECONDS)
                    if not work.done() and gone is not None and await gone():
                        raise _not_now("nobody waits for this plan any more")
            if work.cancelled():
                raise _not_now("the service is stopping")
            return work.result()
        except TimeoutError:
            raise _not_now(f"the plan took longer than {self.seconds:g} s") from None
        finally:
            work.cancel()
            await asyncio.wait({work})  # until its process has ended
            self._work.discard(work)
            self.waiting -= 1

    def close(self) -> None:
        """End every plan, and begin no more; the callers get an error that says it."""
        self._closed = True
        for work in self._work:
            work.cancel()

    async def _measure(self, spec: JobSpec) -> Plan:
        async with self._turn:
            environment = await asyncio.to_thread(self._environment)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "jobs.plan.planner"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
            try:
                answer, words = await process.communicate(json.dumps(spec.model_dump(mode="json")).encode())
            finally:
                await _end_process(process)
        if process.returncode == 0 and answer:
            return Plan.model_validate_json(answer)
        if process.returncode != 1 or not answer:
            raise RuntimeError(f"the planner ended with {process.returncode}: {words.decode()[-2000:]}")
        error = json.loads(answer)
        faults = [FieldError(**fault) for fault in error["errors"]]
        status = STATUS_OF_CODE.get(error["code"], 500)
        raise ServiceError(error["message"], error["hint"], status=status, code=error["code"], errors=faults)

    def _environment(self) -> dict[str, str]:
        """The planner's; where the service runs a Ray of its own, plans and jobs share it."""
        settings = self.settings
        environment = os.environ | settings.environment() | settings.ray_sizes()
        environment["PYTHONPATH"] = package_path()
        environment.pop("FEDSIM_TOKEN", None)
        if settings.ray_address is not None or not is_keeper_alive(settings.home):
            return environment
        if (address := find_ray(settings)) is None:
            raise _not_now("Ray is starting")
        environment.pop("RAY_AUTH_TOKEN", None)
        return environment | make_ray_environment(settings, address)


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """End a planner that still runs: politely first, so that it ends its Ray."""
    for end in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            end()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS)


def _not_now(message: str) -> ServiceError:
    hint = "try again later, or plan on the command line: fedsim plan"
    return ServiceError(message, hint, status=503, code="NOT_READY")
