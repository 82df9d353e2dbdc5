"""From the start of the process to the end of round 1, as a user meets it.

    python benchmarks/start.py          # prints one JSON line

Starts `fedsim run` on workload A of `benchmarks/engine.py` several times, each in a process and with a Ray of
its own, and takes the time until the first round's record comes out, evaluation included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import here

ROOT = Path(__file__).parents[1]

SPEC = {
    "name": "workload-a",
    "rounds": 1,
    "clients": {"total": 1000, "fraction": 0.05},
    "data": {"dataset": "fashion_mnist", "limit": 50_000, "partition": {"kind": "iid"}},
    "model": "lenet5",
    "local": {"epochs": 1, "batch_size": 10, "lr": 0.05},
    "algorithm": "fedavg",
}


def first_record(spec: Path) -> float:
    """Seconds from starting the command to its first record.

    Raises:
        RuntimeError: if it ends without one.
    """
    command = [sys.executable, "-m", "api.cli.main", "run", str(spec), "--format", "jsonl"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    began = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        line = process.stdout.readline() if process.stdout else ""
        taken = perf_counter() - began
    if not line:
        raise RuntimeError(f"`{' '.join(command)}` ended with {process.returncode} and no record")
    return taken


def main() -> None:
    """Start it as often as asked, and print the median."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.json"
        spec.write_text(json.dumps(SPEC), encoding="utf-8")
        seconds = sorted(first_record(spec) for _ in range(times))
    figures = {"seconds_to_round_1": round(median(seconds), 2), "from": round(seconds[0], 2)}
    figures |= {"to": round(seconds[-1], 2), "times": times}
    print(json.dumps({**figures, **here()}))


if __name__ == "__main__":
    main()
