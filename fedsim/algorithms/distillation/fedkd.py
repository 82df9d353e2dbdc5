"""Preserving Privacy in Federated Learning with Ensemble Cross-Domain Knowledge Distillation (FedKD).

Gong, Sharma, Karanam, Wu, Chen, Doermann, Innanje, AAAI 2022, arXiv:2209.04599.

Idea: clients train alone and upload once their predictions on public examples; a central model learns from
the ensemble of these predictions.

Wire, in addition to the wire of `one_shot`:
    down    lesson    the ensemble's logits of the public set
    up      said      the client's logits of the public set, and its label counts

The ensemble's logit of class c is the mean of the clients' logits of c. Each client is weighted by its number
of examples of c. Models learn from the ensemble by the mean absolute difference of logits (`distance_by:
l1`), or by temperature^2 KL(ensemble || model) (`distance_by: kl`). With `levels`, a client rounds its logits
to that many values, evenly spaced from its smallest logit to its largest, and a logit costs one byte.
`laplace` adds noise of this scale before the rounding.

Deviations: the public set is the run's, from the clients' own domain; the paper uses another data set. A
class of which no client holds examples is averaged with equal weights. Learning rates are constant. The
training of clients after the upload is not part of the paper; see `one_shot`.

Reference result: see docs/results/ace-pfl.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from torch import Tensor

from fedsim.algorithms.distillation.one_shot import OneShot
from fedsim.base import wire
from fedsim.base.parameters import Positive, Range
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, Context
from fedsim.core.capabilities import PayloadAccounting, RoundNoise
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params
from fedsim.techniques.soft_targets import soft_target_loss, soften_logits


@dataclass(frozen=True, kw_only=True)
class FedKD(OneShot, PayloadAccounting, RoundNoise):
    """One-shot distillation of an ensemble, class by class.

    Attributes:
        distance_by: distance between a model and the ensemble: `l1` of logits, or `kl` of soft predictions.
        temperature: temperature of the KL divergence (`distance_by: kl`).
        levels: number of values that an uploaded logit can have, at least 2; 0 for no rounding.
        laplace: scale of the Laplace noise added to each uploaded logit; 0 for none.
    """

    distance_by: Literal["l1", "kl"] = "l1"
    temperature: Positive = 3.0
    levels: Annotated[int, Range(0, 256)] = 0
    laplace: Annotated[float, Range(minimum=0)] = 0.0

    purposes: ClassVar[tuple[str, ...]] = ("privacy", "communication", "distillation", "model-heterogeneity")

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """The parent's errors, and an error for a single level."""
        faults = super().check_hyperparameters(net, rounds)
        if self.levels != 1:
            return faults
        hint = "at least 2, or 0 for no rounding"
        return (*faults, FieldError("levels", 1, "one level makes all logits equal", hint))

    def draw_round_noise(self, ctx: Context, rng: np.random.Generator) -> Tree:
        """The noise on the uploaded logits."""
        if not self.laplace or not self.is_upload_round(ctx):
            return {}
        shape = len(ctx.require_public_set()), ctx.num_classes
        return {"laplace": rng.laplace(scale=self.laplace, size=shape).astype(np.float32)}

    def predict_public_set(self, ctx: Context, task: ClientTask, params: Params) -> Tree:
        """The client's logits and its label counts."""
        logits = ctx.require_public_set().predict_examples(lambda x: ctx.net(params, x))
        if self.laplace:
            logits = logits + task.round_noise["laplace"]
        if self.levels:
            logits = quantise_logits(logits, self.levels)
        return {"logits": logits, "counts": task.label_counts}

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """The usual bytes; a rounded logit costs one byte, plus the smallest and the largest logit."""
        usual = wire.payload_bytes(payload)
        if name != "predictions" or not payload or not self.levels:
            return usual
        count = int(payload["logits"].numel())
        return usual - wire.NUMBER_BYTES * count + count + 2 * wire.NUMBER_BYTES

    def combine_predictions(self, ctx: Context, said: Sequence[Tree]) -> Tree:
        """The ensemble's logits."""
        return {"logits": self.ensemble_logits(said)}

    def distillation_loss(self, ctx: Context, params: Params, batch: Batch, targets: Tree) -> Tensor:
        """The distance between the model and the ensemble on a public batch."""
        logits = ctx.net(params, batch.x)
        teacher: Tensor = targets["logits"]
        if self.distance_by == "l1":
            return (logits - teacher).abs().mean()
        several = batch.y.dim() == 2
        soft = soften_logits(teacher, self.temperature, several)
        return self.temperature**2 * soft_target_loss(soft, logits, self.temperature, several)


def quantise_logits(logits: Tensor, levels: int) -> Tensor:
    """Round logits to the nearest of `levels` values, evenly spaced from the smallest logit to the largest.

    Args:
        logits: any shape.
        levels: at least 2.

    Example:
        >>> import torch
        >>> quantise_logits(torch.tensor([0.0, 0.4, 1.0]), levels=3)
        tensor([0.0000, 0.5000, 1.0000])
    """
    low, high = logits.min(), logits.max()
    step = ((high - low) / (levels - 1)).clamp(min=1e-12)
    return low + step * ((logits - low) / step).round()
