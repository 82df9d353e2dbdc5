"""Worker processes of this machine, each on one thread, that do pieces of work several at a time."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import Any, TypeAlias

import torch

Worker: TypeAlias = Callable[[Any], Any]
"""Does one piece of work; a worker process keeps its own between pieces."""


KILLED = "a process was killed, perhaps for want of memory: give fewer --processes"
"""Message for a piece of work whose process was killed."""

_HERE: dict[str, Worker] = {}  # one entry, in worker processes only: an initialiser returns nothing


def _begin(make_worker: Callable[..., Worker], arguments: tuple[Any, ...]) -> None:
    """Begin a worker process: on one thread, and gone when its parent is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()
    _HERE["worker"] = make_worker(*arguments)


def _end_with_parent() -> None:
    """End this process when its parent has ended; nobody would read its results."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(piece: Any) -> Any:
    return _HERE["worker"](piece)


@contextmanager
def open_processes(
    processes: int, make_worker: Callable[..., Worker], arguments: tuple[Any, ...]
) -> Iterator[Callable[[Any], Future[Any]]]:
    """Start worker processes, each on one thread; an error, Ctrl-C included, ends them at once.

    Args:
        processes: their number.
        make_worker: makes the worker of a process, in the process.
        arguments: of `make_worker`.

    Yields:
        A function that gives a piece of work to one of them, and returns the future of its result.
    """
    others = set(active_children())
    executor = ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=_begin, initargs=(make_worker, arguments)
    )
    with _one_thread_for_children(), executor:
        try:
            yield lambda piece: executor.submit(_work, piece)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()
            raise


def finish_pieces(
    pieces: Iterable[Any], processes: int, make_worker: Callable[..., Worker], arguments: tuple[Any, ...]
) -> Iterator[tuple[Any, Any]]:
    """Have worker processes do pieces of work.

    A killed process takes the others with it, and what they were doing. New ones do the pieces that are left.

    Args:
        pieces: of work.
        processes: their number.
        make_worker: makes the worker of a process, in the process.
        arguments: of `make_worker`.

    Yields:
        Each piece with its result as it ends, or with a text that says that its process was killed.
    """
    left = deque(pieces)
    while left:
        with open_processes(processes, make_worker, arguments) as submit:
            yield from _finish_until_killed(left, processes, submit)


def _finish_until_killed(
    left: deque[Any], processes: int, submit: Callable[[Any], Future[Any]]
) -> Iterator[tuple[Any, Any]]:
    """Do pieces of work until none is left, or until a process was killed; see `finish_pieces`."""
    running, killed = dict[Future[Any], Any](), False
    while running or (left and not killed):
        # No piece waits in the pool: a killed process is the fault of a piece that had begun.
        while left and not killed and len(running) < processes:
            try:
                future = submit(left[0])
            except BrokenProcessPool:
                killed = True
            else:
                running[future] = left.popleft()
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            killed = killed or isinstance(future.exception(), BrokenProcessPool)
            yield running.pop(future), _read_result(future)


def _read_result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except BrokenProcessPool:
        return KILLED


@contextmanager
def _one_thread_for_children() -> Iterator[None]:
    """Limit the processes that start meanwhile to one thread: their libraries read it at their import."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
