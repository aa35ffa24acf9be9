"""The sweep: every point it is given, visited in random order, again and again until it is known well enough.

One visit times a short burst. Points are interleaved rather than finished one by one, so that a machine that drifts
drifts under all of them alike, and so that a sweep cut short knows something of every point.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from specplan.costs.uncertainty import median_half_widths
from specplan.errors import MeasurementError
from specplan.files import Failure, Reading, Sample, Sentinel
from specplan.measure.clock import StepTime, time_step
from specplan.measure.conditions import ConditionReader
from specplan.measure.grid import MeasuredPoint
from specplan.measure.sentinels import Sentinels, drift_between
from specplan.measure.series import Series, StopReason, failure_of, point_of, priced_by_device, sample_of
from specplan.measure.steps import StepFactory

__all__ = ["StoppingRule", "Sweep", "SweepProgress", "SweepResult", "sweep"]

# A short step is as fast as in a loop of its own only after some runs: a millisecond's at its sixth or so.
WARM_UP_RUNS = 8
WARM_UP_MS = 10.0
MOST_IN_A_BURST = 10
READ_EVERY_S = 5.0
SAVE_EVERY_S = 30.0
BLOCK = 32  # points between two probes of the sentinels


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingRule:
    """A point is done when its median is known, or has cost enough.

    Known: at least `min_repetitions` and `min_busy_s`, and a 95% half-width of the median (bootstrap) of at most
    `half_width` of it. Enough: `max_busy_s`. `time_budget_s` ends the sweep as a whole. A visit takes `burst`
    repetitions, and of a short step as many as take `burst_ms`, up to ten.
    """

    min_repetitions: int = 20
    min_busy_s: float = 0.3
    half_width: float = 0.005
    max_busy_s: float = 1.5
    time_budget_s: float | None = None
    burst: int = 3
    burst_ms: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """How far the sweep is: `fraction` is of the time budget where there is one, else of the points that are done.

    In round 0 steps are made ready: warmed up and, on CUDA, captured.
    """

    fraction: float
    points_done: int
    points_total: int
    rounds: int
    point: MeasuredPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Samples and failures in the points' order. `complete` is False if a point has no sample, or the user stopped."""

    samples: list[Sample]
    failures: list[Failure]
    complete: bool
    readings: list[Reading] = field(default_factory=list)
    sentinels: list[Sentinel] = field(default_factory=list)


class Sweep:
    """Points on their way to being known. Made ready once, visited in as many rounds as there is time for."""

    def __init__(
        self,
        factory: StepFactory,
        points: Sequence[MeasuredPoint],
        *,
        seed: int = 0,
        earlier: Sequence[Sample] = (),
    ) -> None:
        """`earlier`: samples of a sweep of the same points that was stopped; they count as its own."""
        self.factory = factory
        known = {point_of(sample): sample for sample in earlier}
        self.all_series = [Series.after(point, known.get(point)) for point in points]
        self.order = random.Random(seed)
        self.rounds = 0
        self.conditions = ConditionReader(factory.device)
        self.readings = [self.conditions.read()]

    @torch.inference_mode()
    def make_ready(self) -> Iterator[MeasuredPoint]:
        """Every step is ready before any is timed, the largest first, so that smaller graphs fit in its memory."""
        pending = [series for series in self.all_series if series.stop_reason is None]
        for series in sorted(pending, key=lambda series: -series.point.shape.num_tokens):
            make_ready(series, self.factory)
            yield series.point

    @torch.inference_mode()
    def visit_all(self, rule: StoppingRule) -> Iterator[MeasuredPoint]:
        """One burst at each point that is ready and not done, in a new random order."""
        for series in self.next_round():
            self.visit(series, rule)
            yield series.point

    @torch.inference_mode()
    def visit_blocks(self, rule: StoppingRule) -> Iterator[MeasuredPoint]:
        """As `visit_all`, in blocks between which sentinels are timed.

        A block under which they drift is visited once more instead; where they drift again it counts, and is marked.
        """
        pending = self.next_round()
        before = self.sentinels.probe() if pending else []
        for start in range(0, len(pending), BLOCK):
            block = pending[start : start + BLOCK]
            for is_last in (False, True):
                known = [(len(series.warm_up), len(series.repetitions)) for series in block]
                for series in block:
                    self.visit(series, rule)
                    yield series.point
                after = self.sentinels.probe()
                drift, before = drift_between(before, after), after
                if not drift:
                    break
                for series, (num_warm_up, num_repetitions) in zip(block, known, strict=True):
                    if is_last:
                        series.num_drifting += len(series.repetitions) - num_repetitions
                    else:
                        series.forget_since(num_warm_up, num_repetitions)

    def next_round(self) -> list[Series]:
        """What is ready and not done, in a new random order; in the first round what prices nothing comes last, for the
        time may end there."""
        pending = [series for series in self.all_series if series.step is not None and series.stop_reason is None]
        self.order.shuffle(pending)
        if not self.rounds:
            pending.sort(key=lambda series: self.factory.plan.region_of(series.point) is None)
        self.rounds += bool(pending)
        return pending

    def visit(self, series: Series, rule: StoppingRule) -> None:
        visit(series, rule, self.factory.device)
        if time.monotonic() - self.conditions.start_s - self.readings[-1].at_s >= READ_EVERY_S:
            self.readings.append(self.conditions.read())

    @cached_property
    def sentinels(self) -> Sentinels:
        """Chosen once the steps are ready."""
        return Sentinels(self.all_series, self.factory.device)

    @property
    def is_done(self) -> bool:
        return all(series.step is None or series.stop_reason is not None for series in self.all_series)

    def result(self, *, stopped_by: StopReason) -> SweepResult:
        """What is known, with the reason why points that had not settled were left at that."""
        samples = [sample_of(series, stopped_by) for series in self.all_series if series.repetitions]
        return SweepResult(
            samples=samples,
            failures=[failure_of(series) for series in self.all_series if series.failure],
            readings=list(self.readings),
            sentinels=self.sentinels.record(),
            complete=stopped_by != "interrupted" and len(samples) == len(self.all_series),
        )


