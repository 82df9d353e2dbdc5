"""A class for every position of an example: next-token prediction and segmentation."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.learning_tasks.learning_task import UNKNOWN, LearningTask
from fedsim.learning_tasks.score import Score
from fedsim.learning_tasks.torchmetrics_import import import_torchmetrics

if TYPE_CHECKING:
    import torchmetrics


class PositionClasses(LearningTask):
    """A class for every token or pixel, int64; `UNKNOWN` (-100) does not count. Cross-entropy in nats."""

    @abstractmethod
    def classes_second(self, outputs: Tensor) -> Tensor:
        """Return the logits with the classes in the second dimension, as torch's losses take them."""

    def example_losses(self, outputs: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the mean cross-entropy over the known positions of each example, `[batch]`."""
        each = self._position_losses(outputs, y, label_smoothing).flatten(1)
        return each.sum(-1) / (y != UNKNOWN).flatten(1).sum(-1).clamp(min=1)

    def loss(
        self, outputs: Tensor, y: Tensor, mask: Tensor | None = None, label_smoothing: float = 0.0
    ) -> Tensor:
        """Return the mean cross-entropy over the known positions of the batch."""
        each = self._position_losses(outputs, y, label_smoothing).flatten(1)
        known = (y != UNKNOWN).flatten(1).to(each.dtype)
        if mask is not None:
            known = known * mask.unsqueeze(-1)
        return (each * known).sum() / known.sum().clamp(min=1)

    def _position_losses(self, outputs: Tensor, y: Tensor, label_smoothing: float) -> Tensor:
        return F.cross_entropy(
            self.classes_second(outputs),
            y,
            reduction="none",
            ignore_index=UNKNOWN,
            label_smoothing=label_smoothing,
        )

    def score(self, outputs: Tensor, y: Tensor) -> Score:
        """Return the correct positions, the summed cross-entropy and the number of known positions."""
        # On a GPU, torch's own sum adds in another order each time.
        reduction = "sum" if outputs.device.type == "cpu" else "none"
        losses = F.cross_entropy(
            self.classes_second(outputs).double(), y, reduction=reduction, ignore_index=UNKNOWN
        )
        known = y != UNKNOWN
        correct = self.mark_correct(outputs, y)[known].sum()
        return Score(int(correct), float(losses.sum()), int(known.sum()))

    def mark_correct(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mark the correct positions, bool of the labels' shape; an unknown class is not one of them."""
        logits = self.classes_second(outputs)
        return (logits.argmax(1) == y) & ~logits.isnan().any(1)


class NextToken(PositionClasses):
    """The next token of a text: logits `[batch, length, vocabulary]`, labels int64 `[batch, length]`."""

    name = "next_token"
    asks = "the next token at every position"
    metrics: ClassVar[tuple[str, ...]] = ("perplexity", "accuracy")
    default_metrics: ClassVar[tuple[str, ...]] = ("perplexity", "accuracy")

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return `[length, vocabulary]`."""
        return (*input_shape, self.num_outputs)

    def classes_second(self, outputs: Tensor) -> Tensor:
        """Return the logits as `[batch, vocabulary, length]`."""
        return outputs.transpose(1, 2)


class Segmentation(PositionClasses):
    """A class for every pixel.

    Logits `[batch, classes, height, width]`, labels int64 `[batch, height, width]`.
    """

    name = "segmentation"
    asks = "a class for every pixel"
    metrics: ClassVar[tuple[str, ...]] = ("mean_iou", "accuracy")
    default_metrics: ClassVar[tuple[str, ...]] = ("mean_iou",)

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return `[classes, height, width]`."""
        return (self.num_outputs, *input_shape[1:])

    def classes_second(self, outputs: Tensor) -> Tensor:
        """Return the logits as they are."""
        return outputs

    def make_metric(self, name: str) -> torchmetrics.Metric:
        """Return the mean IoU of the classes that occur in labels or predictions of all images together."""
        kind = import_torchmetrics().classification.MulticlassJaccardIndex
        metric: torchmetrics.Metric = kind(self.num_outputs, ignore_index=UNKNOWN, validate_args=False)
        return metric

    def prepare(self, outputs: Tensor, y: Tensor, metric: str) -> tuple[Tensor, Tensor]:
        """Return predicted classes and classes of the pixels; a NaN prediction is a wrong class."""
        wrong = torch.where(y == UNKNOWN, y, (y + 1) % self.num_outputs)
        return torch.where(outputs.isnan().any(1), wrong, outputs.argmax(1)), y
