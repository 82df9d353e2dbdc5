"""WorkProcess: answers callers of the service in processes of their own, which can be limited and ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from api.server.errors import STATUS_OF_CODE, ServiceBusy
from fedsim.errors import FieldError, ServiceError, SpecError
from jobs.local_ray.embedded_ray import find_ray, package_path
from jobs.local_ray.keeper_files import ON_LOOPBACK, is_keeper_alive, make_ray_environment
from jobs.settings import Settings

MOST_PENDING = 8
"""Largest number of callers of one kind of work, waiting ones included."""

END_SECONDS = 3.0
"""Time for a process to stop by itself; then it is killed, and the kernel ends a Ray that it started."""

POLL_SECONDS = 0.5
"""Seconds between two questions whether the caller is still there."""

LONGEST_ANSWER = 2**28
"""The most bytes of an answer."""

LOG_BYTES = 2000
"""Bytes of the end of a process's log that an error shows."""


class WorkProcess:
    """Runs one Python module for the callers of the service, in processes that take one question at a time.

    Args:
        module: name of the module. It uses `jobs.json_process.answer_standard_input`.
        answer: name of the answer in messages, such as "plan".
        seconds: time limit of a call, the wait for its turn included.
        make_environment: makes the environment of a process; runs in a thread.
        hint: the way out for a caller that is refused.
        processes: number of processes that work at the same time.
        most_pending: largest number of callers, waiting ones included.
        keep: whether one process stays for the next question, so that it need not import its modules again.

    Attributes:
        pending: number of calls that run or wait.
    """

    def __init__(
        self,
        module: str,
        answer: str,
        seconds: float,
        make_environment: Callable[[], Mapping[str, str]],
        hint: str = "try again later",
        *,
        processes: int = 1,
        most_pending: int = MOST_PENDING,
        keep: bool = False,
    ) -> None:
        self.module, self.answer, self.seconds, self.hint = module, answer, seconds, hint
        self.make_environment, self.most_pending, self.keep = make_environment, most_pending, keep
        self.pending = 0
        self._turn = asyncio.Semaphore(processes)
        self._kept: _Process | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, question: Any, is_gone: Callable[[], Awaitable[bool]] | None = None) -> Any:
        """Run the module with this question, and return its answer.

        Args:
            question: values that JSON can hold.
            is_gone: returns whether the caller has left; the process then ends early.

        Raises:
            SpecError: the module found faults in the spec.
            ServiceError: another error of the module, with its code; or the time is over, too many callers
                wait, the process died, or the service stops.
        """
        if self._closed:
            raise self._make_refusal("the service is stopping")
        if self.pending >= self.most_pending:
            raise self._make_refusal(f"{self.pending} {self.answer}s are being made or wait for it")
        self.pending += 1
        task = asyncio.create_task(self._ask_process(json.dumps(question).encode() + b"\n"))
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        try:
            async with asyncio.timeout(self.seconds):
                while not task.done():
                    await asyncio.wait({task}, timeout=POLL_SECONDS)
                    if not task.done() and is_gone is not None and await is_gone():
                        raise self._make_refusal(f"nobody waits for this {self.answer} any more")
            if task.cancelled():
                raise self._make_refusal("the service is stopping")
            return task.result()
        except TimeoutError:
            raise self._make_refusal(f"the {self.answer} took longer than {self.seconds:g} s") from None
        finally:
            task.cancel()
            await asyncio.wait({task})  # until its process has ended

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        """Count a task as ended, also one whose caller was cancelled twice and waits for it no more."""
        self._tasks.discard(task)
        self.pending -= 1

    async def warm_up(self) -> None:
        """Start the process that stays, so that the first caller does not wait for its imports."""
        process = await self._start_process()
        if self._kept is None and not self._closed:
            self._kept = process
        else:
            await process.end()

    def close(self) -> None:
        """End all processes, and start no more; the callers get an error that says it."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._kept is not None:
            # A task of its own: whoever closes cannot wait.
            self._tasks.add(asyncio.ensure_future(self._kept.end()))
            self._kept = None

    async def wait_until_closed(self) -> None:
        """Wait until all processes have ended, after `close`."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask_process(self, question: bytes) -> Any:
        async with self._turn:
            process, self._kept = self._kept, None
            if process is None or process.has_ended:
                process = await self._start_process()
            answered = False
            try:
                found = await process.ask(question, last=not self.keep)
                answered = True
            finally:
                if not answered or not self.keep or self._kept is not None or self._closed:
                    await process.end()
                else:
                    self._kept = process
        if found is None:
            raise self._make_death_error(process)
        if "error" in found:
            raise _rebuild_error(found["error"])
        return found["answer"]

    async def _start_process(self) -> _Process:
        environment = await asyncio.to_thread(self.make_environment)
        return await _Process.start(self.module, environment)

    def _make_death_error(self, process: _Process) -> Exception:
        if process.code is not None and process.code < 0:
            reason = f"was killed by signal {-process.code}, perhaps because it lacked memory"
            return self._make_refusal(f"the process of this {self.answer} {reason}")
        return RuntimeError(f"{self.module} ended with {process.code}: {process.log_tail()}")

    def _make_refusal(self, message: str) -> ServiceError:
        return ServiceError(message, self.hint, status=503, code="NOT_READY")


