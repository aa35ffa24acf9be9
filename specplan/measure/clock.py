"""Times one step, from launch to the result on the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["StepTime", "time_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """`wall_ms` is launch to result on the host; `device_ms` the device's own interval, None where the host is it."""

    wall_ms: float
    device_ms: float | None


def time_step(run: Callable[[], Tensor], device: torch.device) -> StepTime:
    """Runs a step once. `run` returns the tensor that serving copies to the host.

    On CUDA each call has its own event pair around the work, and the wall clock stops when the copy has landed; the one
    synchronisation comes after the closing event, so that nothing inside the interval waits.
    """
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return StepTime(wall_ms=(time.perf_counter() - start) * 1e3, device_ms=None)
    opening = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    closing = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start = time.perf_counter()
    opening.record()
    result = run()
    closing.record()
    result.cpu()
    wall_ms = (time.perf_counter() - start) * 1e3
    closing.synchronize()
    return StepTime(wall_ms=wall_ms, device_ms=opening.elapsed_time(closing))
