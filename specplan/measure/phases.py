"""Which phase of an engine's step takes how long."""

from __future__ import annotations

import time
from collections import defaultdict

from specplan.engine import Phase

__all__ = ["PhaseClock"]


class PhaseClock:
    """Told each phase as it begins, adds up the wall time of each.

    On CUDA a phase that launches work passes its time on to the next one that waits for it.
    """

    def __init__(self) -> None:
        self._phase: Phase | None = None
        self._since_s = 0.0
        self._ms: dict[str, float] = defaultdict(float)

    def __call__(self, phase: Phase) -> None:
        now_s = time.perf_counter()
        if self._phase is not None:
            self._ms[self._phase] += (now_s - self._since_s) * 1e3
        self._phase, self._since_s = phase, now_s

    def take(self) -> dict[str, float]:
        """Ends the phase that runs, and hands out what each has taken since the last time."""
        if self._phase is not None:
            self._ms[self._phase] += (time.perf_counter() - self._since_s) * 1e3
        taken = dict(self._ms)
        self._phase, self._ms = None, defaultdict(float)
        return taken
