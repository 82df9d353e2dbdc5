"""What models cost on their way against what predictions cost: a round's bytes beside ACE-pFL's Table II.

python -m benchmarks.traffic         # writes its table into docs/results.md
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks.tables import markdown
from fedsim import wire
from fedsim.algorithms.ace_pfl import AcePFL
from fedsim.models import make_net
from fedsim.net import Net

CLIENTS = 20
NAME = "ace-traffic"


class Setting(NamedTuple):
    """One data set of the paper.

    Attributes:
        name: of it.
        model: whose weights the methods that average send.
        shape: of an input.
        classes: how many.
        public: how many public examples there are.
        top_k: K.
        fedavg, ace: gigabytes of a whole run in Table II, beta = 0.1.
        vocabulary: how many tokens there are, for texts.
    """

    name: str
    model: str
    shape: tuple[int, ...]
    classes: int
    public: int
    top_k: int
    fedavg: float
    ace: float
    vocabulary: int = 0

    def net(self) -> Net:
        """The model."""
        return make_net(
            self.model, input_shape=self.shape, num_classes=self.classes, vocabulary=self.vocabulary
        )


# Public examples: a tenth of 60,000, of 224,316, of the 7,769 + 3,019 articles, of about 40,000 recordings.
SETTINGS = (
    Setting("CIFAR-10", "resnet50", (3, 32, 32), 10, 6_000, 5, 115.23, 1.89),
    Setting("CIFAR-100", "resnet50", (3, 32, 32), 100, 6_000, 10, 266.37, 4.47),
    Setting("CheXpert", "resnet50", (1, 64, 64), 14, 22_432, 7, 1148.43, 6.23),
    Setting("Reuters", "distilbert", (64,), 20, 1_079, 15, 1724.06, 20.03, 30_522),
    Setting("Speech Commands", "resnet34", (1, 32, 32), 10, 4_000, 8, 1071.28, 10.68),
)


def model_bytes(net: Net) -> int:
    """Of one model: its parameters and float buffers."""
    values = net.module.state_dict()  # without storage: only shapes are asked for
    return wire.payload_bytes({key: values[key] for key in net.keys})


def round_bytes(net: Net, public: int, classes: int, top_k: int, clients: int = CLIENTS) -> dict[str, int]:
    """Bytes of a round in which every client receives and sends once; {method: both directions}."""
    soft = torch.empty(public, classes, device="meta")
    unneeded: Any = None  # the charge asks nothing of the round
    kept = partial(AcePFL(top_k=top_k).charge, unneeded)
    each = {
        "FedAvg": model_bytes(net),
        "SCAFFOLD": model_bytes(net) + wire.NUMBER_BYTES * net.count(),  # no controls of the buffers
        "predictions": wire.payload_bytes({"logits": soft}),
        "ACE-pFL": sum(wire.message_bytes({"predictions": {"probabilities": soft}}, kept).values()),
    }
    return {name: 2 * clients * size for name, size in each.items()}


def row(setting: Setting) -> str:
    """One line of the table."""
    cost = round_bytes(setting.net(), setting.public, setting.classes, setting.top_k)
    both, paper = cost["FedAvg"] / cost["ACE-pFL"], setting.fedavg / setting.ace
    runs = setting.fedavg * 1e9 / cost["FedAvg"], setting.ace * 1e9 / cost["ACE-pFL"]
    cells = [
        setting.name,
        setting.model,
        f"{setting.public:,}, {setting.top_k} of {setting.classes}",
        *(f"{cost[name] / 1e6:,.1f}" for name in ("FedAvg", "SCAFFOLD", "predictions", "ACE-pFL")),
        f"{both:,.0f}",
        f"{setting.fedavg:,.0f} / {setting.ace:,.2f} = {paper:,.0f}",
        f"{runs[0]:,.0f}; {runs[1]:,.0f}",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = """## Bytes of a round: models against predictions (paper 002, beside Table II)

Megabytes (10^6 bytes) of one round, both directions, all 20 clients in it, as the accounting of a run counts them: 4 bytes for
each weight and each float buffer of normalisation; for each public example 4 bytes for each class (FedDF as the paper charges
it, KT-pFL), or 8 for each of the K kept entries (ACE-pFL). The last columns are the paper's gigabytes of a whole run at
beta = 0.1, and how many rounds these would be at our bytes.

| data | averaged model | public examples, K | FedAvg | SCAFFOLD | all classes | ACE-pFL | FedAvg / ACE-pFL | Table II, GB | rounds of FedAvg; ACE-pFL |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""  # noqa: E501

FOOT = """
`python -m benchmarks.traffic`; the census comes once, 19 x (4 C + 4) + 4 C bytes, which is below 10 kB."""


def section() -> str:
    """The table, with what is said of it."""
    return "\n".join([HEAD, *(row(setting) for setting in SETTINGS), FOOT])


def main() -> None:
    markdown.place(markdown.PAGE, NAME, section())


if __name__ == "__main__":
    main()
