"""What the pieces of a serving step take on this device: each mask mode, each admission path, beside a launch's floor.

A captured piece is timed as one graph of twenty calls, so that the launch is shared, and as a graph of one, as serving
replays it. Medians and quartiles of many replays, each with its own event pair, queued behind other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specplan.device import AcceptanceMask, ScvMode, accepted_prefix_mask, admit_drafts, compact_batch
from specplan.device.graphs import Grapher
from specplan.device.scv import GraphMask, MaskKey
from specplan.measure.clock import time_step
from specplan.measure.environment import describe_environment

CALLS = 20
REPLAYS = 60
REQUESTS = (256, 8, 64, 1024)  # the goal's size first: what is cut off by the clock is the least of it
KS = (7, 3, 15)
GOAL_US = 15.0
GOAL_RATIO = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    end_s = time.monotonic() + options.seconds
    device = torch.device("cpu" if options.rehearse else "cuda")
    bench = Bench(device)
    skipped: list[str] = []
    failed: list[str] = []

    def write() -> None:
        """After each piece: what there is must not be lost to what comes."""
        result = {
            "environment": describe(device),
            "timings": bench.timings,
            "skipped": skipped,
            "failed": failed,
            "goal": goal(bench.timings),
        }
        (options.out / "microbenchmarks.json").write_text(json.dumps(result, indent=2) + "\n")

    bench.floor()
    for pieces in (quick_pieces, compiled_pieces):  # compiling takes longest, and comes last
        for num_reqs in REQUESTS:
            for k in KS:
                for name, piece in pieces(bench, num_reqs, k):
                    what = f"{name}, {num_reqs} x {k}"
                    if time.monotonic() > end_s:
                        skipped.append(what)
                        continue
                    try:
                        piece()
                    except Exception as error:  # noqa: BLE001 - one piece's failure is not the others'
                        failed.append(f"{what}: {type(error).__name__}: {error}")
                        print(f"FAILED {failed[-1]}", flush=True)
                    write()
    write()
    for line in skipped:
        print(f"skipped, out of time: {line}")
    print(goal(bench.timings))
    return 1 if failed else 0


class Bench:
    """Times pieces and keeps what it found."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.grapher = Grapher(device) if device.type == "cuda" else None
        self.timings: list[dict[str, Any]] = []

    def floor(self) -> None:
        """What a replay takes that runs nothing, and one that runs the smallest kernel."""
        if self.grapher is None:
            return
        one = torch.zeros(1, device=self.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the graph is empty is the point
            empty = self.grapher.capture(lambda: one)
        self.keep("floor", "empty graph", 0, 0, self.samples_us(empty, calls=1))
        self.captured("floor", "one kernel", 0, 0, one.zero_)

    def captured(self, piece: str, path: str, num_reqs: int, k: int, run: Callable[[], Tensor]) -> None:
        """`run` as a graph of one call and as a graph of many; on a CPU as it is."""
        if self.grapher is None:
            self.eager(piece, path, num_reqs, k, run)
            return

        def many() -> Tensor:
            for _ in range(CALLS):
                result = run()
            return result

        self.keep(piece, f"{path}, replayed", num_reqs, k, self.samples_us(self.grapher.capture(run), calls=1))
        self.keep(piece, f"{path}, of {CALLS}", num_reqs, k, self.samples_us(self.grapher.capture(many), calls=CALLS))

    def eager(self, piece: str, path: str, num_reqs: int, k: int, run: Callable[[], Tensor]) -> None:
        """Launched one by one, from call to result on the host: what cannot be captured, or is not."""
        for _ in range(3):
            run()
        samples = [time_step(run, self.device).wall_ms * 1e3 for _ in range(REPLAYS)]
        self.keep(piece, f"{path}, wall", num_reqs, k, samples)

    def samples_us(self, replay: Callable[[], Tensor], *, calls: int) -> list[float]:
        times = [time_step(replay, self.device, queued=True).device_ms for _ in range(REPLAYS)]
        return [ms * 1e3 / calls for ms in times if ms is not None]

    def keep(self, piece: str, path: str, num_reqs: int, k: int, samples_us: list[float]) -> None:
        low, median, high = statistics.quantiles(samples_us, n=4)
        timing = {
            "piece": piece,
            "path": path,
            "num_reqs": num_reqs,
            "k": k,
            "median_us": round(median, 3),
            "quartiles_us": [round(low, 3), round(high, 3)],
            "repetitions": len(samples_us),
        }
        self.timings.append(timing)
        print(f"{piece:10} {path:24} {num_reqs:5} x {k:2}  {median:9.2f} us  [{low:.2f}, {high:.2f}]", flush=True)


@dataclass(frozen=True, kw_only=True)
class Admission:
    """One step to admit drafts in, by the separate kernels or by the fused one: with a budget of a quarter."""

    confidence: Tensor  # [num_reqs, k]
    idx_mapping: Tensor  # [num_reqs] int32
    scheduled: Tensor  # [num_reqs] int32
    num_non_draft_tokens: Tensor  # [num_reqs] int32
    draft_budget: Tensor  # [1] int32

    @classmethod
    def random(cls, num_reqs: int, k: int, device: torch.device) -> Admission:
        generator = torch.Generator().manual_seed(num_reqs * 100 + k)
        return cls(
            confidence=torch.rand(num_reqs, k, generator=generator).to(device),
            idx_mapping=torch.randperm(num_reqs, generator=generator).to(device, torch.int32),
            scheduled=torch.randint(0, k + 1, (num_reqs,), generator=generator).to(device, torch.int32),
            num_non_draft_tokens=torch.ones(num_reqs, dtype=torch.int32, device=device),
            draft_budget=torch.full((1,), num_reqs * k // 4, dtype=torch.int32, device=device),
        )

    def separate(self) -> Tensor:
        admitted = admit_drafts(self.confidence, self.idx_mapping, self.scheduled, self.draft_budget)
        return torch.cat((admitted, *compact_batch(admitted, self.num_non_draft_tokens)))

    def fused(self, out: Tensor) -> Tensor:
        from specplan.device.admission_kernel import admit_and_compact

        admit_and_compact(
            self.confidence,
            self.idx_mapping,
            self.scheduled,
            self.num_non_draft_tokens,
            self.draft_budget,
            out,
            padded_reqs=self.scheduled.shape[0],
            num_bonus_tokens=1,
        )
        return out


Pieces = Iterator[tuple[str, Callable[[], None]]]  # each behind a call: whether there is time is asked first


def compiled_pieces(bench: Bench, num_reqs: int, k: int) -> Pieces:
    def compile_and_time() -> None:
        torch._dynamo.reset()  # else the ninth size would run uncompiled
        step = Admission.random(num_reqs, k, bench.device)
        run = torch.compile(step.separate, fullgraph=True, dynamic=False)
        assert torch.equal(run(), step.separate()), "compiled and eager admission differ"
        bench.captured("admission", "compiled", num_reqs, k, run)

    if bench.grapher is not None:
        yield "admission, compiled", compile_and_time


def quick_pieces(bench: Bench, num_reqs: int, k: int) -> Pieces:
    device = bench.device
    step = Admission.random(num_reqs, k, device)
    yield "admission, torch", lambda: bench.captured("admission", "torch", num_reqs, k, step.separate)
    if bench.grapher is not None:
        out = torch.zeros(3 * num_reqs + 2, dtype=torch.int32, device=device)

        def fused() -> None:
            assert torch.equal(step.fused(out), step.separate()), "fused and separate admission differ"
            bench.captured("admission", "fused", num_reqs, k, lambda: step.fused(out))

        yield "admission, fused", fused

    generator = torch.Generator().manual_seed(num_reqs + k)
    num_tokens = int(step.scheduled.sum())
    drafts = torch.randint(0, 2, (num_tokens,), generator=generator).to(device)
    sampled = torch.randint(0, 2, (num_reqs, k + 1), generator=generator).to(device)
    counts = step.scheduled.to(torch.int64)

    def vectorised() -> Tensor:
        return accepted_prefix_mask(drafts, sampled, counts)

    yield "mask, vectorised", lambda: bench.captured("mask", "vectorised", num_reqs, k, vectorised)
    for mode in ScvMode:
        yield f"mask, {mode}", partial(mask_in_mode, bench, mode, num_reqs, k, (drafts, sampled, counts))


def mask_in_mode(bench: Bench, mode: ScvMode, num_reqs: int, k: int, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    """The mode as serving calls it, by the wall; and of `graph` the replay alone, at its padded sizes."""
    mask = AcceptanceMask(mode)
    bench.eager("mask", f"mode {mode}", num_reqs, k, lambda: mask(*batch))
    if isinstance(mask.run, GraphMask) and bench.grapher is not None:
        replay = mask.run.replays[MaskKey.of(*batch)][1]
        bench.keep("mask", "mode graph, replayed", num_reqs, k, bench.samples_us(replay, calls=1))


def goal(timings: list[dict[str, Any]]) -> str:
    """Admission in one launch, under 15 us at 256 x 7, at least 3 times faster than the compiled kernels."""
    found = {
        timing["path"]: timing["median_us"]
        for timing in timings
        if (timing["piece"], timing["num_reqs"], timing["k"]) == ("admission", 256, 7)
    }
    fused, compiled = found.get(f"fused, of {CALLS}"), found.get(f"compiled, of {CALLS}")
    if fused is None or compiled is None:
        return "goal: not measured"
    met = fused < GOAL_US and compiled >= GOAL_RATIO * fused
    return (
        f"goal {'met' if met else 'missed'}: fused admission at 256 x 7 takes {fused:.1f} us (goal: under "
        f"{GOAL_US:.0f}), the compiled kernels {compiled:.1f} us, {compiled / fused:.1f} times as long (goal: "
        f"{GOAL_RATIO:.0f})"
    )


def describe(device: torch.device) -> dict[str, Any]:
    import msgspec

    facts: dict[str, Any] = msgspec.to_builtins(describe_environment(device, torch.float32))
    return facts


if __name__ == "__main__":
    sys.exit(main())
