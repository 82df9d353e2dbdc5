"""Many runs: the time from a command or a submission to the first round, a sweep, and many tiny jobs.

    python benchmarks/many_runs.py run demo --before ../old          # command to first round, and whole
    python benchmarks/many_runs.py warm workload-a --before ../old   # submission to first round
    python benchmarks/many_runs.py sweep --runs 24                   # against a plain loop over simulate
    python benchmarks/many_runs.py tiny --jobs 500                   # jobs of 2 rounds and one worker

Each prints one JSON line. `--before` names a checkout of an earlier version. `run` measures both in pairs, so
that other work on the machine changes both; the others measure one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import here
from benchmarks.start import SPEC as WORKLOAD_A
from jobs.spec import load_spec

ROOT = Path(__file__).parents[1]

TINY: dict[str, Any] = {
    "algorithm": "fedavg",
    "rounds": 2,
    "clients": {"total": 20, "fraction": 0.2},
    "model": "logistic",
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
    "resources": {"workers": 1},
}

ENDED = {"SUCCEEDED", "FAILED", "CANCELLED"}


def make_environment(root: Path, home: Path) -> dict[str, str]:
    """Make the environment of a process that runs the checkout `root` on a home of its own."""
    data = os.environ.get("FEDSIM_DATA", str(Path("~/.fedsim/data").expanduser()))
    return os.environ | {"PYTHONPATH": str(root), "FEDSIM_HOME": str(home), "FEDSIM_DATA": data}


def time_command(root: Path, spec: str) -> tuple[float, float]:
    """Return the seconds from the start of `fedsim run` to its first record, and to its end."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "api.cli.main", "run", spec, "--format", "jsonl"]
        began = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env=make_environment(root, Path(home)), cwd=home
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            first = time.perf_counter() - began
            process.stdout.read()
        if not line or process.returncode:
            raise RuntimeError(f"`{' '.join(command)}` ended with {process.returncode}")
        return first, time.perf_counter() - began


@contextmanager
def serve(root: Path) -> Iterator[httpx.Client]:
    """Run the service of a checkout on a home of its own, warm after one job; yield a client of its API."""
    with tempfile.TemporaryDirectory() as home:
        environment, port = make_environment(root, Path(home)), 18000 + os.getpid() % 1000
        fedsim = [sys.executable, "-m", "api.cli.main"]
        with Path(home, "serve.out").open("wb") as log:
            # Not in the folder of this file: Python would import its packages instead of those of `root`.
            output: dict[str, Any] = {"env": environment, "stdout": log, "stderr": log, "cwd": home}
            server = subprocess.Popen([*fedsim, "serve", "--port", str(port)], **output)
            try:
                with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                    wait_until(lambda: is_ready(client))
                    wait_for_jobs(client, [submit(client, TINY)])
                    yield client
            finally:
                server.terminate()
                server.wait()
                subprocess.run([*fedsim, "stop", "--force"], **output, check=False)


def is_ready(client: httpx.Client) -> bool:
    """Return whether the service can run jobs."""
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def wait_until(check: Callable[[], bool], pause: float = 0.02, seconds: float = 3600) -> None:
    """Wait until a check returns True.

    Args:
        check: what is asked again and again.
        pause: seconds between two checks; each takes time of the same machine.
        seconds: after which waiting is given up.

    Raises:
        RuntimeError: if it takes too long.
    """
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise RuntimeError("the service is too slow")
        time.sleep(pause)


def submit(client: httpx.Client, spec: dict[str, Any]) -> str:
    """Submit a spec, and return the job's id."""
    answer = client.post("/api/v1/jobs", json={"spec": spec})
    answer.raise_for_status()
    return str(answer.json()["id"])


def wait_for_jobs(client: httpx.Client, jobs: list[str]) -> None:
    """Wait until all jobs have succeeded.

    Raises:
        RuntimeError: if one has not.
    """
    for job in jobs:
        wait_until(lambda: client.get(f"/api/v1/jobs/{job}").json()["state"] in ENDED, 0.2)  # noqa: B023
        if (found := client.get(f"/api/v1/jobs/{job}").json())["state"] != "SUCCEEDED":
            raise RuntimeError(f"job {job}: {found['state']}, {found['message']}")


