"""The figure and the numbers of docs/theory.md: the biased local-SGD model beside its bounds.

python -m benchmarks.theory          # writes docs/figures/theory.svg, prints one JSON line
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from math import log10
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedsim.curriculum.theory import (
    Array,
    BiasOrder,
    Quadratic,
    bias_bounds,
    lemma_bound,
    random_quadratic,
    simulate_biased,
    step_sizes,
    theorem1,
    theorem2,
)

ROUNDS, STEPS = 50, 5
ORDERS: tuple[BiasOrder, ...] = ("curriculum", "anti")
COLOURS = {"curriculum": "#1b7837", "anti": "#b2182b"}
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "theory.svg"


class Line(NamedTuple):
    """One line of a panel."""

    values: Sequence[float]
    colour: str
    dashes: str


def problem(seed: int) -> Quadratic:
    """A quadratic that starts near its optimum, so that the biases matter more than the start."""
    return random_quadratic(seed, clients=4, noise_slope=2.0, noise_floor=0.01, distance=0.01)


def steps(of: Quadratic, *, fall: bool) -> Array:
    """Half of what Theorem 1 allows, constant or falling as (t + 1)^-1 (j + 1)^-1/4."""
    by_round, by_step = (1.0, 0.25) if fall else (0.0, 0.0)
    return step_sizes(ROUNDS, STEPS, of.largest_step / 2, by_round=by_round, by_step=by_step)


def bounds(order: BiasOrder) -> Array:
    """B from 0.01 to 1."""
    return bias_bounds(order, ROUNDS, STEPS, 0.01, 1.0)


def lines(of: Quadratic, alpha: Array) -> list[Line]:
    """What is simulated and both bounds, for both orders."""
    drawn = []
    for order in ORDERS:
        simulated = simulate_biased(of, alpha, bounds(order), repeats=500)
        every = (simulated.distances, "none"), (lemma_bound(of, alpha, bounds(order)), "6 4")
        for values, dashes in (*every, (theorem1(of, alpha, bounds(order)), "2 3")):
            drawn.append(Line(values.tolist(), COLOURS[order], dashes))
    return drawn


def hundred(*, fall: bool) -> dict[str, Any]:
    """How the orders compare on a hundred problems, and whether every bound held."""
    ratios, held = [], 0
    for seed in range(100):
        of = problem(seed)
        alpha, ends = steps(of, fall=fall), list[float]()
        for order in ORDERS:
            found = simulate_biased(of, alpha, bounds(order), repeats=100, seed=seed)
            left, right = theorem2(of, alpha, found)
            under = [found.distances[1:] <= b(of, alpha, bounds(order))[1:] for b in (theorem1, lemma_bound)]
            held += bool(under[0].all() and under[1].all() and (left <= right).all())
            ends.append(float(found.distances[-1]))
        ratios.append(ends[0] / ends[1])
    nearer = sum(ratio < 1 for ratio in ratios)
    return {
        "bounds_held_of_200": held,
        "curriculum_nearer_of_100": nearer,
        "mean_ratio": round(fmean(ratios), 3),
    }


def panel(left: int, title: str, drawn: Sequence[Line]) -> Iterable[str]:
    """One panel: rounds to the right, distances upwards from 1e-5 to 1 on a logarithmic scale."""
    width, height, top = 300, 240, 40

    def point(number: int, value: float) -> str:
        upwards = (log10(max(value, 1e-5)) + 5) / 5
        return f"{left + width * number / ROUNDS:.1f},{top + height * (1 - upwards):.1f}"

    yield f'<text x="{left}" y="{top - 12}" font-weight="bold">{title}</text>'
    yield f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>'
    for power in range(-5, 1):
        y = top + height * -power / 5
        yield f'<path d="M{left} {y:.1f}h{width}" stroke="#ddd"/>'
        yield f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>'
    for number in range(0, ROUNDS + 1, 10):
        x = left + width * number / ROUNDS
        yield f'<text x="{x:.1f}" y="{top + height + 16}" text-anchor="middle">{number}</text>'
    for line in drawn:
        points = " ".join(point(number, value) for number, value in enumerate(line.values))
        yield f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="1.6" ' + (
            f'stroke-dasharray="{line.dashes}"/>'
        )


def legend() -> Iterable[str]:
    """What the lines are."""
    entries = [
        ("curriculum", COLOURS["curriculum"], "none"),
        ("anti", COLOURS["anti"], "none"),
        ("simulated", "#333", "none"),
        ("Lemmas 4 and 5", "#333", "6 4"),
        ("Theorem 1", "#333", "2 3"),
    ]
    for number, (text, colour, dashes) in enumerate(entries):
        x = 60 + 140 * number
        yield f'<path d="M{x} 325h26" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        yield f'<text x="{x + 32}" y="329">{text}</text>'


def figure() -> str:
    """Both panels."""
    of = problem(0)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 345"',
        'font-family="sans-serif" font-size="12">',
        '<rect width="760" height="345" fill="white"/>',
        *panel(60, "falling steps: distance by round", lines(of, steps(of, fall=True))),
        *panel(430, "constant steps: distance by round", lines(of, steps(of, fall=False))),
        *legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write the figure, print the numbers."""
    parser = argparse.ArgumentParser(description="The figure and the numbers of docs/theory.md.")
    parser.add_argument("--out", type=Path, default=FIGURE)
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(figure(), "utf-8")
    found = {"falling": hundred(fall=True), "constant": hundred(fall=False)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
