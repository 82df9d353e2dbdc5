"""LearningTask: the loss of an example, the score of predictions, and the metrics of one kind of labels."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedsim.learning_tasks.score import Score, State

if TYPE_CHECKING:
    import torchmetrics

UNKNOWN = -100
"""The class of a token or pixel that does not count, as in `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True)
class LearningTask(ABC):
    """What the examples of a data set ask of a model.

    Attributes:
        num_outputs: number of classes, of labels, or of target values.

    Class attributes:
        name: as `Dataset.task` has it.
        asks: the labels in words, for messages.
        metrics: all its metrics, by name.
        default_metrics: those that a run reports if its spec asks for none.
    """

    num_outputs: int

    name: ClassVar[str]
    asks: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    default_metrics: ClassVar[tuple[str, ...]]

    @abstractmethod
    def example_losses(self, outputs: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the loss of each example, `[batch]`.

        Args:
            outputs: of the model, `[batch, ...]`.
            y: labels, `[batch, ...]`.
            label_smoothing: share of each label's weight that is spread evenly over all classes (of yes and
                no: over both); 0 in every score, and for targets that are numbers.
        """

    @abstractmethod
    def loss(
        self, outputs: Tensor, y: Tensor, mask: Tensor | None = None, label_smoothing: float = 0.0
    ) -> Tensor:
        """Return the mean loss of a batch, a scalar.

        Args:
            outputs: of the model, `[batch, ...]`.
            y: labels, `[batch, ...]`.
            mask: float32 `[batch]`, 0 for padding, which does not count; None without padding.
            label_smoothing: as in `example_losses`.
        """

    def scale_targets(self, y: Tensor) -> Tensor:
        """Return labels as a model learns them: scaled in a regression, unchanged in all other tasks.

        A loss of your own compares outputs with these: outputs of a regression have the mean 0 and the
        deviation 1, and its labels have the unit of the data.
        """
        return y

    @abstractmethod
    def score(self, outputs: Tensor, y: Tensor) -> Score:
        """Return the correct predictions, the summed loss in float64 and the number of predictions."""

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a model's output for one example of this shape."""
        return (self.num_outputs,)

    def mark_correct(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mark the correct predictions, bool of the labels' shape; a NaN prediction is wrong.

        Raises:
            NotImplementedError: no prediction of this task is correct or wrong, as in a regression.
        """
        raise NotImplementedError(f"predictions of the task {self.name} are not correct or wrong")

    def make_metric(self, name: str) -> torchmetrics.Metric:
        """Return a new metric of torchmetrics, of those that the sums of a `Score` do not give."""
        raise NotImplementedError(f"{name} is no metric of the task {self.name}")

    def prepare(self, outputs: Tensor, y: Tensor, metric: str) -> tuple[Tensor, Tensor]:
        """Return predictions and targets as the metric takes them."""
        return outputs, y

    def compute_metric(self, name: str, metric: torchmetrics.Metric) -> float:
        """Return the value of a metric that holds the states of all parts; NaN if it is undefined."""
        with warnings.catch_warnings():
            # The states come from other metric objects: this one was never updated, as it warns.
            warnings.simplefilter("ignore", UserWarning)
            try:
                return float(metric.compute())
            except ValueError:  # such as the R2 of a single example
                return float("nan")


SUMMED_METRICS = ("accuracy", "perplexity")
"""Metrics that the sums of every `Score` give; all others have a state of torchmetrics."""


@dataclass(frozen=True)
class Scorer:
    """Scores predictions by the metrics of a run.

    Attributes:
        task: the learning task.
        metrics: names of its metrics.

    Example:
        >>> from fedsim.learning_tasks.regression import Regression
        >>> scorer = Scorer(Regression(1), ("rmse",))
        >>> score = scorer.score(torch.tensor([[1.0], [2.0]]), torch.tensor([4.0, 6.0]))
        >>> scorer.values(score)["rmse"] == 12.5**0.5
        True
    """

    task: LearningTask
    metrics: tuple[str, ...]

    def score(self, outputs: Tensor, y: Tensor) -> Score:
        """Return the score of a batch."""
        score = self.task.score(outputs, y)
        names = [name for name in self.metrics if name not in SUMMED_METRICS]
        if not names:
            return score
        return score._replace(states={name: self._measure(name, outputs, y) for name in names})

    def _measure(self, name: str, outputs: Tensor, y: Tensor) -> State:
        metric = self.task.make_metric(name).set_dtype(torch.float64).to(outputs.device)
        metric.update(*self.task.prepare(outputs, y, name))
        return {
            key: tuple(each.cpu().numpy() for each in value)
            if isinstance(value, list)
            else value.cpu().numpy()
            for key, value in metric.metric_state.items()
        }

    def values(self, score: Score) -> dict[str, float]:
        """Return the value of every metric; NaN if it is undefined, as the AUROC of a single class is."""
        return {name: self._value(name, score) for name in self.metrics}

    def _value(self, name: str, score: Score) -> float:
        if name == "accuracy":
            return score.correct / max(score.examples, 1)
        if name == "perplexity":
            return _exponential(score.loss / max(score.examples, 1))
        if score.states is None or not score.examples:
            return float("nan")
        metric = self.task.make_metric(name).set_dtype(torch.float64)
        metric.merge_state(
            {
                key: list(map(torch.tensor, value)) if isinstance(value, tuple) else torch.tensor(value)
                for key, value in score.states[name].items()
            }
        )
        return self.task.compute_metric(name, metric)


def _exponential(value: float) -> float:
    try:
        return exp(value)
    except OverflowError:
        return float("inf")
