"""One point of a sweep: what is known of it so far, and the sample or the failure that it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specplan.files import Failure, Sample
from specplan.measure.clock import StepTime
from specplan.measure.grid import MeasuredPoint
from specplan.measure.steps import ReadyStep

__all__ = ["Series", "StopReason", "failure_of", "point_of", "priced_by_device", "sample_of"]

StopReason = Literal["converged", "cap", "time-budget", "interrupted"]


@dataclass(slots=True)
class Series:
    """What is known of one point so far."""

    point: MeasuredPoint
    step: ReadyStep | None = None
    warm_up: list[StepTime] = field(default_factory=list)
    repetitions: list[StepTime] = field(default_factory=list)
    stop_reason: StopReason | None = None
    failure: str | None = None
    executed: tuple[int, int] = (0, 0)  # requests and tokens
    num_drifting: int = 0  # repetitions

    @classmethod
    def after(cls, point: MeasuredPoint, earlier: Sample | None) -> Series:
        """What an earlier sweep knew of the point; a reason to stop holds where the point was done."""
        if earlier is None:
            return cls(point)
        done = earlier.stop_reason if earlier.stop_reason in ("converged", "cap") else None
        device_ms: Sequence[float | None] = earlier.device_ms or [None] * len(earlier.repetitions_ms)
        return cls(
            point,
            warm_up=[
                StepTime(wall_ms=ms, device_ms=ms if priced_by_device(point) else None) for ms in earlier.warmup_ms
            ],
            repetitions=[
                StepTime(wall_ms=wall_ms, device_ms=device)
                for wall_ms, device in zip(earlier.repetitions_ms, device_ms, strict=True)
            ],
            stop_reason=done,
            executed=(earlier.executed_num_reqs, earlier.executed_num_tokens),
            num_drifting=earlier.num_drifting,
        )

    def forget_since(self, num_warm_up: int, num_repetitions: int) -> None:
        """Drops all but the first so many; the point is to be visited again."""
        del self.warm_up[num_warm_up:], self.repetitions[num_repetitions:]
        self.stop_reason = None

    @property
    def priced_ms(self) -> list[float]:
        return [price_ms(self.point, time) for time in self.repetitions]


def priced_by_device(point: MeasuredPoint) -> bool:
    """A captured drafter is priced by the device's own interval: its output stays there. All else by the wall."""
    return point.model == "draft" and point.mode == "graph"


def price_ms(point: MeasuredPoint, time: StepTime) -> float:
    return time.device_ms if priced_by_device(point) and time.device_ms is not None else time.wall_ms


def fields_of(point: MeasuredPoint) -> dict[str, Any]:
    """What a sample and a failure say alike of the point that they are of."""
    return {"model": point.model, "mode": point.mode, "k": point.k, **asdict(point.shape)}


def sample_of(series: Series, stopped_by: StopReason) -> Sample:
    point = series.point
    return Sample(
        **fields_of(point),
        feed_len=point.feed_len,
        executed_num_reqs=series.executed[0],
        executed_num_tokens=series.executed[1],
        warmup_ms=[price_ms(point, time) for time in series.warm_up],
        repetitions_ms=series.priced_ms,
        device_ms=[time.device_ms for time in series.repetitions if time.device_ms is not None],
        stop_reason=series.stop_reason or stopped_by,
        num_drifting=series.num_drifting,
    )


def point_of(sample: Sample) -> MeasuredPoint:
    """The point that a sample is of; the inverse of `sample_of`."""
    assert sample.model != "host"
    return MeasuredPoint(model=sample.model, mode=sample.mode, shape=sample.shape, k=sample.k, feed_len=sample.feed_len)


def failure_of(series: Series) -> Failure:
    assert series.failure is not None
    return Failure(**fields_of(series.point), message=series.failure)
