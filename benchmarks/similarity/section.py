"""The section on Fig. 7 in the page of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.similarity.runs import ALIKE, BETAS, SEEDS, WAYS, FinishedRun, Found, Pair, list_missing_ways
from fedsim.errors import FedsimError
from fedsim.techniques.generator_training import LabelSource
from jobs.grid.spread import spread

ABOUT = """## Similarity of generated and real features (Fig. 7 of the paper)

- "same class": the mean cosine of generated and real features of one class, averaged over the classes, for
  the generator after the last round. "classes above {alike}": the number of classes whose mean cosine is
  above {alike}.
- `pass`: labels of generated features are drawn for a whole pass, as in KDIA. `data`: they are the labels
  of the client's batch; the paper compares KDIA with this generator. "untrained": the generator before
  round 1.
- Real features are those of an expert on the first 1,000 test images. The expert has the same architecture
  and is trained for {epochs} epochs on everybody's data. Each map is averaged over its places before the
  comparison.
- The paper does not say over what it compares. It follows the generator during training, and its expert has
  81 %.
- Accuracies are in percent: the global model's after the last round, and the expert's.

Mean ± standard deviation over the seeds {seeds}.
"""


def render_row(each: Mapping[LabelSource, Sequence[FinishedRun]]) -> list[str]:
    """Render the figures of one beta, from its runs in each way."""
    # Both ways have one untrained generator and one expert.
    ways, first = [each[way] for way in WAYS], each[WAYS[0]]
    said = [[run.trained for run in runs] for runs in ways] + [[run.untrained for run in first]]
    return [
        *(spread([one.same for one in features], len(SEEDS), digits=3) for features in said),
        *(spread([one.num_alike for one in features], len(SEEDS), digits=1) for features in said),
        *(spread([one.other for one in features], len(SEEDS), digits=3) for features in said),
        *(
            spread([100 * run.metrics["global_accuracy"] for run in runs], len(SEEDS), digits=2)
            for runs in ways
        ),
        spread([100 * run.central for run in first], len(SEEDS), digits=2),
    ]


def render_section(wanted: Sequence[Pair], found: Found) -> str:
    """Render the section of the page.

    Raises:
        FedsimError: if runs are missing.
    """
    absent = [
        f"Dir({pair.beta:g}), seed {pair.seed}, {way}"
        for pair in wanted
        for way in list_missing_ways(pair, found)
    ]
    if absent:
        total = len(WAYS) * len(wanted)
        named = "; ".join(absent)
        raise FedsimError(f"{len(absent)} of {total} runs are missing: {named}", "make them first")
    three = [*(f"`{way}`" for way in WAYS), "untrained"]
    heads = [
        *(f"same class: {name}" for name in three),
        *(f"classes above {ALIKE}: {name}" for name in three),
        *(f"other classes: {name}" for name in three),
        *(f"accuracy: {name}" for name in three[:2]),
        "the expert's",
    ]
    lines = [["data", *heads], ["---"] * (len(heads) + 1)]
    for beta in BETAS:
        own = [pair for pair in wanted if pair.beta == beta]
        lines.append(
            [f"Dir({beta:g})", *render_row({w: [found[pair.make_key(w)] for pair in own] for w in WAYS})]
        )
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    about = ABOUT.format(alike=ALIKE, epochs=wanted[0].epochs, seeds=", ".join(map(str, SEEDS)))
    items = "".join(f" --set '{item}'" for item in wanted[0].sets)
    foot = f"Command: `python -m benchmarks.similarity {wanted[0].preset}{items} --expert {wanted[0].epochs}`"
    return f"{about}\n{table}\n\n{foot}"
