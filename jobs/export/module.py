"""The model of a run as one module of PyTorch, its normalisation included."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.data import Normalise
from fedsim.errors import FedsimError, SettingsError
from fedsim.models import make_net
from fedsim.models.probe import select_logits
from jobs.export.source import ModelSource

UNUSED = "num_batches_tracked"
"""A buffer of BatchNorm that no forward pass in evaluation reads; fedsim does not average it."""


class ExportedModel(nn.Module):
    """A model that takes inputs as the data set has them.

    Args:
        model: of normalised inputs.
        normalise: of the data set.
    """

    def __init__(self, model: nn.Module, normalise: Normalise) -> None:
        super().__init__()
        self.model, self._normalise = model, normalise

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, or the outputs of a regression.

        Args:
            x: inputs as they are stored: float32 [n, *input_shape], such as 0 to 255 for images, or tokens,
                int64.
        """
        return select_logits(self.model(self._normalise(x)))


def build_module(source: ModelSource, number: int = 0) -> ExportedModel:
    """Build the module of one architecture, with the weights of the run, in evaluation mode.

    Raises:
        SettingsError: fedsim cannot build the model here, or the file lacks some of its weights.
    """
    hint = "export the weights alone: --to safetensors"
    try:
        module = make_net(**source.nets[number]).build()
    except (FedsimError, ValueError, TypeError, ImportError) as error:
        name = source.nets[number].get("name")
        raise SettingsError(f"the model {name!r} cannot be built here: {error}", hint) from error
    weights = {name: torch.tensor(np.asarray(each)) for name, each in source.select_weights(number).items()}
    missing, unknown = module.load_state_dict(weights, strict=False)
    lacking = [name for name in [*missing, *unknown] if not name.endswith(UNUSED)]
    if lacking:
        message = f"the weights and the model differ in {', '.join(lacking[:5])}"
        raise SettingsError(message, f"frozen weights are not in the file; {hint}")
    normalise: dict[str, Any] = json.loads(source.notes["normalise"])
    return ExportedModel(module, Normalise(**normalise)).eval()


def make_example(source: ModelSource, number: int = 0, count: int = 2) -> Tensor:
    """Return inputs of the right form, [count, *input_shape]: zeros."""
    form = source.input_form(number)
    kind = torch.int64 if form.vocabulary else torch.float32
    return torch.zeros((count, *form.shape), dtype=kind)
