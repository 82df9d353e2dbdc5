"""What a method in phases may say of its rounds, and what the page and a report both make of it.

These records are invented, for what a method of somebody else may say and none of ours does; see `real_runs`
for what ours say.
"""

from __future__ import annotations

from typing import Any

PHASES: list[dict[str, Any]] = [
    {"phase": "1 of 2", "threshold": 0.3, "quantiles": [], "frozen_clients": 0, "frozen": [], "left": None},
    {"phase": "1 of 2", "threshold": 0.3, "quantiles": [0.3, 0.6], "frozen_clients": 2, "frozen": [3, 7]},
    {"phase": "1 of 2", "threshold": 0.3, "quantiles": [0.2, 0.6], "frozen_clients": 3, "frozen": [3, 7, 9]}
    | {"left": "cap"},
    {"phase": "2 of 2", "threshold": 0.6, "quantiles": [0.1, 0.5], "frozen_clients": 0, "frozen": []},
]
"""Clients freeze, until all are free again in the next phase."""

PHASE_MARKS = [
    (0, "phase: 1 of 2", "phase: 1 of 2"),
    (1, "frozen: + 3, 7", ""),
    (2, "frozen: + 9; left: cap", ""),
    (3, "phase: 2 of 2; frozen: none", "phase: 2 of 2"),
]
"""In which record, what, and what of it goes on; why a phase was left is said in passing."""

CUT_SHORT: list[dict[str, Any]] = [
    {"phase": "1 of 2", "crowd_clients": 0, "crowd": [], "newly_crowd": []},
    {"phase": "1 of 2", "crowd_clients": 3, "crowd": [7, 9], "newly_crowd": [7, 9, 11]},
    {"phase": "1 of 2", "crowd_clients": 9, "crowd": [1, 2], "newly_crowd": [1, 2, 3, 4, 5, 6]},
    {"phase": "2 of 2", "crowd_clients": 1, "crowd": [2], "newly_crowd": [2]},
]
"""A list that records have the first two of, and those that are new in it whole."""

CUT_SHORT_MARKS = [
    (0, "phase: 1 of 2", "phase: 1 of 2"),
    (1, "newly crowd: 7, 9, 11", ""),
    (2, "newly crowd: 6", ""),
    (3, "phase: 2 of 2; newly crowd: 2", "phase: 2 of 2"),
]

PHASE_CURVES = {
    "threshold": [("threshold", [0.3, 0.3, 0.3, 0.6])],
    "quantiles": [("quantiles 1", [None, 0.3, 0.2, 0.1]), ("quantiles 2", [None, 0.6, 0.6, 0.5])],
    # The list of the frozen may be cut short: where the method counts them, its count is drawn.
    "frozen_clients": [("frozen clients", [0, 2, 3, 0])],
}
