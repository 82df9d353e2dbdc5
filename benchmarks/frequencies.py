"""The clients' weights in KDIA's teacher, and their three frequencies by round (paper 003, Fig. 5).

python -m benchmarks.frequencies     # draws docs/figures/frequencies.svg, writes into docs/results/kdia.md

Nothing is trained: the weights depend only on the cohorts and on the clients' numbers of examples. The setup
is the paper's: 100 clients, 10 of them in each of 200 rounds, and 45,000 images of ten even classes (CIFAR-10
without the validation set).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.places import PAGES
from fedsim.base import rng
from fedsim.data import make_partition
from fedsim.techniques.last_models import POWERS_BY_KIND, SINGLE_POWERS, Powers, client_weight
from jobs.grid.pages import write_section

NAME = "kdia-frequencies"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "frequencies.svg"

CLIENTS, COHORT, ROUNDS = 100, 10, 200
LABELS = np.repeat(np.arange(10), 4_500)
BETAS = (0.1, 0.5, 5.0)
SEEDS = range(2506, 2526)
SHOWN = (1, 5, 10, 20, 50, 100, 200)

TRIFREQS = POWERS_BY_KIND["geometric"]["geometric"]
NAMES = {"interval": "interval", "count": "count", "volume": "data"}

Real: TypeAlias = NDArray[np.float64]


class Seen(NamedTuple):
    """The server's knowledge of the clients after a round, int64 `[N]` each.

    Attributes:
        age: rounds since a client last took part.
        visits: rounds in which it took part.
        examples: its number of examples.
    """

    age: torch.Tensor
    visits: torch.Tensor
    examples: torch.Tensor

    def frequency(self, powers: Powers) -> Real:
        """Each client's weight, 1 being an even share of all N; float64 `[N]`."""
        weights = client_weight(powers, *self).numpy()
        return np.asarray(CLIENTS * weights / weights.sum())


def rounds(beta: float, seed: int) -> Iterator[Seen]:
    """A federation's rounds; the cohorts are drawn as in any job."""
    kind: dict[str, Any] = {"kind": "dirichlet", "beta": beta, "min_size": 10}
    dealt = make_partition(labels=LABELS, num_clients=CLIENTS, num_classes=10, seed=seed, **kind)
    sizes = torch.from_numpy(dealt.sizes())
    age, visits = torch.zeros(CLIENTS, dtype=torch.int64), torch.zeros(CLIENTS, dtype=torch.int64)
    for number in range(ROUNDS):
        came = rng.stream(seed, "cohort", number).choice(CLIENTS, COHORT, replace=False)
        age += 1
        age[came] = 0
        visits[came] += 1
        yield Seen(age.clone(), visits.clone(), sizes)


def outliers(weights: Real) -> int:
    """The number of weights beyond the whiskers of a box plot: 1.5 of its lengths from the box."""
    low, high = np.quantile(weights, [0.25, 0.75])
    reach = 1.5 * (high - low)
    return int(((weights < low - reach) | (weights > high + reach)).sum())


def spread(values: list[float], digits: int = 2) -> str:
    """Mean and standard deviation over the seeds."""
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


