"""The optimizers of local steps; each has the parameters of the torch.optim class of its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedsim.base.parameters import Positive, Range

Decay = Annotated[float, Range(minimum=0, below=1)]


@dataclass(frozen=True, kw_only=True)
class LocalOptimizer:
    """An optimizer of local steps, as its parameters. Its state starts anew in every local loop.

    Class attributes:
        torch_class: the class of torch.optim that makes the steps.
        has_momentum: whether it uses `LocalTraining.momentum`.
    """

    torch_class: ClassVar[type[torch.optim.Optimizer]]
    has_momentum: ClassVar[bool] = False

    def make_optimizer(
        self, weights: Sequence[Tensor], *, lr: float, momentum: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        """Make the torch optimizer of these weights.

        Args:
            weights: leaf tensors; a step changes them in place.
            lr: the learning rate.
            momentum: only matters to optimizers that have it.
            weight_decay: 0 for none.
        """
        options = asdict(self) | ({"momentum": momentum} if self.has_momentum else {})
        return self.torch_class(list(weights), lr=lr, weight_decay=weight_decay, **options)  # type: ignore[call-arg]


@dataclass(frozen=True, kw_only=True)
class SGD(LocalOptimizer):
    """Stochastic gradient descent; weight decay is added to the gradient.

    Attributes:
        nesterov: use Nesterov's momentum; needs `momentum` above 0.
    """

    torch_class: ClassVar[type[torch.optim.Optimizer]] = torch.optim.SGD
    has_momentum: ClassVar[bool] = True

    nesterov: bool = False


@dataclass(frozen=True, kw_only=True)
class Adam(LocalOptimizer):
    """Adam (Kingma and Ba, ICLR 2015); weight decay is added to the gradient.

    Attributes:
        betas: decay rates of the running means of the gradient and of its square.
        eps: added to the denominator.
        amsgrad: divide by the largest running mean of the squares so far (Reddi et al., ICLR 2018).
    """

    torch_class: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Positive = 1e-8
    amsgrad: bool = False

    def __post_init__(self) -> None:
        # Torch refuses a pair with a whole number, such as (0, 0.999).
        object.__setattr__(self, "betas", tuple(map(float, self.betas)))


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: a step shrinks the weights by the factor 1 - lr weight_decay.

    Loshchilov and Hutter, ICLR 2019.
    """

    torch_class: ClassVar[type[torch.optim.Optimizer]] = torch.optim.AdamW


@dataclass(frozen=True, kw_only=True)
class RMSprop(LocalOptimizer):
    """RMSprop (Hinton, 2012), with `momentum`; weight decay is added to the gradient.

    Attributes:
        alpha: decay rate of the running mean of the squared gradient.
        eps: added to the denominator.
        centered: divide by an estimate of the standard deviation of the gradient.
    """

    torch_class: ClassVar[type[torch.optim.Optimizer]] = torch.optim.RMSprop
    has_momentum: ClassVar[bool] = True

    alpha: Decay = 0.99
    eps: Positive = 1e-8
    centered: bool = False


@dataclass(frozen=True, kw_only=True)
class Adagrad(LocalOptimizer):
    """Adagrad (Duchi et al., JMLR 2011); weight decay is added to the gradient.

    Attributes:
        eps: added to the denominator.
        initial_accumulator_value: the sum of squared gradients before the first step.
    """

    torch_class: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adagrad

    eps: Positive = 1e-10
    initial_accumulator_value: Annotated[float, Range(minimum=0)] = 0.0


OPTIMIZERS: Mapping[str, type[LocalOptimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
}
"""The optimizers, by the name that a spec gives them (`local.optimizer`)."""
