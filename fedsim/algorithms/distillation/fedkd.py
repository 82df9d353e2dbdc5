"""Preserving Privacy in Federated Learning with Ensemble Cross-Domain Knowledge Distillation (FedKD).

Gong, Sharma, Karanam, Wu, Chen, Doermann, Innanje, AAAI 2022.

Idea: clients train alone and tell once what their models say of public examples; a central model learns that.

Wire, beside that of `one_shot`:
    down    lesson    the ensemble's logits of the public set
    up      said      the client's logits of the public set, and its label counts

The ensemble's logit of class c is the mean of the clients' logits of c, weighted by how many examples of c
each holds. Models learn from it by the mean absolute difference of logits (`distance_by: l1`), or by
temperature^2 KL(ensemble || model) (`distance_by: kl`). With `levels` a client's logits are rounded to so
many values, evenly from its smallest to its largest, and a logit costs one byte; `laplace` adds noise of this
scale before that.

Deviations: the public set is the run's, of the clients' own domain, where the paper has another data set. A
class that nobody holds is averaged evenly. Rates are constant. What clients do after the upload is no part of
the paper; see `one_shot`.

Reference result: see docs/results/ace-pfl.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

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
        distance_by: how far a model is from the ensemble.
        temperature: of the divergence.
        levels: how many values a logit may have on its way up, at least 2; 0 for any.
        laplace: scale of the noise that is added to each logit; 0 for none.
    """

    distance_by: Literal["l1", "kl"] = "l1"
    temperature: Positive = 3.0
    levels: Annotated[int, Range(0, 256)] = 0
    laplace: Annotated[float, Range(minimum=0)] = 0.0

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """The parent's, and a single level, which would say nothing."""
        faults = super().check_hyperparameters(net, rounds)
        if self.levels != 1:
            return faults
        return (*faults, FieldError("levels", 1, "one level says nothing", "at least 2, or 0 for any number"))

    def draw_round_noise(self, ctx: Context, rng: np.random.Generator) -> Tree:
        """The noise on the upload, where there is any."""
        if not self.laplace or not self.is_upload_round(ctx):
            return {}
        shape = len(ctx.require_public_set()), ctx.num_classes
        return {"laplace": rng.laplace(scale=self.laplace, size=shape).astype(np.float32)}

    def predict_public_set(self, ctx: Context, task: ClientTask, params: Params) -> Tree:
        """Logits, and label counts."""
        logits = ctx.require_public_set().predict_examples(lambda x: ctx.net(params, x))
        if self.laplace:
            logits = logits + task.round_noise["laplace"]
        if self.levels:
            logits = quantise_logits(logits, self.levels)
        return {"logits": logits, "counts": task.label_counts}

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """Every number; a rounded logit is one byte, and its smallest and largest value go along."""
        usual = wire.payload_bytes(payload)
        if name != "said" or not payload or not self.levels:
            return usual
        count = int(payload["logits"].numel())
        return usual - wire.NUMBER_BYTES * count + count + 2 * wire.NUMBER_BYTES

    def combine_predictions(self, ctx: Context, said: Sequence[Tree]) -> Tree:
        """The ensemble's logits."""
        return {"logits": self.ensemble_logits(said)}

    def distillation_loss(self, ctx: Context, params: Params, batch: Batch, lesson: Tree) -> Tensor:
        """Of the logits, or of what they stand for."""
        logits = ctx.net(params, batch.x)
        taught: Tensor = lesson["logits"]
        if self.distance_by == "l1":
            return (logits - taught).abs().mean()
        several = batch.y.dim() == 2
        soft = soften_logits(taught, self.temperature, several)
        return self.temperature**2 * soft_target_loss(soft, logits, self.temperature, several)


def quantise_logits(logits: Tensor, levels: int) -> Tensor:
    """The nearest of so many values, two or more, evenly from the least of these numbers to the greatest."""
    low, high = logits.min(), logits.max()
    step = ((high - low) / (levels - 1)).clamp(min=1e-12)
    return low + step * ((logits - low) / step).round()
