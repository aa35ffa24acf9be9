"""CUDA graphs: captured so that a failure harms nothing but itself, replayed from tensors that stay where they are."""

from __future__ import annotations

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

    Captures and replays belong on one stream of the current device.
    """

    def __init__(self) -> None:
        self.pool: Any = torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], Tensor]) -> GraphReplay:
        """A graph of `run`, warmed up before and replayed after: the first replay uploads it.

        Raises torch.OutOfMemoryError, or MeasurementError with the error that ended the capture. The caller's stream is
        current again then, and later captures are not affected.
        """
        here = torch.cuda.current_stream()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP_RUNS):
                run()
        here.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        try:
            # `torch.cuda.graph` ends the capture whatever happens in it, but where the end fails too, it leaves its own
            # stream current: the outer context brings the caller's back.
            with torch.cuda.stream(here), torch.cuda.graph(graph, pool=self.pool):
                result = run()
        except RuntimeError as error:
            # The allocator may still hold that a capture into this pool is under way.
            self.pool = torch.cuda.graph_pool_handle()
            raise capture_failure(error) from error
        replay = GraphReplay(graph=graph, result=result, captured=run)
        for _ in range(WARM_UP_REPLAYS):
            replay()
        torch.cuda.synchronize()
        return replay


def capture_failure(error: RuntimeError) -> Exception:
    """What to raise for a failed capture: the first error of its chain; the last says that the capture was invalid."""
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    if isinstance(first, torch.OutOfMemoryError):
        return first
    said = str(first).splitlines()
    return MeasurementError(
        f"CUDA graph capture failed: {said[0] if said else type(first).__name__}", "see whether the step runs eagerly"
    )
