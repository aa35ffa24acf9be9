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

from specplan.files import Failure, Sample
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
        return ProfilePlan.default(
            max_num_seqs=max_num_seqs or self.max_num_seqs,
            num_speculative_tokens=K,
            max_num_batched_tokens=self.max_num_batched_tokens,
            context_len=context_len,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    clock = Clock(options.seconds)
    setting = rehearsal() if options.rehearse else large_pair(torch.device("cuda"))
    near, far = setting.context_lens
    bandwidth = copy_bandwidth(device_of(setting.target))
    print(f"copy bandwidth {bandwidth / 1e9:,.0f} GB/s, read and written; models ready at {clock.elapsed_s:.0f} s")

    skipped: list[str] = []
    samples, failures = measure(setting, setting.plan(near), stages(setting.plan(near)), clock, skipped, options.out)
    shares = bandwidth_shares(setting, samples, bandwidth)
    report(options.out, setting, shares, skipped, failures, bandwidth, clock)  # in case the far context takes us down
    fitting = requests_that_fit(setting, far)
    if fitting:
        plan = setting.plan(far, max_num_seqs=fitting)
        _, far_failures = measure(setting, plan, [("verify, far", verify_points(plan))], clock, skipped, options.out)
        failures += far_failures
    else:
        skipped.append(f"context {far}: the KV cache does not fit")
    return report(options.out, setting, shares, skipped, failures, bandwidth, clock)


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


def measure(
    setting: Setting,
    plan: ProfilePlan,
    groups: Sequence[tuple[str, list[MeasuredPoint]]],
    clock: Clock,
    skipped: list[str],
    out: Path,
) -> tuple[list[Sample], list[Failure]]:
    """Sweeps group after group while there is time, and writes what there is after each."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    factory = StepFactory(setting.target.decoder, setting.draft.decoder, plan)
    samples: list[Sample] = []
    failures: list[Failure] = []
    for name, points in groups:
        if clock.left_s < 5:
            skipped += [f"{name}: {describe(point)}" for point in points]
            continue
        result = sweep(factory, points, StoppingRule(**RULE, time_budget_s=clock.left_s))
        samples += result.samples
        failures += result.failures
        visited = {shape_of(record) for record in (*result.samples, *result.failures)}
        skipped += [f"{name}: {describe(point)}" for point in points if shape_of(point) not in visited]
        print(f"{name}: {len(result.samples)} of {len(points)} points, at {clock.elapsed_s:.0f} s", flush=True)
        for failure in result.failures:
            print(
                f"  failed: {failure.model} {failure.mode} {failure.num_reqs} x {failure.num_tokens}: {failure.message}"
            )
        is_complete = {shape_of(point) for point in plan.points()} <= {shape_of(sample) for sample in samples}
        whole = SweepResult(samples=samples, failures=failures, complete=is_complete)
        profile = assemble_profile(setting.target, setting.draft, plan, whole, created=created)
        profile.write(out / f"profile-context-{plan.context_len}.json")
    return samples, failures


def stages(plan: ProfilePlan) -> list[tuple[str, list[MeasuredPoint]]]:
    """Every point of the plan once, the most valuable first."""
    points = plan.points()
    fewest = {size: fewest_reqs(plan, size) for size in plan.capture_sizes}
    first = [p for p in points if p.k is None and p.mode == "graph" and p.shape.num_reqs == fewest[p.shape.num_tokens]]
    tail = [p for p in points if p.k is None and p.shape.num_tokens > plan.capture_sizes[-1]]
    counts = sorted({*request_grid(plan.max_num_seqs), *(plan.max_num_seqs * i // 16 for i in (2, 3, 6, 12))} - {0})
    drafts = [plan.draft_point("graph", num_reqs, k) for num_reqs in counts for k in (1, 3, K)]
    ranked = [("verify", first), ("tail", tail), ("draft", drafts)]
    seen = {point for _, group in ranked for point in group}
    rest = [p for p in points if p not in seen]
    ranked.append(("graph, the rest", [p for p in rest if p.mode == "graph"]))
    ranked.append(("eager, the rest", [p for p in rest if p.mode == "eager"]))
    return ranked


def verify_points(plan: ProfilePlan) -> list[MeasuredPoint]:
    return [p for p in plan.points() if p.k is None and p.mode == "graph"]


def fewest_reqs(plan: ProfilePlan, size: int) -> int:
    """The fewest requests of the grid that bring `size` tokens with all their drafts; the most, where none do."""
    fits = [n for n in request_grid(plan.max_num_seqs) if n <= size <= n * (1 + K)]
    return fits[0] if fits else plan.max_num_seqs


def shape_of(record: MeasuredPoint | Sample | Failure) -> tuple[str, int | None, int, int]:
    shape = record.shape if isinstance(record, MeasuredPoint) else record
    return record.mode, record.k, shape.num_reqs, shape.num_tokens


def describe(point: MeasuredPoint) -> str:
    drafts = "" if point.k is None else f", k = {point.k}"
    return f"{point.model} {point.mode}, {point.shape.num_reqs} requests, {point.shape.num_tokens} tokens{drafts}"


def bandwidth_shares(setting: Setting, samples: Sequence[Sample], bandwidth: float) -> list[dict[str, Any]]:
    """(weight bytes + KV bytes) / step time over the copy bandwidth, of replayed verify steps of few tokens."""
    decoder = setting.target.decoder
    weights = decoder.num_params * decoder.lm_head.weight.element_size()
    if not decoder.config.tie_word_embeddings:
        weights -= decoder.model.embed_tokens.weight.nbytes  # of which a step reads a few rows
    shares = []
    for sample in samples:
        if sample.model == "verify" and sample.mode == "graph" and sample.num_tokens <= SHARE_TOKENS:
            kv = (sample.num_reqs * sample.context_len + sample.num_tokens) * kv_bytes_per_token(setting.target)
            step_s = float(np.median(sample.repetitions_ms)) / 1e3
            share = (weights + kv) / step_s / bandwidth
            shares.append({"num_reqs": sample.num_reqs, "num_tokens": sample.num_tokens, "share": round(share, 4)})
            print(
                f"{sample.num_reqs:4} requests, {sample.num_tokens:4} tokens: {step_s * 1e3:8.3f} ms, {share:6.1%} of "
                f"the copy bandwidth{'' if share >= LEAST_SHARE else '  TOO LITTLE'}"
            )
    return shares


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


def report(
    out: Path,
    setting: Setting,
    shares: list[dict[str, Any]],
    skipped: list[str],
    failures: Sequence[Failure],
    bandwidth: float,
    clock: Clock,
) -> int:
    """Writes the results; 1 where a small step is not bound by memory on CUDA, or points failed."""
    too_little = [share for share in shares if share["share"] < LEAST_SHARE]
    result = {
        "copy_bandwidth_bytes_per_s": round(bandwidth),
        "shares": shares,
        "too_little": too_little,
        "skipped": skipped,
        "failures": [failure.message for failure in failures],
        "seconds": round(clock.elapsed_s, 1),
    }
    (out / "large_pair.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"{len(skipped)} points skipped, listed in large_pair.json; {clock.elapsed_s:.0f} s")
    if device_of(setting.target).type != "cuda":
        return 0
    return 1 if too_little or failures or not shares else 0


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
