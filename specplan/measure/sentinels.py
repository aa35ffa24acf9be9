"""Points that are visited again between blocks of others: how far a machine drifts while it is measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from specplan.costs.uncertainty import median_half_widths
from specplan.files import Sentinel
from specplan.measure.clock import time_step
from specplan.measure.series import Series

__all__ = ["Sentinels", "drift_between"]

LEAST_DRIFT = 0.01  # of a median; less is no drift, however sure
WARM_UP_RUNS = 3
REPETITIONS = 9


@dataclass(slots=True)
class Watched:
    series: Series
    at_s: list[float] = field(default_factory=list)
    median_ms: list[float] = field(default_factory=list)


class Sentinels:
    """A small and a middling verify step among the points of a sweep, each run in probes of its own.

    What a probe finds prices nothing. Large steps drift as the middling one does, and would cost more than the rest.
    """

    def __init__(self, all_series: Sequence[Series], device: torch.device) -> None:
        ready = [s for s in all_series if s.step is not None and s.point.model == "verify" and s.point.mode == "graph"]
        ready.sort(key=lambda series: series.point.shape.num_tokens)
        chosen = {id(series): series for series in (*ready[:1], *ready[len(ready) // 2 :][:1])}
        self.watched = [Watched(series) for series in chosen.values()]
        self.device = device
        self.start_s = time.monotonic()

    def probe(self) -> list[NDArray[np.float64]]:  # of each [REPETITIONS]
        """Times each, now."""
        found = []
        for watched in self.watched:
            step = watched.series.step
            assert step is not None
            times_ms = []
            for _ in range(WARM_UP_RUNS + REPETITIONS):
                step.before()
                times_ms.append(time_step(step.run, self.device).wall_ms)
            found.append(np.array(times_ms[WARM_UP_RUNS:]))
            watched.at_s.append(time.monotonic() - self.start_s)
            watched.median_ms.append(float(np.median(found[-1])))
        return found

    def record(self) -> list[Sentinel]:
        return [
            Sentinel(
                num_reqs=watched.series.point.shape.num_reqs,
                num_tokens=watched.series.point.shape.num_tokens,
                at_s=list(watched.at_s),
                median_ms=list(watched.median_ms),
            )
            for watched in self.watched
            if watched.at_s
        ]


def drift_between(
    before: Sequence[NDArray[np.float64]],  # of each sentinel [repetitions]
    after: Sequence[NDArray[np.float64]],
) -> float:
    """The largest change of a sentinel's median, as a share of it; 0 where each is within the noise, or under 1%.

    The noise is the half-widths of the two medians' 95% intervals.
    """
    drift = 0.0
    for earlier, later in zip(before, after, strict=True):
        median = float(np.median(earlier))
        change = abs(float(np.median(later)) / median - 1.0)
        noise = float(median_half_widths([earlier, later]).sum()) / median
        if change > max(LEAST_DRIFT, noise):
            drift = max(drift, change)
    return drift
