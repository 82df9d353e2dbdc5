"""Regression: one or several real numbers per example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedsim.learning_tasks.learning_task import LearningTask
from fedsim.learning_tasks.score import Score
from fedsim.learning_tasks.torchmetrics_import import import_torchmetrics

if TYPE_CHECKING:
    import torchmetrics


def measure_deviations(values: NDArray[Any]) -> NDArray[np.float64]:
    """Measure the deviation of each column, as a divisor of its values: a constant column has 1.

    The deviation of a constant is not always 0: of 1,000 times 0.1 it is 1.4e-17.

    Args:
        values: `[n, columns]`, n of at least 1.

    Example:
        >>> measure_deviations(np.array([[1.0, 0.1], [3.0, 0.1], [2.0, 0.1], [2.0, 0.1]]))
        array([0.70710678, 1.        ])
    """
    deviations, largest = values.std(axis=0), np.abs(values).max(axis=0)
    return np.where(deviations > largest * 1e-12, deviations, 1.0).astype(np.float64)


class TargetScale(NamedTuple):
    """The scale of the targets: a model learns `(target - mean) / std` of each.

    Attributes:
        mean: of each target, in its unit; empty for targets as they are.
        std: of each target, in its unit; empty for targets as they are.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def measure(cls, y: NDArray[np.float32]) -> TargetScale:
        """Measure the scale of training targets, float32 `[n]` or `[n, targets]`; a constant has the std 1.

        Example:
            >>> TargetScale.measure(np.array([1.0, 3.0], np.float32))
            TargetScale(mean=(2.0,), std=(1.0,))
        """
        targets = y.reshape(len(y), -1).astype(np.float64)
        return cls(tuple(targets.mean(axis=0).tolist()), tuple(measure_deviations(targets).tolist()))


AS_THEY_ARE = TargetScale()


@dataclass(frozen=True)
class Regression(LearningTask):
    """Real numbers: outputs `[batch, targets]`, labels float32 of this shape, or `[batch]` for one target.

    The loss is the mean squared error of the scaled targets, so it has no unit: a model that always says the
    mean of the training targets has the loss 1. Metrics have the unit of the targets.

    Attributes:
        scale: of the targets.
    """

    scale: TargetScale = AS_THEY_ARE

    name = "regression"
    asks = "real numbers"
    metrics: ClassVar[tuple[str, ...]] = ("rmse", "mae", "r2")
    default_metrics: ClassVar[tuple[str, ...]] = ("rmse",)

    def scale_targets(self, y: Tensor) -> Tensor:
        """Return the scaled targets, `[batch, targets]`: `(target - mean) / std` of each."""
        targets = y.reshape(len(y), self.num_outputs)
        if not self.scale.std:
            return targets
        # Column by column with plain numbers: a tensor made here could not be recorded in a CUDA graph.
        columns = zip(targets.unbind(-1), self.scale.mean, self.scale.std, strict=True)
        return torch.stack([(column - mean) / std for column, mean, std in columns], -1)

    def example_losses(self, outputs: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the mean squared error of the scaled targets of each example, `[batch]`."""
        return F.mse_loss(outputs, self.scale_targets(y), reduction="none").mean(-1)

    def loss(
        self, outputs: Tensor, y: Tensor, mask: Tensor | None = None, label_smoothing: float = 0.0
    ) -> Tensor:
        """Return the mean squared error of the scaled targets."""
        each = self.example_losses(outputs, y)
        return each.mean() if mask is None else (each * mask).sum() / mask.sum().clamp(min=1)

    def score(self, outputs: Tensor, y: Tensor) -> Score:
        """Return the summed squared error of the scaled targets and the number of targets."""
        loss = F.mse_loss(outputs.double(), self.scale_targets(y.double()), reduction="sum")
        return Score(0, float(loss), outputs.numel())

    def make_metric(self, name: str) -> torchmetrics.Metric:
        """Return RMSE or MAE over all targets, or the mean R2 of the targets."""
        kinds = import_torchmetrics().regression
        if name == "r2":
            metric: torchmetrics.Metric = kinds.R2Score()
        else:
            metric = kinds.MeanAbsoluteError() if name == "mae" else kinds.MeanSquaredError(squared=False)
        return metric

    def prepare(self, outputs: Tensor, y: Tensor, metric: str) -> tuple[Tensor, Tensor]:
        """Return predictions and targets in float64, in the unit of the targets; for R2 as they are learnt.

        R2 has no unit, and torchmetrics takes the sums of squares of small targets for 0.
        """
        said = outputs.double()
        if metric == "r2":
            return said.squeeze(-1), self.scale_targets(y.double()).squeeze(-1)
        if self.scale.std:
            columns = zip(said.unbind(-1), self.scale.mean, self.scale.std, strict=True)
            said = torch.stack([column * std + mean for column, mean, std in columns], -1)
        return said, y.double().reshape(outputs.shape)
