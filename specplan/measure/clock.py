"""Times one step, from launch to the result on the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["StepTime", "time_step"]

# Long enough for the host to launch a graph of some thousand kernels while the device is busy: about 2 ms at 2 GHz.
QUEUE_CYCLES = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """`wall_ms` is launch to result on the host; `device_ms` the device's own interval, None where the host is it."""

    wall_ms: float
    device_ms: float | None


def time_step(run: Callable[[], Tensor], device: torch.device, *, queued: bool = False) -> StepTime:
    """Runs a step once. `run` returns the tensor that serving copies to the host.

    On CUDA each call has its own event pair around the work, and the wall clock stops when the copy has landed and the
    closing event has passed; nothing inside the interval waits. A `queued` step is launched behind other work, as a
    drafter is behind the verify pass, so that the device's interval holds no launch gap; its wall time holds that wait.
    """
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return StepTime(wall_ms=(time.perf_counter() - start) * 1e3, device_ms=None)
    opening = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    closing = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start = time.perf_counter()
    if queued:
        torch.cuda._sleep(QUEUE_CYCLES)  # type: ignore[no-untyped-call]
    opening.record()
    result = run()
    closing.record()
    result.cpu()
    closing.synchronize()  # an empty result copies nothing, and waits for nothing
    wall_ms = (time.perf_counter() - start) * 1e3
    return StepTime(wall_ms=wall_ms, device_ms=opening.elapsed_time(closing))
