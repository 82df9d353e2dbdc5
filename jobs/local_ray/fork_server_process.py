"""The keeper's side of the fork server, and how any process of this machine asks it.

The fork server (`jobs.run.forks.fork_server`) starts the runners of all jobs. The keeper listens on its
socket, and starts the server when somebody asks: a server that ended because it was idle comes back with the
next question.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FORK_SOCKET = "runners.sock"
"""The socket of the fork server, in the private directory of the local Ray."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables of the fork server: a process with several threads must not fork."""

ANSWER_SECONDS = 20.0
"""Time limit for an answer; a server that has just been started imports torch first."""

END_SECONDS = 5.0

MOST_FAILURES = 3
"""Failures in a row after which the keeper starts the server no more."""

BROKEN_SECONDS = 60.0
"""A server that ends with an error within so many seconds has failed; a later end has another cause."""


def ask_fork_server(path: Path, question: Mapping[str, Any], seconds: float = ANSWER_SECONDS) -> Any:
    """Send a question to the fork server, and return its answer.

    Args:
        path: of the socket.
        question: values that JSON can hold.
        seconds: time limit.

    Raises:
        OSError, ValueError: if no server answers.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(str(path))
        connection.sendall(json.dumps(question).encode() + b"\n")
        with connection.makefile("rb") as answer:
            return json.loads(answer.readline())


def end_with_parent(number: signal.Signals) -> None:
    """Ask the kernel (Linux) to send this process a signal when the thread that started it ends."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, number)


def name_process(name: str) -> None:
    """Give this process a name of up to 15 bytes (Linux), which `ps -o comm` and `top` show."""
    if sys.platform == "linux":
        set_name = 15
        ctypes.CDLL(None).prctl(set_name, name.encode())


class ForkServerProcess:
    """The fork server of a keeper.

    Args:
        directory: private; it gets the socket, and the output of the runners.
        idle_seconds: the server ends after so many seconds without a runner and without a question; 0: there
            is no server. There is none without Linux either.
    """

    def __init__(self, directory: Path, idle_seconds: int) -> None:
        self.idle_seconds, self._path = idle_seconds, directory / FORK_SOCKET
        self._failures, self._started_at = 0, 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: socket.socket | None = None
        # Elsewhere a fork of a process with torch imported may crash, and processes outlive their parent.
        if idle_seconds and sys.platform == "linux":
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(self._path))
            self._listener.listen()
            self._start(self._listener)

    def _start(self, listener: socket.socket) -> None:
        self._started_at = time.monotonic()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jobs.run.forks.fork_server",
                str(listener.fileno()),
                str(self.idle_seconds),
            ],
            stdin=subprocess.DEVNULL,
            cwd=self._path.parent,
            env=os.environ | ONE_THREAD,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            preexec_fn=lambda: end_with_parent(signal.SIGTERM),
        )

    def start_if_asked(self) -> None:
        """Start the server again if it has ended and somebody asks it; not if it has failed too often."""
        if self._listener is None or self._process is None or self._is_alive():
            return
        if not select.select([self._listener], [], [], 0)[0]:
            return
        is_broken = self._process.returncode != 0 and time.monotonic() - self._started_at < BROKEN_SECONDS
        self._failures = self._failures + 1 if is_broken else 0
        if self._failures < MOST_FAILURES:
            self._start(self._listener)
            return
        sys.stderr.write(f"the fork server failed {self._failures} times: all jobs are jobs of Ray now\n")
        self._listener.close()
        self._listener = None

    def has_runners(self) -> bool:
        """Return whether a runner of the server runs."""
        if not self._is_alive():
            return False
        try:
            return bool(ask_fork_server(self._path, {"ask": "count"})["running"])
        except (OSError, ValueError, LookupError):
            return self._is_alive()

    def end(self) -> None:
        """End the server with its runners."""
        if self._listener is not None:
            self._listener.close()
        if self._process is not None and self._is_alive():
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            self._process.kill()
            self._process.wait()

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None
