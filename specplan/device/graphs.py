"""CUDA graphs: captured so that a failure harms nothing but itself, replayed from tensors that stay where they are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specplan.errors import MeasurementError

__all__ = ["GraphReplay", "Grapher"]

WARM_UP_RUNS = 3
WARM_UP_REPLAYS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReplay:
    """Replays a graph. It holds on to what was captured: a graph keeps none of the tensors alive that it reads."""

    graph: torch.cuda.CUDAGraph
    result: Tensor
    captured: Callable[[], Tensor]

    def __call__(self) -> Tensor:
        self.graph.replay()
        return self.result


class Grapher:
    """Captures graphs into one memory pool: they never run at once, so the largest, captured first, has room for all.

    Replays belong on one stream of the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device(device.type, torch.cuda.current_device() if device.index is None else device.index)
        # One for warm-ups and captures: cuBLAS keeps a workspace for every stream it has seen.
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._open_pool()

    def capture(self, run: Callable[[], Tensor]) -> GraphReplay:
        """A graph of `run`, warmed up before and replayed after: the first replay uploads it.

        Raises torch.OutOfMemoryError, or MeasurementError with the error that ended the capture. The caller's stream is
        current again then, and neither later captures nor earlier graphs are affected.
        """
        outside = sys.exception()
        with torch.cuda.device(self.device):
            here = torch.cuda.current_stream()
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UP_RUNS):
                    run()
            here.wait_stream(self._stream)
            try:
                graph, result = self._record(run)
            except RuntimeError as error:
                self._recover()
                raise capture_failure(error, outside) from error
            replay = GraphReplay(graph=graph, result=result, captured=run)
            for _ in range(WARM_UP_REPLAYS):
                replay()
            torch.cuda.synchronize()
        return replay

    def _record(self, run: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        # `torch.cuda.graph` ends the capture whatever happens in it, but where the end fails too, it leaves its own
        # stream current: the outer context brings the caller's back.
        with (
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream),
        ):
            result = run()
        return graph, result

    def _open_pool(self) -> None:
        """A new pool, with a graph in it that stays: a pool whose graphs are all gone cannot be captured into again."""
        self._pool: Any = torch.cuda.graph_pool_handle()
        with torch.cuda.device(self.device):
            self._anchor = self._record(lambda: torch.zeros(1, device=self.device))

    def _recover(self) -> None:
        """Undoes what a failed capture leaves behind where torch (before 2.12) gives up halfway through ending it.

        The allocator still holds that a capture into the pool is under way; and the default generator that it is being
        captured, which makes every later draw of random numbers fail. A capture that succeeds clears the second.
        """
        with contextlib.suppress(RuntimeError):  # where torch has done it
            torch._C._cuda_endAllocateToPool(self.device.index, self._pool)
        self._open_pool()


def capture_failure(error: RuntimeError, outside: BaseException | None) -> Exception:
    """What to raise for a failed capture: the first error of its chain; the last says that the capture was invalid.

    The chain ends at what was being handled when the capture began, which is not its doing.
    """
    first: BaseException = error
    while first.__context__ is not None and first.__context__ is not outside:
        first = first.__context__
    if isinstance(first, torch.OutOfMemoryError):
        return first
    said = str(first).splitlines()
    return MeasurementError(
        f"CUDA graph capture failed: {said[0] if said else type(first).__name__}", "see whether the step runs eagerly"
    )
