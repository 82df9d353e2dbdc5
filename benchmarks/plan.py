"""What `fedsim plan` foretells against what the run then measures.

    python benchmarks/plan.py                  # three presets; prints one JSON line for each
    python benchmarks/plan.py demo --pairs 5 --set rounds=100
    python benchmarks/plan.py cifar10-folders --seconds 5    # too short for whole rounds: parts of them

Plan and run alternate, `--pairs` times; the figure is the median ratio of the seconds per round that were
planned to those that the run's records have on average, evaluation included.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import here
from jobs.plan.planner import plan
from jobs.run.execute import execute
from jobs.run.ray_connection import connect_to_ray
from jobs.settings import Settings
from jobs.spec import JobSpec, load_spec

PRESETS = {
    "demo": ["rounds=100"],
    "fmnist-fedavg": ["rounds=10"],
    "cifar10-folders": ["rounds=3"],
}
"""What is set in each, so that a run is long enough for a mean and short enough to wait for."""


def compare(spec: JobSpec, settings: Settings, measuring: float) -> dict[str, Any]:
    """One plan and one run of it: seconds per round, and the bytes of the run."""
    found = plan(spec, settings, seconds=measuring)
    if found.seconds is None or found.bytes is None or found.measured is None:
        raise SystemExit(f"{spec.name}: no figures: {found.message or '; '.join(found.notes)}")
    records = execute(spec, settings).records
    seconds = mean(record.seconds.total for record in records)
    planned, measured = found.bytes.total, [record.bytes for record in records]
    return {
        "planned_s": found.seconds.round.total,
        "measured_s": round(seconds, 6),
        "ratio": round(found.seconds.round.total / seconds, 3),
        "whole_rounds": found.measured.whole_rounds,
        "bytes_agree": (planned.down, planned.up)
        == (sum(each.down for each in measured), sum(each.up for each in measured)),
    }


def main() -> None:
    """Compare the presets named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("specs", nargs="*", default=list(PRESETS))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="to measure each plan for, about")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    options = parser.parse_args()
    settings = Settings.from_env()
    with connect_to_ray(settings):
        for name in options.specs:
            spec = load_spec(name, [*PRESETS.get(name, []), *options.set])
            pairs = []
            for _ in range(options.pairs):
                pairs.append(compare(spec, settings, options.seconds))
                print(f"  {name}: {pairs[-1]}", file=sys.stderr, flush=True)
            line = {
                "spec": name,
                "ratio": median(pair["ratio"] for pair in pairs),
                "ratios": [pair["ratio"] for pair in pairs],
                "planned_s": median(pair["planned_s"] for pair in pairs),
                "measured_s": median(pair["measured_s"] for pair in pairs),
                "bytes_agree": all(pair["bytes_agree"] for pair in pairs),
                "pairs": options.pairs,
            }
            print(json.dumps({**line, **here()}), flush=True)


if __name__ == "__main__":
    main()
