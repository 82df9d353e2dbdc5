"""`python -m jobs.run.forks.fork_server FD IDLE`: a process that forks a runner for each job.

The server imports torch and fedsim once, and runs nothing itself. Each runner is a process of its own, a fork
of this clean state: nothing of a job reaches the next one, whether it ended, failed or was killed. A runner
has the environment of its own job, and looks for plug-ins itself. It trains a short job in its process,
and any other job by actors of the local Ray.

Questions are lines of JSON, one for each connection to the socket of the keeper
(`jobs.local_ray.fork_server_process`); `jobs.run.forks.forked_runners` asks them.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedsim.base.memory_usage import end_first_without_memory, free_bytes, machine_bytes
from jobs.home_permissions import PRIVATE_UMASK
from jobs.local_ray.fork_server_process import end_with_parent, name_process
from jobs.run import runner
from jobs.run.forks.code_state import compute_code_state

MOST_REMEMBERED = 1000
"""Ended runners whose exit code and output the server keeps."""

MOST_OUTPUT = 20_000
"""Bytes of a runner's output, the last ones, that the server reads, and keeps after its end."""

QUESTION_SECONDS = 5.0
"""Seconds that a caller may take to send its question."""

STOP_SECONDS = 3.0
"""Seconds between the two signals that end a runner, SIGTERM and SIGKILL; as for a job of Ray."""

TICK_SECONDS = 1.0

LEAST_FREE = 0.1
"""A server without runners ends when less than this part of the machine's memory is free."""

SHORTEST_IDLE_SECONDS = 10.0
"""Seconds that a server stays although its memory is wanted: else it would start and end with each job."""


@dataclass
class Runner:
    """A runner that was started here.

    Attributes:
        pid: its process, and its process group.
        output: the file of its standard output and standard error.
        exit_code: None while it runs; negative after a signal.
        kill_at: when it is killed; None if nobody stops it.
    """

    pid: int
    output: Path
    exit_code: int | None = None
    kill_at: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.exit_code is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class ForkServer:
    """Answers questions on a socket, and forks runners.

    Args:
        listener: the socket.
        idle_seconds: end after so many seconds without a runner and without a question.
    """

    def __init__(self, listener: socket.socket, idle_seconds: float) -> None:
        self.listener, self.idle_seconds = listener, idle_seconds
        self.code_state = compute_code_state()
        self.runners = OrderedDict[str, Runner]()
        self._is_stale = self._must_end = False
        self._last_used = time.monotonic()
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector = selectors.DefaultSelector()

    def serve(self) -> int:
        """Answer until the server is idle, old or asked to end; then end all runners, and return 0."""
        self.listener.setblocking(False)
        os.set_blocking(self._wake_writer, False)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._ask_to_end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        while not self._must_end and not self._is_unneeded():
            for key, _ in self._selector.select(TICK_SECONDS):
                if key.fileobj is self.listener:
                    self._answer_next()
                else:
                    os.read(self._wake_reader, 4096)
            self._reap()
            self._kill_overdue()
        for each in self.runners.values():
            if each.is_running:
                each.send(signal.SIGKILL)
        return 0

    def _ask_to_end(self, *_: object) -> None:
        self._must_end = True

    def count_running(self) -> int:
        """Count the runners that have not ended."""
        return sum(each.is_running for each in self.runners.values())

    def _is_unneeded(self) -> bool:
        if self.count_running():
            self._last_used = time.monotonic()
            return False
        unused = time.monotonic() - self._last_used
        is_memory_wanted = unused > SHORTEST_IDLE_SECONDS and free_bytes() < LEAST_FREE * machine_bytes()
        return self._is_stale or is_memory_wanted or unused > self.idle_seconds

    def _answer_next(self) -> None:
        with suppress(OSError, ValueError, LookupError):
            connection, _ = self.listener.accept()
            with connection:
                connection.settimeout(QUESTION_SECONDS)
                with connection.makefile("rwb") as stream:
                    question = json.loads(stream.readline())
                    self._last_used = time.monotonic()
                    stream.write(json.dumps(self._answer(question)).encode() + b"\n")

    def _answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if question["ask"] == "count":
            return {"running": self.count_running()}
        if question["ask"] == "start":
            return self._start(question)
        known = self.runners.get(question["id"])
        if known is None:
            return {"known": False}
        if question["ask"] == "stop" and known.is_running and known.kill_at is None:
            known.send(signal.SIGTERM)
            known.kill_at = time.monotonic() + STOP_SECONDS
        if question["ask"] == "output":
            return {"known": True, "text": _read_end(known.output).decode("utf-8", "replace")}
        return {"known": True, "exit_code": known.exit_code}

    def _start(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Fork a runner; refuse one that would import other code than this process has.

        The code on the disk may have changed, and other packages may be on the path of the caller.
        """
        if question["code_state"] != self.code_state:
            self._is_stale = True
        if self._is_stale or question["environment"].get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
            return {"started": False}
        key = question["id"]
        if key not in self.runners:
            output = Path(f"{key}.out").absolute()
            self.runners[key] = Runner(self._fork(question["job"], question["environment"], output), output)
            self._forget_oldest()
        return {"started": True}

    def _fork(self, job_id: str, environment: Mapping[str, str], output: Path) -> int:
        if (pid := os.fork()) != 0:
            with suppress(OSError):  # the child does the same: whoever comes first
                os.setpgid(pid, pid)
            return pid
        code = 1
        try:
            self._leave_server(output)
            name_process(job_id)
            os.environ.update(environment)
            os.chdir(environment["FEDSIM_HOME"])
            code = runner.main([job_id])
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _leave_server(self, output: Path) -> None:
        """Make this fork a process of its own, without the server's signals, socket and output."""
        os.setpgid(0, 0)
        end_with_parent(signal.SIGKILL)
        end_first_without_memory()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        self.listener.close()
        for descriptor in (self._wake_reader, self._wake_writer):
            os.close(descriptor)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)

    def _reap(self) -> None:
        running = {each.pid: each for each in self.runners.values() if each.is_running}
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if (ended := running.pop(pid, None)) is not None:
                ended.exit_code = os.waitstatus_to_exitcode(status)
                ended.send(signal.SIGKILL)  # processes that it left
                with suppress(OSError):
                    _cut_to_end(ended.output)

    def _kill_overdue(self) -> None:
        for each in self.runners.values():
            if each.is_running and each.kill_at is not None and time.monotonic() > each.kill_at:
                each.send(signal.SIGKILL)

    def _forget_oldest(self) -> None:
        """Forget the oldest ended runners beyond `MOST_REMEMBERED`."""
        ended = [key for key, each in self.runners.items() if not each.is_running]
        for key in ended[: max(0, len(self.runners) - MOST_REMEMBERED)]:
            self.runners.pop(key).output.unlink(missing_ok=True)


def _read_end(output: Path) -> bytes:
    """Read the last bytes of a runner's output, `MOST_OUTPUT` at most: the whole may not fit the memory."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - MOST_OUTPUT))
        return file.read(MOST_OUTPUT)


def _cut_to_end(output: Path) -> None:
    """Leave only the last bytes of the output of a runner that has ended: the job's log has the rest."""
    if output.stat().st_size > MOST_OUTPUT:
        output.write_bytes(_read_end(output))


def main(arguments: list[str]) -> int:
    """Serve on the socket with this file descriptor."""
    os.umask(PRIVATE_UMASK)
    torch.set_num_threads(1)
    listener = socket.socket(fileno=int(arguments[0]))
    # Objects of the imports stay in the memory that all forks share.
    gc.collect()
    gc.freeze()
    return ForkServer(listener, float(arguments[1])).serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
