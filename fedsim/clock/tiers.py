"""Tiers of clients of similar speed, as TiFL forms them before the first round."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsim.base.wire import NUMBER_BYTES
from fedsim.clients.population import Population
from fedsim.clock.fleets import Fleet
from fedsim.clock.profiles import ClientWork
from fedsim.training.effort import CostMeter


def find_tiers(fleet: Fleet, population: Population, meter: CostMeter, count: int) -> NDArray[np.uint8]:
    """Return the tier of every client, uint8 `[N]`; 0 is the fastest.

    Clients are ordered by the seconds in which they would receive the model, train all its parameters and
    send it back; of equal ones, the lower number comes first. The tiers have the same size, up to one client.

    Args:
        fleet: the devices.
        population: the federation.
        meter: counts the FLOPs of a plain local loop.
        count: number of tiers.
    """
    ctx = population.context(0)
    sizes = [NUMBER_BYTES * net.count_parameters_of(net.keys) for net in population.nets]
    seconds = np.empty(ctx.num_clients)
    for client, flops in enumerate(meter.plain_flops(ctx, range(ctx.num_clients))):
        model = sizes[client % len(sizes)]
        profile = fleet.draw_profile(ctx.seed, client)
        seconds[client] = profile.measure_seconds(ClientWork(model, flops, model)).total
    order = np.argsort(seconds, kind="stable")
    tiers = np.empty(ctx.num_clients, np.uint8)
    tiers[order] = np.arange(ctx.num_clients) * count // ctx.num_clients
    return tiers