class _Process:
    """A process that answers lines of JSON; the end of its log is kept for an error."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self._log = process, b""
        self._reading = asyncio.create_task(self._read_log())

    @classmethod
    async def start(cls, module: str, environment: Mapping[str, str]) -> _Process:
        """Start a module."""
        return cls(
            await asyncio.create_subprocess_exec(
                # Python and Ray's workers import no modules of the folder where the service was started.
                *(sys.executable, "-P", "-m", module),
                cwd=environment["FEDSIM_HOME"],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,
                limit=LONGEST_ANSWER,
            )
        )

    @property
    def has_ended(self) -> bool:
        return self.code is not None

    @property
    def code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.returncode

    async def ask(self, question: bytes, *, last: bool) -> dict[str, Any] | None:
        """Send a line, and return the answer; None if the process ended without one.

        Args:
            question: the line.
            last: whether to wait until the process has ended; otherwise it takes another question.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(question)
            await self._process.stdin.drain()
        if last:
            self._process.stdin.close()
        line = await self._process.stdout.readline()
        if last or not line:
            await self._process.wait()
            await self._reading
        found: dict[str, Any] | None = json.loads(line) if line else None
        return found

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        while part := await self._process.stderr.read(2**16):
            self._log = (self._log + part)[-LOG_BYTES:]

    def log_tail(self) -> str:
        """The end of the log."""
        return self._log.decode(errors="replace")

    async def end(self) -> None:
        """End the process: politely first, so that it ends its Ray."""
        for end in (self._process.terminate, self._process.kill):
            if self.has_ended:
                return
            with contextlib.suppress(ProcessLookupError):
                end()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), END_SECONDS)


def _rebuild_error(found: Mapping[str, Any]) -> Exception:
    faults = [FieldError(**fault) for fault in found["errors"]]
    if found["code"] == SpecError.code:
        return SpecError(faults)
    status = STATUS_OF_CODE.get(found["code"], 500)
    return ServiceError(found["message"], found["hint"], status=status, code=found["code"], errors=faults)


def make_environment(settings: Settings) -> dict[str, str]:
    """Make the environment of a process that works for the service; it has no token of the service."""
    environment = os.environ | settings.environment() | settings.ray_sizes()
    environment["PYTHONPATH"] = package_path()
    environment.pop("FEDSIM_TOKEN", None)
    return environment


def make_check_environment(settings: Settings) -> dict[str, str]:
    """Make the environment of a process that checks: it opens no connection, whatever library it uses."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return make_environment(settings) | settings.check_environment() | offline


def make_environment_with_ray(settings: Settings) -> dict[str, str]:
    """Make the environment of a process that uses Ray: the service's own local Ray, if it has one.

    Raises:
        ServiceBusy: if the local Ray is starting.
    """
    environment = make_environment(settings)
    if settings.ray_address is not None:
        return environment
    if not is_keeper_alive(settings.home):
        return environment | ON_LOOPBACK  # the process starts a Ray of its own
    if (address := find_ray(settings)) is None:
        raise ServiceBusy("Ray is starting")
    environment.pop("RAY_AUTH_TOKEN", None)
    return environment | make_ray_environment(settings.home) | {"FEDSIM_RAY_ADDRESS": address.gcs}