def time_warm_submission(root: Path, times: int, spec: str) -> list[float]:
    """Return the seconds from a submission to the service's record of round 1, each time."""
    found = list[float]()
    with serve(root) as client:
        for seed in range(times):
            began = time.perf_counter()
            job = submit(client, {**WORKLOAD_A, "seed": seed} if spec == "workload-a" else make_demo(seed))
            wait_until(lambda: client.get(f"/api/v1/jobs/{job}").json()["rounds_done"] > 0)  # noqa: B023
            found.append(time.perf_counter() - began)
            wait_for_jobs(client, [job])
    return found


def time_jobs(root: Path, specs: list[dict[str, Any]]) -> float:
    """Return the seconds from the first submission to the last end of jobs on a warm service."""
    with serve(root) as client:
        began = time.perf_counter()
        wait_for_jobs(client, [submit(client, spec) for spec in specs])
        return time.perf_counter() - began


def make_demo(seed: int) -> dict[str, Any]:
    """Make the demo with another seed."""
    return load_spec("demo", [f"seed={seed}"]).model_dump(mode="json")


def time_plain_loop(runs: int, processes: int) -> float:
    """Return the seconds of a loop over `simulate`, in processes that have imported fedsim."""
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        list(pool.map(simulate_demo, range(-processes, 0)))
        began = time.perf_counter()
        list(pool.map(simulate_demo, range(runs)))
        return time.perf_counter() - began


def simulate_demo(seed: int) -> None:
    """Run the demo by `simulate`; a negative seed only one round."""
    import torch

    from fedsim.engine.pools import SerialPool
    from fedsim.engine.simulation import simulate
    from jobs.settings import Settings
    from jobs.spec.resolve import resolve_spec

    torch.set_num_threads(1)
    experiment = resolve_spec(load_spec("demo", [f"seed={abs(seed)}"]), Settings.from_env())
    population = experiment.load_population()
    pool = SerialPool(experiment.algorithm, population)
    for _ in simulate(experiment.algorithm, population, pool, rounds=1 if seed < 0 else None):
        pass


def measure_run(asked: argparse.Namespace, roots: dict[str, Path]) -> dict[str, Any]:
    """Measure `fedsim run` in pairs."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spec.json"
        file.write_text(json.dumps(WORKLOAD_A), encoding="utf-8")
        spec = str(file) if asked.spec == "workload-a" else asked.spec
        pairs = [{name: time_command(root, spec) for name, root in roots.items()} for _ in range(asked.times)]
    return {
        name: {
            "to_round_1": round(median(pair[name][0] for pair in pairs), 2),
            "whole": round(median(pair[name][1] for pair in pairs), 2),
        }
        for name in roots
    }


def main() -> None:
    """Measure what the command line asks for, and print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "warm", "sweep", "tiny"))
    parser.add_argument(
        "spec", nargs="?", default="demo", help="of `run`: a spec; of `run` and `warm`: demo or workload-a"
    )
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=500)
    asked = parser.parse_args()
    roots = {"before": asked.before.resolve()} if asked.before else {}
    roots["now"] = ROOT
    if asked.what == "run":
        found = measure_run(asked, roots)
    elif asked.what == "warm":
        found = {
            name: round(median(time_warm_submission(root, asked.times, asked.spec)), 2)
            for name, root in roots.items()
        }
    elif asked.what == "sweep":
        specs = [make_demo(seed) for seed in range(asked.runs)]
        found = {name: round(time_jobs(root, specs), 1) for name, root in roots.items()}
        found["plain_loop"] = round(time_plain_loop(asked.runs, os.cpu_count() or 1), 1)
    else:
        specs = [{**TINY, "seed": seed} for seed in range(asked.jobs)]
        found = {name: round(60 * asked.jobs / time_jobs(root, specs), 1) for name, root in roots.items()}
    print(json.dumps({"what": asked.what, **found, **here()}))


if __name__ == "__main__":
    main()
