"""Classification: one class per example, or several yes-or-no labels per example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.learning_tasks.learning_task import UNKNOWN, LearningTask
from fedsim.learning_tasks.score import Score
from fedsim.learning_tasks.torchmetrics_import import import_torchmetrics

if TYPE_CHECKING:
    import torchmetrics


def _make_auroc(labels: int) -> torchmetrics.Metric:
    kind = import_torchmetrics().classification.MultilabelAUROC
    metric: torchmetrics.Metric = kind(labels, ignore_index=UNKNOWN, validate_args=False)
    return metric


class _ClassLabels(LearningTask):
    """The AUROC of classes and labels: the mean over those that occur and do not occur, each for itself."""

    def make_metric(self, name: str) -> torchmetrics.Metric:
        """Return a metric that holds the probabilities and the labels."""
        return _make_auroc(self.num_outputs)

    def compute_metric(self, name: str, metric: Any) -> float:
        """Return the value of a metric; NaN for an AUROC if every label is always or never there."""
        if name != "auroc":
            return super().compute_metric(name, metric)
        said, target = torch.cat(metric.preds), torch.cat(metric.target)
        defined = (target == 1).any(0) & (target == 0).any(0)
        if not defined.any():
            return float("nan")
        complete: Any = _make_auroc(int(defined.sum()))
        complete.update(said[:, defined], target[:, defined])
        return float(complete.compute())


class Classification(_ClassLabels):
    """One class per example: logits `[batch, classes]`, labels int64 `[batch]`; cross-entropy in nats."""

    name = "classes"
    asks = "one class per example"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "f1", "auroc")
    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    def example_losses(self, outputs: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the cross-entropy of each example, `[batch]`."""
        return F.cross_entropy(outputs, y, reduction="none", label_smoothing=label_smoothing)

    def loss(
        self, outputs: Tensor, y: Tensor, mask: Tensor | None = None, label_smoothing: float = 0.0
    ) -> Tensor:
        """Return the mean cross-entropy over the examples."""
        if mask is None:
            return F.cross_entropy(outputs, y, label_smoothing=label_smoothing)
        return (self.example_losses(outputs, y, label_smoothing) * mask).sum() / mask.sum().clamp(min=1)

    def score(self, outputs: Tensor, y: Tensor) -> Score:
        """Return the correct classes, the summed cross-entropy and the number of examples."""
        loss = F.cross_entropy(outputs.double(), y, reduction="sum")
        return Score(int(self.mark_correct(outputs, y).sum()), float(loss), len(y))

    def mark_correct(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mark the correct classes, bool `[batch]`."""
        return (outputs.argmax(-1) == y) & ~outputs.isnan().any(-1)

    def make_metric(self, name: str) -> torchmetrics.Metric:
        """Return macro F1 over the classes that occur, or the AUROC of each class against the rest."""
        if name != "f1":
            return super().make_metric(name)
        kind = import_torchmetrics().classification.MulticlassF1Score
        metric: torchmetrics.Metric = kind(self.num_outputs, average="macro", validate_args=False)
        return metric

    def prepare(self, outputs: Tensor, y: Tensor, metric: str) -> tuple[Tensor, Tensor]:
        """Return predicted and true classes for F1 (a NaN prediction is wrong), probabilities for AUROC."""
        if metric == "f1":
            wrong = (y + 1) % self.num_outputs
            return torch.where(outputs.isnan().any(-1), wrong, outputs.argmax(-1)), y
        return outputs.double().softmax(-1).nan_to_num(), F.one_hot(y, self.num_outputs)


class SeveralLabels(_ClassLabels):
    """Several yes-or-no labels per example: logits `[batch, labels]`, labels float32 of this shape.

    A label is 0, 1 or NaN (unknown). The loss is the binary cross-entropy in nats, and every known label
    counts as one prediction.
    """

    name = "labels"
    asks = "several labels per example"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "f1", "auroc")
    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    def example_losses(self, outputs: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the mean binary cross-entropy over the known labels of each example, `[batch]`."""
        known = (~torch.isnan(y)).to(outputs.dtype)
        each = self._label_losses(outputs, y, label_smoothing)
        return (each * known).sum(-1) / known.sum(-1).clamp(min=1)

    def loss(
        self, outputs: Tensor, y: Tensor, mask: Tensor | None = None, label_smoothing: float = 0.0
    ) -> Tensor:
        """Return the mean binary cross-entropy over the known labels of the batch."""
        known = (~torch.isnan(y)).to(outputs.dtype)
        if mask is not None:
            known = known * mask.unsqueeze(-1)
        each = self._label_losses(outputs, y, label_smoothing)
        return (each * known).sum() / known.sum().clamp(min=1)

    @staticmethod
    def _label_losses(outputs: Tensor, y: Tensor, label_smoothing: float) -> Tensor:
        """Return the loss of every label, `[batch, labels]`; any number for an unknown label."""
        wanted = y.nan_to_num()
        if label_smoothing:
            wanted = torch.lerp(wanted, torch.full_like(wanted, 0.5), label_smoothing)
        return F.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")

    def score(self, outputs: Tensor, y: Tensor) -> Score:
        """Return the correct labels, the summed loss and the number of known labels."""
        known = ~torch.isnan(y)
        loss = F.binary_cross_entropy_with_logits(outputs[known].double(), y[known].double(), reduction="sum")
        return Score(int(self.mark_correct(outputs, y)[known].sum()), float(loss), int(known.sum()))

    def mark_correct(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mark the correct labels, bool `[batch, labels]`; an unknown label is not one of them."""
        return ((outputs > 0) == (y > 0.5)) & ~outputs.isnan()

    def make_metric(self, name: str) -> torchmetrics.Metric:
        """Return macro F1 over the labels, or the mean AUROC of the labels."""
        if name != "f1":
            return super().make_metric(name)
        kind = import_torchmetrics().classification.MultilabelF1Score
        metric: torchmetrics.Metric = kind(self.num_outputs, ignore_index=UNKNOWN, validate_args=False)
        return metric

    def compute_metric(self, name: str, metric: Any) -> float:
        """Return the value of a metric: macro F1 over the labels that occur, NaN if none does."""
        if name != "f1":
            return super().compute_metric(name, metric)
        double_hits, faults = 2 * metric.tp.double(), metric.fp + metric.fn
        occurs = double_hits + faults > 0
        # The mean of no label is NaN.
        return float((double_hits / (double_hits + faults))[occurs].mean())

    def prepare(self, outputs: Tensor, y: Tensor, metric: str) -> tuple[Tensor, Tensor]:
        """Return yes-or-no answers for F1 (a NaN prediction is wrong), probabilities for AUROC."""
        target = torch.where(y.isnan(), UNKNOWN, (y > 0.5).long())
        if metric == "f1":
            return torch.where(outputs.isnan(), (y <= 0.5).long(), (outputs > 0).long()), target
        return outputs.double().sigmoid().nan_to_num(), target