def sweep(
    factory: StepFactory,
    points: Sequence[MeasuredPoint],
    rule: StoppingRule,
    *,
    seed: int = 0,
    earlier: Sequence[Sample] = (),
    may_be_empty: bool = False,
    on_progress: Callable[[SweepProgress], None] = lambda progress: None,
    on_checkpoint: Callable[[SweepResult], None] = lambda result: None,
) -> SweepResult:
    """Measures every point; one that cannot run is set down as a failure. Ctrl-C keeps what is done.

    `on_checkpoint` is given what is known so far, at least half a minute apart, for who cannot ask for it later.

    Raises MeasurementError if nothing was measured, unless that `may_be_empty`, and KeyboardInterrupt if the user
    stopped it before anything was.
    """
    running = Sweep(factory, points, seed=seed, earlier=earlier)
    start_s = saved_s = time.monotonic()

    def out_of_time(point: MeasuredPoint | None = None) -> bool:
        elapsed_s = time.monotonic() - start_s
        if point is not None:
            on_progress(sweep_progress(running, rule, point, elapsed_s))
            save()
        return rule.time_budget_s is not None and elapsed_s >= rule.time_budget_s

    def save() -> None:
        nonlocal saved_s
        if running.rounds and time.monotonic() - saved_s >= SAVE_EVERY_S:
            on_checkpoint(running.result(stopped_by="interrupted"))
            saved_s = time.monotonic()

    stopped_by: StopReason = "time-budget"
    try:
        is_over = out_of_time() or any(map(out_of_time, running.make_ready()))
        while not (is_over or running.is_done):
            is_over = any(map(out_of_time, running.visit_blocks(rule)))
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    result = running.result(stopped_by=stopped_by)
    if stopped_by == "interrupted" and not result.samples:
        raise KeyboardInterrupt
    if not (result.samples or may_be_empty):
        why = next((failure.message for failure in result.failures), "the time budget ran out")
        raise MeasurementError(
            f"the sweep ended before its first point was measured: {why}",
            "give it a larger --time-budget, or fewer requests: --max-num-seqs",
        )
    return result


def make_ready(series: Series, factory: StepFactory) -> None:
    try:
        series.step = factory.make(series.point)
        series.executed = (series.step.executed_num_reqs, series.step.executed_num_tokens)
    except MeasurementError as error:
        series.failure = error.message


def visit(series: Series, rule: StoppingRule, device: torch.device) -> None:
    """One burst at a point. Its first runs find caches that another shape has filled, and count as warm-up."""
    step, queued = series.step, priced_by_device(series.point)
    assert step is not None

    def run_once() -> StepTime:
        step.before()
        return time_step(step.run, device, queued=queued)

    visited = [run_once()]
    while len(visited) < WARM_UP_RUNS and sum(time.wall_ms for time in visited) < WARM_UP_MS:
        visited.append(run_once())
    series.warm_up += visited
    burst = [run_once() for _ in range(rule.burst)]
    while len(burst) < MOST_IN_A_BURST and sum(time.wall_ms for time in burst) < rule.burst_ms:
        burst.append(run_once())
    series.repetitions += burst
    busy_s = sum(time.wall_ms for time in series.repetitions) / 1e3
    if len(series.repetitions) >= rule.min_repetitions and busy_s >= rule.min_busy_s:
        priced_ms = np.array(series.priced_ms)
        if median_half_widths([priced_ms])[0] <= rule.half_width * np.median(priced_ms):
            series.stop_reason = "converged"
        elif busy_s >= rule.max_busy_s:
            series.stop_reason = "cap"


def sweep_progress(running: Sweep, rule: StoppingRule, point: MeasuredPoint, elapsed_s: float) -> SweepProgress:
    done = sum(series.stop_reason is not None for series in running.all_series)
    of_points = done / len(running.all_series)
    of_time = elapsed_s / rule.time_budget_s if rule.time_budget_s else 0.0
    return SweepProgress(
        fraction=min(1.0, max(of_points, of_time)),
        points_done=done,
        points_total=len(running.all_series),
        rounds=running.rounds,
        point=point,
    )
