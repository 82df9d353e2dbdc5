"""RunSettings: the numbers of a run that the library, the service and every worker share."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedsim.base.parameters import Count, Seed
from fedsim.core.local_training import LocalTraining


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of one run; the number of clients comes with their data.

    The defaults are those of a spec that leaves the fields out.

    Attributes:
        seed: the seed of the run; every random stream derives from it.
        rounds: number of rounds, T.
        cohort_size: number of clients per round, K.
        local: the settings of local training.
    """

    seed: Seed = 0
    rounds: Count
    cohort_size: Count
    local: LocalTraining = field(default_factory=LocalTraining)
