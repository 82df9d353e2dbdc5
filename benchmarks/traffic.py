"""Bytes of a round with models and with predictions, beside Table II of the ACE-pFL paper.

python -m benchmarks.traffic         # writes its table into docs/results/ace-pfl.md
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks.places import PAGES
from fedsim.algorithms.distillation.ace_pfl import AcePFL
from fedsim.base import wire
from fedsim.models import make_net
from fedsim.models.net import Net
from jobs.grid.pages import write_section

CLIENTS = 20
NAME = "ace-traffic"


class Setting(NamedTuple):
    """One data set of the paper.

    Attributes:
        name: of the data set.
        model: the model whose weights the averaging methods send.
        shape: of an input.
        classes: number of classes.
        public: number of public examples.
        top_k: K.
        fedavg, ace: gigabytes of a whole run in Table II, for beta = 0.1 and for pi = 2.
        vocabulary: number of tokens, for texts.
    """

    name: str
    model: str
    shape: tuple[int, ...]
    classes: int
    public: int
    top_k: int
    fedavg: tuple[float, float]
    ace: tuple[float, float]
    vocabulary: int = 0

    def net(self) -> Net:
        """The model."""
        return make_net(
            self.model, input_shape=self.shape, num_classes=self.classes, vocabulary=self.vocabulary
        )


# Public examples: a tenth of 60,000, of 224,316, of the 7,769 + 3,019 articles, of about 40,000 recordings.
SETTINGS = (
    Setting("CIFAR-10", "resnet50", (3, 32, 32), 10, 6_000, 5, (115.23, 106.48), (1.89, 0.97)),
    Setting("CIFAR-100", "resnet50", (3, 32, 32), 100, 6_000, 10, (266.37, 283.02), (4.47, 3.56)),
    Setting("CheXpert", "resnet50", (1, 64, 64), 14, 22_432, 7, (1148.43, 1014.45), (6.23, 5.61)),
    Setting("Reuters", "distilbert", (64,), 20, 1_079, 15, (1724.06, 1637.85), (20.03, 18.73), 30_522),
    Setting("Speech Commands", "resnet34", (1, 32, 32), 10, 4_000, 8, (1071.28, 1019.77), (10.68, 6.41)),
)


def model_bytes(net: Net) -> int:
    """Of one model: its parameters and float buffers."""
    values = net.module.state_dict()  # without storage: only shapes are asked for
    return wire.payload_bytes({key: values[key] for key in net.keys})


def round_bytes(net: Net, public: int, classes: int, top_k: int, clients: int = CLIENTS) -> dict[str, int]:
    """Bytes of a round in which every client receives and sends once; {method: both directions}."""
    soft = torch.empty(public, classes, device="meta")
    unneeded: Any = None  # the charge asks nothing of the round
    kept = partial(AcePFL(top_k=top_k).count_bytes, unneeded)
    each = {
        "FedAvg": model_bytes(net),
        "SCAFFOLD": model_bytes(net)
        + wire.NUMBER_BYTES * net.count_parameters(),  # no controls of the buffers
        "predictions": wire.payload_bytes({"logits": soft}),
        "ACE-pFL": sum(wire.message_bytes({"predictions": {"probabilities": soft}}, kept).values()),
    }
    return {name: 2 * clients * size for name, size in each.items()}


def row(setting: Setting) -> str:
    """One line of the table."""
    cost = round_bytes(setting.net(), setting.public, setting.classes, setting.top_k)
    both = cost["FedAvg"] / cost["ACE-pFL"]
    pairs = list(zip(setting.fedavg, setting.ace, strict=True))
    cells = [
        setting.name,
        setting.model,
        f"{setting.public:,}, {setting.top_k} of {setting.classes}",
        *(f"{cost[name] / 1e6:,.1f}" for name in ("FedAvg", "SCAFFOLD", "predictions", "ACE-pFL")),
        f"{both:,.0f}",
        *(f"{fedavg:,.0f} / {ace:,.2f} = {fedavg / ace:,.0f}" for fedavg, ace in pairs),
        "; ".join(
            f"{fedavg * 1e9 / cost['FedAvg']:,.0f}, {ace * 1e9 / cost['ACE-pFL']:,.0f}"
            for fedavg, ace in pairs
        ),
    ]
    return f"| {' | '.join(cells)} |"


HEAD = """## Bytes of a round: models against predictions (beside Table II of the paper)

- Megabytes (10^6 bytes) of one round, both directions, all 20 clients, counted as in a run. The partition
  of the data does not change them.
- A model costs 4 bytes for each weight and each float buffer of normalisation. A prediction of a public
  example costs 4 bytes for each class with KT-pFL, and with FedDF as the paper charges it. With ACE-pFL it
  costs 8 bytes for each of the K kept entries.
- The columns "Table II" are the paper's gigabytes of a whole run, FedAvg / ACE-pFL, at beta = 0.1 and with
  two classes per client (pi = 2). The last column is the number of rounds that these gigabytes pay for at
  our bytes.

| data | averaged model | public examples, K | FedAvg | SCAFFOLD | all classes | ACE-pFL | FedAvg / ACE-pFL | Table II, GB: beta = 0.1 | pi = 2 | rounds of FedAvg, ACE-pFL: beta = 0.1; pi = 2 |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""  # noqa: E501

FOOT = """
Command: `python -m benchmarks.traffic`.

- The label census is sent once: 19 x (4 C + 4) + 4 C bytes, below 10 kB.
- Public examples are a tenth of the whole data set, as in the paper.
- The preset `ace-reuters` sends less. It has only the stories with one topic among the twenty: 8,590, so
  859 are public.
- The preset `ace-speech` sends less (8.9 megabytes). It has only the recordings of the ten words outside
  the list for validation: 34,843, so 3,484 are public instead of about 4,000.
- Of CheXpert's 224,316 pictures, the few hundred of the test set are published separately. fedsim does not
  read them.
- DistilBERT has its published vocabulary of 30,522 here, as the preset has with `pretrained` and
  `data.dataset.tokenizer`. Without them the preset has 8,000 tokens: 49,671,956 of the 66,968,852
  parameters remain, and FedAvg sends 7,947.5 megabytes in a round."""


def section() -> str:
    """The section of the page: setup, table, notes."""
    return "\n".join([HEAD, *(row(setting) for setting in SETTINGS), FOOT])


def main() -> None:
    write_section(PAGES / "ace-pfl.md", NAME, section())


if __name__ == "__main__":
    main()
