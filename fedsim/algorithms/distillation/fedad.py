"""Ensemble Attention Distillation for Privacy-Preserving Federated Learning (FedAD).

Gong, Sharma, Karanam, Wu, Chen, Doermann, Innanje, ICCV 2021.

Idea: clients train alone and upload once their predictions on public examples with attention maps; a central
model learns the ensemble's predictions, and learns to look where all clients look and nowhere that none does.

This is a reading: there is no public code, and the choices that the paper leaves open are listed below.

Wire, in addition to the wire of `one_shot`:
    down    lesson    the ensemble's logits of the public set, and the bounds of the attention
    up      said      the client's logits of the public set, its attention maps, and its label counts

The ensemble's logit of class c is the mean of the clients' logits of c. Each client is weighted by its number
of examples of c. The attention of an example is the Grad-CAM map of its label, on `map_size` by `map_size`
places and scaled to a largest value of 1. The bounds are the smallest and the largest value of all clients in
each place. Models descend

    KL(ensemble || model) + lambda_att mean(relu(lower - a) + relu(a - upper)).

Deviations: the attention map is the map of the public example's label, the same for all clients; the paper
has no labels. Attention maps need a model of images; `lambda_att: 0` makes no maps and takes any model. Class
weights, bounds and the penalty are choices of this reading. A class of which no client holds examples is
averaged with equal weights. The training of clients after the upload is not part of the paper; see
`one_shot`.

Reference result: see docs/results/ace-pfl.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms.distillation.one_shot import OneShot
from fedsim.base.parameters import Count, Range
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, Context
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params
from fedsim.techniques.grad_cam import compute_attention, has_maps
from fedsim.techniques.soft_targets import soft_target_loss, soften_logits


@dataclass(frozen=True, kw_only=True)
class FedAD(OneShot):
    """One-shot distillation of an ensemble's logits and of the bounds of its attention.

    Attributes:
        lambda_att: weight of the attention outside its bounds, >= 0; 0 makes no attention maps.
        map_size: rows of an attention map, and places of a row.
    """

    lambda_att: Annotated[float, Range(minimum=0)] = 1.0
    map_size: Count = 4

    purposes: ClassVar[tuple[str, ...]] = ("privacy", "communication", "distillation", "model-heterogeneity")

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """The parent's errors, and an error for a model without attention maps."""
        faults = super().check_hyperparameters(net, rounds)
        if not self.lambda_att or has_maps(net):
            return faults
        message = f"{net.name} is no chain of blocks with convolutions of images, or none takes their maps"
        hint = "0 for no attention, or another model"
        return (*faults, FieldError("lambda_att", self.lambda_att, message, hint))

    def predict_public_set(self, ctx: Context, task: ClientTask, params: Params) -> Tree:
        """The client's logits, attention maps and label counts."""
        public = ctx.require_public_set()
        if not self.lambda_att:
            logits = public.predict_examples(lambda x: ctx.net(params, x))
            return {"logits": logits, "counts": task.label_counts}
        with torch.no_grad():
            looks = [
                compute_attention(ctx.net, ctx.input_shape, params, batch.x, batch.y, self.map_size)
                for batch in public.iterate_batches()
            ]
        return {
            "logits": torch.cat([each.logits for each in looks]),
            "attention": torch.cat([each.attention for each in looks]),
            "counts": task.label_counts,
        }

    def combine_predictions(self, ctx: Context, said: Sequence[Tree]) -> Tree:
        """The ensemble's logits, and the bounds of the attention."""
        logits = self.ensemble_logits(said)
        if not self.lambda_att:
            return {"logits": logits}
        maps = torch.stack([each["attention"] for each in said])
        return {"logits": logits, "lower": maps.amin(0), "upper": maps.amax(0)}

    def distillation_loss(self, ctx: Context, params: Params, batch: Batch, targets: Tree) -> Tensor:
        """The KL divergence, and the attention outside its bounds."""
        several = batch.y.dim() == 2
        teacher = soften_logits(targets["logits"], 1.0, several)
        if not self.lambda_att:
            return soft_target_loss(teacher, ctx.net(params, batch.x), 1.0, several)
        logits, seen = compute_attention(ctx.net, ctx.input_shape, params, batch.x, batch.y, self.map_size)
        outside = F.relu(targets["lower"] - seen) + F.relu(seen - targets["upper"])
        return soft_target_loss(teacher, logits, 1.0, several) + self.lambda_att * outside.mean()
