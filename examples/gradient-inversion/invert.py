"""Rebuild a client's image from its update, and see what clipping and noise change.

Geiping, Bauermeister, Dröge, Moeller: Inverting Gradients, NeurIPS 2020, arXiv:2003.14053. A client makes one
step on one image of `digits`. Its update, divided by the learning rate, is the gradient of that image. The
server searches for the image whose gradient has the same direction. The class is read off the gradient: only
the bias of the true class has a negative one (Zhao, Mopuri, Bilen 2020, arXiv:2001.02610).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsim import tree
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import resolve_spec

LR = 0.1
SETTINGS: dict[str, dict[str, Any] | None] = {
    "no privacy": None,
    "clipping alone": {"kind": "local", "clip": 0.1, "noise_multiplier": 0.0},
    "noise 0.1": {"kind": "local", "clip": 0.1, "noise_multiplier": 0.1},
    "noise 1": {"kind": "local", "clip": 0.1, "noise_multiplier": 1.0},
}
"""The section `privacy` of each run. The noise is in multiples of the clipping bound."""


def run_one_step(privacy: dict[str, Any] | None) -> tuple[Any, Any, Any, Tensor]:
    """Run one round with one client that has one image.

    Returns:
        The net, the model that the client received, what it sent as a gradient, and its image.
    """
    spec = parse_spec(
        {
            "algorithm": "fedavg",
            "rounds": 1,
            "clients": {"total": 20, "fraction": 0.05},
            "data": {"dataset": "digits", "limit": 20, "partition": "iid"},
            "local": {"steps": 1, "batch_size": 1, "lr": LR},
            "privacy": privacy,
        }
    )
    experiment = resolve_spec(spec, Settings.from_env())
    population = experiment.load_population()
    received = experiment.algorithm.init_server_state(population.context(0)).params
    (result,) = experiment.simulate(population)
    # The mean of a single client is its own update: the server sees no more than this.
    gradient = tree.scale(tree.sub(result.state.params, received), -1 / LR)
    (row,) = population.partition.client_positions(result.cohort[0])
    image = population.dataset.normalise(torch.tensor(population.dataset.train.x[[row]]))
    return population.nets[0], received, gradient, image


def rebuild_image(net: Any, params: Any, gradient: Any, shape: torch.Size, steps: int = 300) -> Tensor:
    """Search for an image whose gradient has the direction of this one."""
    label = gradient["head.bias"].argmin()[None]
    weights = {key: value.clone().requires_grad_() for key, value in params.items()}
    target = tree.flatten(gradient).float()
    image = torch.zeros(shape, requires_grad=True)
    optimizer = torch.optim.Adam([image], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(weights, image), label)
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        flat = torch.cat([part.reshape(-1) for part in found])
        (1 - torch.cosine_similarity(flat, target, dim=0)).backward()
        optimizer.step()
    return image.detach()


def measure_likeness(image: Tensor, other: Tensor) -> float:
    """Return the correlation of two images: 1 for the same image, about 0 for unrelated ones."""
    return float(torch.corrcoef(torch.stack([image.reshape(-1), other.reshape(-1)]))[0, 1])


def draw_image(image: Tensor) -> list[str]:
    """Draw an image of 8 x 8 pixels with characters."""
    shades = ((image - image.min()) / (image.max() - image.min()) * 4).round().int().view(8, 8)
    return ["".join(" .:*#"[shade] * 2 for shade in row) for row in shades.tolist()]


def main() -> dict[str, float]:
    """Print the image that the server rebuilds under each setting; return how alike it is to the true one."""
    likeness, pictures, titles = dict[str, float](), list[list[str]](), list[str]()
    for name, privacy in SETTINGS.items():
        net, received, gradient, image = run_one_step(privacy)
        rebuilt = rebuild_image(net, received, gradient, image.shape)
        likeness[name] = measure_likeness(image, rebuilt)
        if not pictures:
            pictures.append(draw_image(image))
            titles.append("the image")
        pictures.append(draw_image(rebuilt))
        titles.append(f"{name}: {likeness[name]:.2f}")
    print("".join(title.ljust(24) for title in titles))
    for line in zip(*pictures, strict=True):
        print("".join(part.ljust(24) for part in line))
    return likeness


if __name__ == "__main__":
    main()
