"""A profile of a pair as large as what is served, with random weights, the most valuable points first.

The target has the shape of Llama-3.1-8B, the draft that of Llama-3.2-1B; 256 requests, K = 7. What is not reached in
time is listed. How much of the measured copy bandwidth a small step uses says whether these are numbers to plan with:
weights and KV have to be read, and a step that uses less than 60% of it spends its time on something else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specplan.errors import MeasurementError
from specplan.files import Failure, Reading, Sample, Sentinel
from specplan.measure import ProfilePlan, StoppingRule
from specplan.measure.grid import MeasuredPoint
from specplan.measure.profiling import assemble_profile
from specplan.measure.steps import StepFactory
from specplan.measure.sweep import SweepResult, sweep
from specplan.models import LoadedModel, load_model
from specplan.shapes import request_grid

K = 7
LEAST_SHARE = 0.6
SHARE_TOKENS = 64
# Twenty repetitions of a step of some milliseconds are enough to know its median to a percent; the time goes to points.
RULE = {"min_repetitions": 20, "min_busy_s": 0.1, "half_width": 0.01, "max_busy_s": 0.4}
TAIL_RULE = RULE | {"min_repetitions": 8}  # hundreds of milliseconds a step
CHUNK = 12  # points that are made ready, and measured, together

ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SHARED = {
    "model_type": "llama",
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
TARGET = SHARED | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "rope_scaling": ROPE}
DRAFT = SHARED | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "rope_scaling": ROPE | {"factor": 32.0},
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The pair and the limits: the real one, or the one to rehearse with."""

    target: LoadedModel
    draft: LoadedModel
    max_num_seqs: int
    max_num_batched_tokens: int
    context_lens: tuple[int, int]

    def plan(self, context_len: int, *, max_num_seqs: int | None = None) -> ProfilePlan:
        return ProfilePlan(
            max_num_seqs=max_num_seqs or self.max_num_seqs,
            num_speculative_tokens=K,
            max_num_batched_tokens=self.max_num_batched_tokens,
            contexts=(context_len,),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    clock = Clock(options.seconds)
    setting = rehearsal() if options.rehearse else large_pair(torch.device("cuda"))
    run = Run(options.out, setting, clock, bandwidth=copy_bandwidth(device_of(setting.target)))
    print(f"copy bandwidth {run.bandwidth / 1e9:,.0f} GB/s, read and written; models ready at {clock.elapsed_s:.0f} s")

    near, far = setting.context_lens
    near_plan = setting.plan(near)
    first, rest = stages(near_plan)
    run.sweep(near_plan, first)
    fitting = requests_that_fit(setting, far)
    if fitting:
        far_plan = setting.plan(far, max_num_seqs=fitting)
        run.sweep(far_plan, [stages(far_plan)[0][0]])
    else:
        run.skipped.append(f"context {far}: the KV cache does not fit")
    run.sweep(near_plan, rest)
    return run.report()


class Clock:
    """What is left of the time that this phase was given."""

    def __init__(self, seconds: float) -> None:
        self.start_s = time.monotonic()
        self.seconds = seconds

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.start_s

    @property
    def left_s(self) -> float:
        return self.seconds - self.elapsed_s


Group = tuple[str, list[MeasuredPoint]]


class Run:
    """What has been measured so far, on disk after every few points."""

    def __init__(self, out: Path, setting: Setting, clock: Clock, *, bandwidth: float) -> None:
        self.out, self.setting, self.clock, self.bandwidth = out, setting, clock, bandwidth
        self.created = datetime.now(UTC).isoformat(timespec="seconds")
        self.samples: dict[int, list[Sample]] = {}  # by context
        self.failures: dict[int, list[Failure]] = {}
        self.readings: dict[int, list[Reading]] = {}
        self.sentinels: dict[int, list[Sentinel]] = {}
        self.skipped: list[str] = []
        self.chunk_s = 3.0  # what the last few points took

    def sweep(self, plan: ProfilePlan, groups: Sequence[Group]) -> None:
        """Group after group while there is time, a few points at once: making steps ready takes time as well."""
        factory = StepFactory(self.setting.target.decoder, self.setting.draft.decoder, plan)
        for name, points in groups:
            for start in range(0, len(points), CHUNK):
                chunk = points[start : start + CHUNK]
                before_s = self.clock.elapsed_s
                if self.clock.left_s < 1.5 * self.chunk_s or not self.sweep_chunk(factory, plan, name, chunk):
                    self.skipped += [f"{name}: {describe(point)}" for point in chunk]
                    continue
                self.chunk_s = self.clock.elapsed_s - before_s
                self.write(plan)
            print(f"{name}, context {plan.contexts[0]}: done at {self.clock.elapsed_s:.0f} s", flush=True)

    def sweep_chunk(self, factory: StepFactory, plan: ProfilePlan, name: str, points: Sequence[MeasuredPoint]) -> bool:
        """Whether anything was measured."""
        rule = TAIL_RULE if name == "tail" else RULE
        try:
            result = sweep(factory, points, StoppingRule(**rule, time_budget_s=max(self.clock.left_s, 1.0)))
        except MeasurementError as error:
            print(f"  {name}: {error}", flush=True)
            return False
        self.samples.setdefault(plan.contexts[0], []).extend(result.samples)
        self.failures.setdefault(plan.contexts[0], []).extend(result.failures)
        self.readings.setdefault(plan.contexts[0], []).extend(result.readings)
        self.sentinels.setdefault(plan.contexts[0], []).extend(result.sentinels)
        for failure in result.failures:
            what = f"{failure.model} {failure.mode} {failure.num_reqs} x {failure.num_tokens}"
            print(f"  failed: {what}: {failure.message}", flush=True)
        visited = {shape_of(record) for record in (*result.samples, *result.failures)}
        self.skipped += [f"{name}: {describe(point)}" for point in points if shape_of(point) not in visited]
        self.print_shares(result.samples)
        return True

    def write(self, plan: ProfilePlan) -> None:
        samples = self.samples[plan.contexts[0]]
        whole = SweepResult(
            samples=samples,
            failures=self.failures[plan.contexts[0]],
            readings=self.readings[plan.contexts[0]],
            sentinels=self.sentinels[plan.contexts[0]],
            complete={shape_of(point) for point in plan.points()} <= {shape_of(sample) for sample in samples},
        )
        profile = assemble_profile(self.setting.target, self.setting.draft, plan, whole, created=self.created)
        profile.write(self.out / f"profile-context-{plan.contexts[0]}.json")
        self.write_result()

    def write_result(self) -> dict[str, Any]:
        shares = [share for samples in self.samples.values() for share in self.shares(samples)]
        result = {
            "copy_bandwidth_bytes_per_s": round(self.bandwidth),
            "shares": shares,
            "too_little": [share for share in shares if share["share"] < LEAST_SHARE],
            "skipped": self.skipped,
            "failures": [failure.message for failures in self.failures.values() for failure in failures],
            "seconds": round(self.clock.elapsed_s, 1),
        }
        (self.out / "large_pair.json").write_text(json.dumps(result, indent=2) + "\n")
        return result

    def report(self) -> int:
        """1 where a small step is not bound by memory on CUDA, or points failed, or there is nothing to judge by."""
        result = self.write_result()
        print(f"{len(self.skipped)} points skipped, listed in large_pair.json; {self.clock.elapsed_s:.0f} s")
        if device_of(self.setting.target).type != "cuda":
            return 0
        return 1 if result["too_little"] or result["failures"] or not result["shares"] else 0

    def shares(self, samples: Sequence[Sample]) -> list[dict[str, Any]]:
        """(weight bytes + KV bytes) / step time over the copy bandwidth, of replayed verify steps of few tokens."""
        decoder = self.setting.target.decoder
        weights = decoder.num_params * decoder.lm_head.weight.element_size()
        if not decoder.config.tie_word_embeddings:
            weights -= decoder.model.embed_tokens.weight.nbytes  # of which a step reads a few rows
        shares = []
        for sample in samples:
            if sample.model == "verify" and sample.mode == "graph" and sample.num_tokens <= SHARE_TOKENS:
                kv = (sample.num_reqs * sample.context_len + sample.num_tokens) * kv_bytes_per_token(
                    self.setting.target
                )
                step_ms = float(np.median(sample.repetitions_ms))
                shares.append(
                    {
                        "context_len": sample.context_len,
                        "num_reqs": sample.num_reqs,
                        "num_tokens": sample.num_tokens,
                        "step_ms": round(step_ms, 4),
                        "share": round((weights + kv) / (step_ms / 1e3) / self.bandwidth, 4),
                    }
                )
        return shares

    def print_shares(self, samples: Sequence[Sample]) -> None:
        for share in self.shares(samples):
            print(
                f"  context {share['context_len']}, {share['num_reqs']:4} requests, {share['num_tokens']:4} tokens: "
                f"{share['step_ms']:8.3f} ms, {share['share']:6.1%} of the copy bandwidth"
                f"{'' if share['share'] >= LEAST_SHARE else '  TOO LITTLE'}",
                flush=True,
            )


def stages(plan: ProfilePlan) -> tuple[list[Group], list[Group]]:
    """Every point of the plan once, in groups: the most valuable ones, and the rest."""
    points = plan.points()
    fewest = {size: fewest_reqs(plan, size) for size in plan.capture_sizes}
    # The largest first, as a sweep captures them: smaller graphs fit in its memory.
    verify = [
        p
        for p in reversed(points)
        if p.model == "verify" and p.mode == "graph" and p.shape.num_reqs == fewest[p.shape.num_tokens]
    ]
    verify.sort(key=lambda point: -point.shape.num_tokens)
    passes = [p for p in points if p.model == "verify" and not p.shape.is_mixed]
    tail = [p for p in passes if p.shape.num_tokens > plan.capture_sizes[-1]]
    mixed = [p for p in points if p.shape.is_mixed]
    counts = sorted({*request_grid(plan.max_num_seqs), *(plan.max_num_seqs * i // 16 for i in (2, 3, 6, 12))} - {0})
    drafts = [plan.draft_point("graph", num_reqs, k) for num_reqs in reversed(counts) for k in (K, 3, 1)]
    first = [("verify", verify), ("tail", tail), ("draft", drafts), ("mixed", mixed)]
    seen = {point for _, group in first for point in group}
    rest = [p for p in points if p not in seen]
    return first, [
        ("graph, the rest", [p for p in rest if p.mode == "graph"]),
        ("eager, the rest", [p for p in rest if p.mode == "eager"]),
    ]


def fewest_reqs(plan: ProfilePlan, size: int) -> int:
    """The fewest requests of the grid that bring `size` tokens with all their drafts; the most, where none do."""
    fits = [n for n in request_grid(plan.max_num_seqs) if n <= size <= n * (1 + K)]
    return fits[0] if fits else plan.max_num_seqs


def shape_of(record: MeasuredPoint | Sample | Failure) -> tuple[str, str, int | None, int, int, int]:
    shape = record.shape if isinstance(record, MeasuredPoint) else record
    return record.model, record.mode, record.k, shape.num_reqs, shape.num_tokens, shape.num_prompt_tokens


def describe(point: MeasuredPoint) -> str:
    drafts = "" if point.k is None else f", k = {point.k}"
    prompts = f" ({point.shape.num_prompt_tokens} of prompts)" if point.shape.is_mixed else ""
    return (
        f"{point.model} {point.mode}, {point.shape.num_reqs} requests, {point.shape.num_tokens} tokens{prompts}{drafts}"
    )


def kv_bytes_per_token(model: LoadedModel) -> int:
    config = model.decoder.config
    element = model.decoder.lm_head.weight.element_size()
    return 2 * config.num_hidden_layers * config.kv_heads * config.head_size * element


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of the best of ten large copies."""
    size = 1 << (32 if device.type == "cuda" else 26)
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(10):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start_s = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start_s)
    return 2 * size / min(seconds)


def requests_that_fit(setting: Setting, context_len: int) -> int:
    """How many requests of that context the device holds beside the weights, as a power of two; 0 for none."""
    device = device_of(setting.target)
    if device.type != "cuda":
        return 2
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    # Fewer requests bring more tokens each to the largest step: half the memory is left to activations and to that.
    per_request = context_len * (kv_bytes_per_token(setting.target) + kv_bytes_per_token(setting.draft))
    fitting = int(free * 0.5 // per_request)
    return min(1 << (fitting.bit_length() - 1), setting.max_num_seqs) if fitting else 0


def device_of(model: LoadedModel) -> torch.device:
    return model.decoder.lm_head.weight.device


def large_pair(device: torch.device) -> Setting:
    def load(config: dict[str, Any], role: str) -> LoadedModel:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            return load_model(folder, role, device=device, dtype=torch.bfloat16)  # type: ignore[arg-type]

    return Setting(
        target=load(TARGET, "target"),
        draft=load(DRAFT, "draft"),
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        context_lens=(2048, 8192),
    )


def rehearsal() -> Setting:
    cpu = torch.device("cpu")
    return Setting(
        target=load_model("tiny", "target", device=cpu, dtype=torch.float32),
        draft=load_model("tiny", "draft", device=cpu, dtype=torch.float32),
        max_num_seqs=4,
        max_num_batched_tokens=96,
        context_lens=(64, 128),
    )


if __name__ == "__main__":
    sys.exit(main())
