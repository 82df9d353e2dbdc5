"""The model of a run as one module of PyTorch, its normalisation included."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.data import Normalise
from fedsim.data.dataset import Column
from fedsim.errors import FedsimError, SettingsError
from fedsim.learning_tasks.tasks import AS_THEY_ARE, TargetScale
from fedsim.models import make_net
from fedsim.models.probe import select_logits
from fedsim.models.state import list_constants
from jobs.export.source import ModelSource

UNUSED = "num_batches_tracked"
"""A buffer of BatchNorm that no forward pass in evaluation reads; fedsim does not average it."""


class ExportedModel(nn.Module):
    """A model that takes inputs as the data has them, and returns targets in their own unit.

    Args:
        model: of normalised inputs.
        normalise: of the data set.
        columns: of a table, whose numbers the run standardised; () for other data.
        targets: the scale on which a regression learns its targets.
    """

    columns: Tensor | None
    targets: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        normalise: Normalise,
        columns: Sequence[Column] = (),
        targets: TargetScale = AS_THEY_ARE,
    ) -> None:
        super().__init__()
        self.model, self._normalise = model, normalise
        means, stds = [each.mean for each in columns], [each.std for each in columns]
        for name, scale in (("columns", (means, stds)), ("targets", targets)):
            # In float64, as the data set computes: float32 would round large numbers before the mean is off.
            self.register_buffer(name, torch.tensor(scale, dtype=torch.float64) if scale[1] else None)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, or the predicted targets of a regression.

        Args:
            x: inputs: float32 [n, *input_shape], such as 0 to 255 for images; of a table the numbers of its
                columns, and 1 or 0 for a category; or tokens, int64.
        """
        if self.columns is not None:
            x = ((x - self.columns[0]) / self.columns[1]).float()
        outputs = select_logits(self.model(self._normalise(x)))
        return outputs if self.targets is None else (outputs * self.targets[1] + self.targets[0]).float()


def build_module(source: ModelSource, number: int = 0) -> ExportedModel:
    """Build the module of one architecture, with the weights of the run, in evaluation mode.

    Raises:
        SettingsError: fedsim cannot build the model here, or the file lacks some of its weights.
    """
    hint = "export the weights alone: --to safetensors"
    try:
        module = make_net(**source.nets[number]).build()  # its random constants are those of the run
    except (FedsimError, ValueError, TypeError, ImportError) as error:
        name = source.nets[number].get("name")
        raise SettingsError(f"the model {name!r} cannot be built here: {error}", hint) from error
    weights = {name: torch.tensor(np.asarray(each)) for name, each in source.select_weights(number).items()}
    missing, unknown = module.load_state_dict(weights, strict=False)
    there = _list_known_tensors(source, number, module, weights)
    lacking = [name for name in missing if name not in there] + unknown
    lacking = [name for name in lacking if not name.endswith(UNUSED)]
    if lacking:
        message = f"the weights and the model differ in {', '.join(lacking[:5])}"
        raise SettingsError(message, f"frozen weights are not in the file; {hint}")
    normalise: dict[str, Any] = json.loads(source.notes["normalise"])
    targets = TargetScale(**json.loads(source.notes.get("targets", "{}")))
    return ExportedModel(module, Normalise(**normalise), source.columns, targets).eval()


def _list_known_tensors(
    source: ModelSource, number: int, module: nn.Module, weights: Mapping[str, Tensor]
) -> set[str]:
    """Return the names of tensors that are right after loading: loaded, tied to a loaded one, or constant.

    `Net.build` makes the constants of the run again, but not frozen weights from elsewhere: published ones,
    and those of `init`, which the file has for a single architecture only.
    """
    net, tensors = source.nets[number], module.state_dict(keep_vars=True)
    right = {id(tensors[name]) for name in weights.keys() & tensors.keys()}
    is_published = net.get("pretrained") or net.get("weights")
    if not is_published and not ("init" in source.notes and len(source.nets) > 1):
        right |= {id(value) for value in list_constants(module).values()}
    return {name for name, value in tensors.items() if id(value) in right}


def make_example(source: ModelSource, number: int) -> Tensor:
    """Return two inputs of the right form, [2, *input_shape]: zeros."""
    form = source.input_form(number)
    kind = torch.int64 if form.vocabulary else torch.float32
    return torch.zeros((2, *form.shape), dtype=kind)