def weights_table(ended: dict[float, list[Seen]]) -> list[str]:
    """Part (a): the spread of the weights after the last round."""
    lines = [
        "| data | weights | standard deviation | middle half | largest | outliers of 100 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for beta, federations in ended.items():
        for name, powers in (("sinFreqs", SINGLE_POWERS["volume"]), ("triFreqs", TRIFREQS)):
            found = [seen.frequency(powers) for seen in federations]
            half = [float(np.subtract(*np.quantile(each, [0.75, 0.25]))) for each in found]
            cells = [
                spread([float(each.std()) for each in found]),
                spread(half),
                spread([float(each.max()) for each in found]),
                spread([float(outliers(each)) for each in found], 1),
            ]
            lines.append(f"| Dir({beta:g}) | {name} | {' | '.join(cells)} |")
    return lines


def course(federations: list[list[Seen]], kind: str) -> Real:
    """Part (b): the variance of one frequency over the clients, float64 `[seeds, rounds]`."""
    return np.array([[seen.frequency(SINGLE_POWERS[kind]).var() for seen in each] for each in federations])


def course_table(courses: dict[str, Real]) -> list[str]:
    """Part (b) in some of the rounds."""
    head = " | ".join(f"round {number}" for number in SHOWN)
    lines = [f"| variance of | {head} |", f"| --- |{' --- |' * len(SHOWN)}"]
    for kind, values in courses.items():
        cells = " | ".join(spread(values[:, number - 1].tolist()) for number in SHOWN)
        lines.append(f"| {NAMES[kind]} | {cells} |")
    return lines


def draw(ended: dict[float, list[Seen]], courses: dict[str, Real]) -> None:
    """Draw both parts for the first seed, as in the paper."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # As benchmarks.cluster_figure: without pyplot, and equal pictures are equal files.
    with matplotlib.rc_context({"svg.hashsalt": NAME, "svg.fonttype": "none", "font.size": 8}):
        canvas = Figure(figsize=(7.0, 2.8), layout="constrained")
        FigureCanvasAgg(canvas)
        boxes, lines = canvas.subplots(1, 2)
        pairs = [(f"Dir({beta:g})", first[0]) for beta, first in ended.items()]
        drawn = [
            seen.frequency(powers) for _, seen in pairs for powers in (SINGLE_POWERS["volume"], TRIFREQS)
        ]
        ticks = [f"{name}\n{data}" for data, _ in pairs for name in ("sin", "tri")]
        boxes.boxplot(drawn, tick_labels=ticks, flierprops={"markersize": 3})
        boxes.set(title=f"weights after round {ROUNDS}", ylabel="even share = 1")
        every: Any = np.arange(1, ROUNDS + 1)
        for kind, values in courses.items():
            lines.plot(every, values[0], label=NAMES[kind], linewidth=1)
        lines.set(title="variance over the clients, Dir(0.5)", xlabel="round", yscale="log")
        lines.legend(frameon=False)
        canvas.savefig(FIGURE, metadata={"Date": None})


ABOUT = f"""## Weights of the clients' last models in the teacher (Fig. 5 of the paper)

- `sinFreqs` are the weights by number of examples alone; `triFreqs` are the weights by all three
  frequencies. A weight of 1 is an even share.
- The paper's scale: {CLIENTS} clients, {COHORT} of them in each of {ROUNDS} rounds, 45,000 images of ten
  even classes (CIFAR-10 without the tenth for validation). Nothing is trained.

Mean ± standard deviation over the {len(SEEDS)} seeds from {SEEDS[0]} on. The picture shows the first seed.

![Box plots of the weights by beta, variances of the frequencies by round](../figures/{FIGURE.name})

Weights after round {ROUNDS}:
"""


def section(ended: dict[float, list[Seen]], courses: dict[str, Real]) -> str:
    """The section of the page."""
    between = "\nVariance of each frequency over the clients, by round, Dir(0.5):\n"
    foot = "\nCommand: `python -m benchmarks.frequencies`"
    return "\n".join([ABOUT, *weights_table(ended), between, *course_table(courses), foot])


def measured() -> tuple[dict[float, list[Seen]], dict[str, Real]]:
    """The last round by beta and seed, and the courses at beta = 0.5."""
    ended: dict[float, list[Seen]] = {}
    courses: dict[str, Real] = {}
    for beta in BETAS:
        federations = [list(rounds(beta, seed)) for seed in SEEDS]
        ended[beta] = [each[-1] for each in federations]
        if beta == 0.5:
            courses = {kind: course(federations, kind) for kind in NAMES}
    return ended, courses


def main() -> None:
    found = measured()
    draw(*found)
    write_section(PAGES / "kdia.md", NAME, section(*found))


if __name__ == "__main__":
    main()
