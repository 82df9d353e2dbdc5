"""How like real features generated ones are, class by class: Fig. 7 of KDIA's paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.base import tree
from fedsim.clients.population import Population
from fedsim.core.public_set import AT_ONCE
from fedsim.models.net import Params
from fedsim.techniques.generators import Generator


def pool_features(features: Tensor) -> Tensor:
    """Return features `[n, ...]` as `[n, channels]`: the mean of each map over its places."""
    return features.flatten(2).mean(-1) if features.dim() > 2 else features


def compute_mean_cosine(first: Tensor, second: Tensor) -> float:
    """Compute the mean cosine between every row of one and every row of the other.

    Args:
        first: `[n, channels]`.
        second: `[m, channels]`.
    """
    one, other = (F.normalize(rows.double(), dim=-1) for rows in (first, second))
    # The mean of all inner products is the inner product of the means.
    return float(one.mean(0) @ other.mean(0))


@torch.inference_mode()
def measure_similarity(
    population: Population,
    generator: Generator,
    params: Params,
    model: Params,
    stream: np.random.Generator,
    examples: int = 1000,
) -> dict[str, Any]:
    """Measure the mean cosine of generated and real features, of the same class and of other classes.

    Args:
        population: whose test set has the real examples.
        generator: for the population's first model.
        params: of the generator.
        model: whose features are the real ones, behind its last block before `generator.feature_entry`.
        stream: noise is drawn from.
        examples: of the test set, and generated for each class as many as it has there.

    Returns:
        `same` and `other`, means over the classes; they are equal if features tell nothing of their class.
        `classes` has for each class, by its name, the similarity to real features of this class.
    """
    net, test = population.nets[0], population.dataset.test
    x, y = tree.wrap_array(test.x[:examples]), tree.wrap_array(test.y[:examples])
    real = torch.cat(
        [
            net.run_blocks(
                model,
                tree.to_channels_last(population.dataset.normalise(part)),
                stop=generator.feature_entry.block,
            )
            for part in torch.split(x, AT_ONCE)
        ]
    )
    noise = torch.from_numpy(stream.standard_normal((len(y), generator.noise), np.float32))
    made = torch.cat(
        [
            generator(params, some, wanted)
            for some, wanted in zip(torch.split(noise, AT_ONCE), torch.split(y, AT_ONCE), strict=True)
        ]
    )
    real, made = pool_features(real), pool_features(made)
    classes = [c for c in range(population.dataset.num_classes) if (y == c).any() and (y != c).any()]
    same = [compute_mean_cosine(made[y == c], real[y == c]) for c in classes]
    other = [compute_mean_cosine(made[y == c], real[y != c]) for c in classes]
    named = {population.dataset.classes[c]: round(value, 4) for c, value in zip(classes, same, strict=True)}
    means = {"same": round(float(np.mean(same)), 4), "other": round(float(np.mean(other)), 4)}
    return {**means, "classes": named}
