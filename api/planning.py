"""Plans for the service's callers: measured in a process of its own, one after another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

from api.errors import STATUS_OF_CODE
from fedsim.errors import FieldError, ServiceError
from jobs.local_ray import package_path
from jobs.plan import Plan
from jobs.settings import Settings
from jobs.spec import JobSpec

PLAN_SECONDS = 300.0
"""After which a plan is given up: data that has to be unpacked first may take minutes."""

MOST_WAITING = 8

END_SECONDS = 10.0
"""Time for a planner that is told to stop, to end the Ray that it started."""


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

    async def plan(self, spec: JobSpec) -> Plan:
        """Measure a spec.

        Raises:
            ServiceError: the planner's own error with its code; or it took too long, or too many wait.
        """
        if self.waiting >= MOST_WAITING:
            raise _not_now(f"{self.waiting} plans are being made or wait for it")
        self.waiting += 1
        try:
            async with asyncio.timeout(self.seconds), self._turn:
                return await self._measure(spec)
        except TimeoutError:
            raise _not_now(f"the plan took longer than {self.seconds:g} s") from None
        finally:
            self.waiting -= 1

    async def _measure(self, spec: JobSpec) -> Plan:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "jobs.planner",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(),
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
        return environment


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
