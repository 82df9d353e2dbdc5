"""Worker processes beside what else a process has."""

from __future__ import annotations

import os
from functools import partial
from multiprocessing import active_children, get_context

import pytest

from jobs.run.without_ray.processes import KILLED, finish_pieces, open_processes


def test_an_error_ends_the_workers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    waits, releases = get_context("spawn").Pipe(duplex=False)
    mine = get_context("spawn").Process(target=waits.recv)
    mine.start()

    def fail() -> None:
        with open_processes(1, partial, (str,)) as submit:
            assert submit(17).result() == "17"
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    for worker in set(active_children()) - {mine}:
        worker.join()
    releases.send(None)
    mine.join()
    assert mine.exitcode == 0
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_killed_worker_is_the_fault_of_its_piece_of_work() -> None:
    ((piece, result),) = finish_pieces([1], 1, partial, (os._exit,))
    assert piece == 1
    assert "perhaps for want of memory" in result


def test_a_killed_worker_ends_no_other_piece_of_work() -> None:
    kill = "__import__('os')._exit(1)"
    found = dict(finish_pieces(["1", kill, "2", "3"], 1, partial, (eval,)))
    assert found == {"1": 1, kill: KILLED, "2": 2, "3": 3}


def test_a_killed_worker_ends_only_what_was_in_work() -> None:
    kill = "__import__('os')._exit(1)"
    found = dict(finish_pieces([*"12", kill, *"3456"], 2, partial, (eval,)))
    assert found[kill] == KILLED
    others = {piece: result for piece, result in found.items() if piece != kill}
    assert sorted(others) == [*"123456"]
    assert sum(result == KILLED for result in others.values()) <= 1
    assert all(result in (KILLED, int(piece)) for piece, result in others.items())
