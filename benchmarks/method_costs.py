"""The traffic and the computing of every algorithm in one small case, relative to FedAvg.

    python -m benchmarks.method_costs              # the algorithms without a row, and the tables of the docs
    python -m benchmarks.method_costs fedavg kdia  # these algorithms again
    python -m benchmarks.method_costs --all        # all algorithms again, in a few minutes

Bytes and FLOPs are exact counts of the records, not times. They are sums over all rounds, because the rounds
of some algorithms differ: FedGKD sends its teacher from the third round on, and FedKD sends only once. The
rows are written to fedsim/algorithms/costs.json, the tables to docs/methods/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedsim.algorithms import ALGORITHMS
from fedsim.algorithms.costs import read_costs
from fedsim.core.purposes import PURPOSES
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.server_messages import make_broadcasts, make_instructions, measure_bytes_down
from fedsim.engine.simulation import simulate
from jobs.grid.pages import write_section
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.catalogue import catalogue
from jobs.spec.resolve import resolve_spec

ROOT = Path(__file__).parents[1]
FILE = ROOT / "fedsim" / "algorithms" / "costs.json"
PAGE = ROOT / "docs" / "methods" / "README.md"
COMMAND = "python -m benchmarks.method_costs"

CASE: Mapping[str, Any] = {
    "seed": 7,
    "rounds": 10,
    "clients": {"total": 10, "fraction": 1.0},
    "data": {
        "dataset": "digits",
        "partition": {"kind": "dirichlet", "beta": 0.5, "min_size": 5},
        "public": {"fraction": 0.1},
    },
    "model": {"name": "mlp", "layers": 2},
    "local": {"epochs": 1, "batch_size": 10, "lr": 0.05},
}

CHANGES: Mapping[str, Mapping[str, Any]] = {
    "fedad": {"model": "fedgen_cnn"},  # attention maps need convolutions; this model takes 8x8 pixels
    "fedbn": {"model": "fedgen_cnn"},  # without BatchNorm it is FedAvg
    "fedcog": {"algorithm.start_round": 0},  # 50 by default: it would be FedAvg in all rounds of the case
    "layer_schedule": {"algorithm.times": "even"},  # every 100 rounds by default: one block alone would open
}
"""What differs from the case for single algorithms."""


class Totals(NamedTuple):
    """Counts of a run: payload names in each direction, bytes of both, FLOPs of the clients' training."""

    down: tuple[str, ...]
    up: tuple[str, ...]
    bytes: int
    flops: int


def measure_row(name: str) -> dict[str, Any]:
    """Run the case with an algorithm and with FedAvg, and return the row of the algorithm."""
    changes = CHANGES.get(name, {})
    model = changes.get("model", CASE["model"])
    parameters = {key.partition(".")[2]: value for key, value in changes.items() if "." in key}
    own = run_case({"name": name, **parameters}, model)
    fedavg = _run_fedavg(json.dumps(model))
    return {
        **own._asdict(),
        "fedavg_bytes": fedavg.bytes,
        "fedavg_flops": fedavg.flops,
        "changes": dict(changes),
    }


@cache
def _run_fedavg(model: str) -> Totals:
    return run_case({"name": "fedavg"}, json.loads(model))


def run_case(algorithm: Mapping[str, Any], model: Any) -> Totals:
    """Run the case with an algorithm and a model, as a spec names them."""
    spec = parse_spec({**CASE, "algorithm": dict(algorithm), "model": model})
    experiment = resolve_spec(spec, Settings.from_env())
    method, population = experiment.algorithm, experiment.load_population()
    state = make_initial_state(method, population)
    down, up, total_bytes, flops = dict[str, None](), dict[str, None](), 0, 0
    pool = SerialPool(method, population)
    for result in simulate(method, population, pool, evaluate_every=spec.rounds, personal="never"):
        ctx = population.context(result.round - 1)
        broadcasts = make_broadcasts(method, ctx, state)
        instructions = make_instructions(method, ctx, state, result.cohort)
        sent = measure_bytes_down(method, ctx, broadcasts, instructions).sum_payloads(result.cohort)
        rest = {each: size - sent[each] for each, size in result.traffic.by_payload.items()}
        down |= dict.fromkeys(each for each, size in sent.items() if size)
        up |= dict.fromkeys(each for each, size in rest.items() if size)
        if result.traffic.down > sum(sent.values()):  # the label census, before the first broadcast
            down |= dict.fromkeys(each for each in rest if each not in {*sent, *method.uploads})
        total_bytes += result.traffic.down + result.traffic.up
        flops += result.cost.flops
        state = result.state
    return Totals(tuple(sorted(down)), tuple(sorted(up)), total_bytes, flops)


def make_section() -> str:
    """The section of the page: methods by purpose, and the costs of each."""
    entries = [entry for entry in catalogue("algorithms") if entry["costs"]]
    by_purpose = {
        purpose: [entry["name"] for entry in entries if purpose in entry["purposes"]] for purpose in PURPOSES
    }
    changes = "; ".join(
        f"`{name}` with `{field}: {value}`"
        for name, cost in sorted(read_costs().items())
        for field, value in cost.changes.items()
    )
    return "\n".join(
        [
            "| purpose | meaning | methods |",
            "| --- | --- | --- |",
            *(
                f"| `{purpose}` | {PURPOSES[purpose]} | {_code(names)} |"
                for purpose, names in by_purpose.items()
            ),
            "",
            "| method | purposes | paper | down | up | traffic | computing |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *map(_row, entries),
            "",
            f"The case differs for {changes}; FedAvg has the same model there. Command: `{COMMAND}`.",
        ]
    )


def _row(entry: Mapping[str, Any]) -> str:
    costs = entry["costs"]
    cells = [
        f"`{entry['name']}`",
        ", ".join(entry["purposes"]),
        entry["citation"],
        _code(costs["down"]),
        _code(costs["up"]),
        f"{costs['traffic']:g}",
        f"{costs['computing']:g}",
    ]
    return f"| {' | '.join(cells)} |"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def record_rows(names: Collection[str]) -> None:
    """Measure these algorithms, and write their rows and the tables of the docs."""
    rows = dict(json.loads(FILE.read_text("utf-8"))["algorithms"]) if FILE.is_file() else {}
    for name in names:
        rows[name] = measure_row(name)
        sys.stderr.write(f"{name}: {rows[name]}\n")
        _write_rows(rows)
    _write_rows(rows)
    read_costs.cache_clear()
    write_section(PAGE, "purposes and costs", make_section())


def _write_rows(rows: Mapping[str, Any]) -> None:
    """Write one line for each algorithm that is still there, so that a new row changes one line."""
    kept = [f'  "{name}": {json.dumps(rows[name])}' for name in sorted(rows) if name in ALGORITHMS.own]
    lines = [f'{{\n "case": {json.dumps(CASE)},\n "algorithms": {{', ",\n".join(kept), " }\n}\n"]
    FILE.write_text("\n".join(lines), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Record what every algorithm costs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: the algorithms without a row")
    parser.add_argument("--all", action="store_true", help="all algorithms")
    options = parser.parse_args()
    own = sorted(ALGORITHMS.own)
    if wrong := set(options.names) - set(own):
        parser.error(f"no such algorithm: {', '.join(sorted(wrong))}; choose from {', '.join(own)}")
    known = read_costs() if FILE.is_file() and not options.all else {}
    record_rows(options.names or [name for name in own if name not in known])


if __name__ == "__main__":
    main()
