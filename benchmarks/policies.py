"""The picture of docs/clock.md: when clients are busy under each policy, on one fleet.

    python -m benchmarks.policies     # draws docs/figures/policies.svg

Twelve clients train on the digits, five in a round or in flight, with the same fleet and the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from fedsim.algorithms import FedAvg
from fedsim.base.costs import ClockReading
from fedsim.clients.population import Population
from fedsim.clock.asynchronous import Asynchronous, FedBuff
from fedsim.clock.devices import Devices
from fedsim.clock.fleets import Phones
from fedsim.clock.policies import Deadline, OverSelection, Policy, Wait
from fedsim.core import LocalTraining, RunSettings
from fedsim.engine.experiment import Experiment
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "policies.svg"

CLIENTS, COHORT, ROUNDS, SEED = 12, 5, 40, 25
SECONDS = 1.0
"""The length of the picture, in simulated seconds."""

POLICIES: Mapping[str, Policy | Asynchronous] = {
    "wait": Wait(),
    "deadline, 0.12 s": Deadline(seconds=0.12),
    "over_selection, 7 for 5": OverSelection(factor=1.4),
    "fedbuff, buffer of 3": FedBuff(buffer=3),
}


def make_population() -> Population:
    """Make the federation: the digits, dealt by Dirichlet(1)."""
    local = LocalTraining(epochs=3, batch_size=10, lr=0.05)
    return Experiment(
        algorithm=FedAvg(),
        settings=RunSettings(seed=SEED, rounds=ROUNDS, cohort_size=COHORT, local=local),
        num_clients=CLIENTS,
        dataset=("digits", {}),
        partition=("dirichlet", {"beta": 1.0, "min_size": 20}),
        models=(("mlp", {}),),
    ).load_population()


def read_clocks(population: Population, policy: Policy | Asynchronous) -> list[ClockReading]:
    """Run until the end of the picture, and return the clock of each round but the first that ends later."""
    algorithm, devices = FedAvg(), Devices(fleet=Phones(efficiency=0.002), policy=policy)
    pool = SerialPool(algorithm, population)
    results = simulate(algorithm, population, pool, evaluate_every=ROUNDS, devices=devices)
    clocks = (result.clock for result in results)
    return list(takewhile(lambda clock: clock.total <= SECONDS, filter(None, clocks)))


def draw(found: Mapping[str, Sequence[ClockReading]], file: Path) -> None:
    """Draw a panel for each policy: a line for each client, and a vertical line for each server step."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = FIGURE.stem  # the same file in every run
    figure = Figure(figsize=(9, 9), layout="constrained")
    panels: Any = figure.subplots(len(found), 1, sharex=True)
    for panel, (name, clocks) in zip(panels, found.items(), strict=True):
        updates = sum(time.counts for clock in clocks for time in clock.timeline)
        for clock in clocks:
            panel.axvline(clock.total, color="0.3", linewidth=1, linestyle=":")
            for time in clock.timeline:
                colour = "tab:blue" if time.counts else "tab:orange"
                panel.barh(time.client, time.end - time.start, left=time.start, height=0.7, color=colour)
        panel.set_title(f"{name}: {len(clocks)} server steps, {updates} updates", loc="left", fontsize=10)
        panel.set(ylim=(-0.7, CLIENTS - 0.3), xlim=(0, SECONDS), ylabel="client", yticks=range(0, CLIENTS, 2))
        panel.invert_yaxis()
    panels[-1].set_xlabel("simulated seconds")
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Run the policies and draw the picture."""
    population = make_population()
    found = {name: read_clocks(population, policy) for name, policy in POLICIES.items()}
    draw(found, FIGURE)
    for name, clocks in found.items():
        times = [time for clock in clocks for time in clock.timeline]
        counted = sum(time.counts for time in times)
        print(f"{name}: {len(clocks)} server steps, {counted} updates of {len(times)} that were begun")


if __name__ == "__main__":
    main()
