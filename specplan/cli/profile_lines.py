"""What `specplan profile` says: of the points that it would measure, and of what it measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from specplan.files import Profile
    from specplan.measure import ProfilePlan, StoppingRule
    from specplan.measure.sweep import SweepResult

__all__ = ["describe", "describe_cut", "dry_run_lines", "dry_run_summary", "summary"]


def dry_run_lines(plan: ProfilePlan, rule: StoppingRule) -> Iterator[str]:
    """Every point, then how many there are and what they take."""
    points = plan.points()
    for point in points:
        shape = point.shape
        prompts = f", {shape.num_prompt_tokens} of them of {shape.num_prefilling} prompts" if shape.is_mixed else ""
        drafts = "" if point.k is None else f", k = {point.k}"
        where = f"{point.model} {point.mode}, {shape.layout}, {shape.lengths}"
        size = f"{shape.num_reqs} requests, {shape.num_tokens} tokens{prompts}{drafts}"
        yield f"{where}: {size}, context {shape.context_len}"
    least_s, most_s = duration_s(len(points), rule)
    yield (
        f"{len(points)} points: {least_s:.0f} to {most_s:.0f} s of steps, and more where one takes over "
        f"{1e3 * rule.max_busy_s / rule.min_repetitions:.0f} ms; besides, making them ready and warming them up"
        + ("" if rule.time_budget_s is None else f"; ended after {rule.time_budget_s:.0f} s")
    )


def dry_run_summary(plan: ProfilePlan, rule: StoppingRule) -> dict[str, object]:
    from specplan.measure.series import fields_of

    points = plan.points()
    least_s, most_s = duration_s(len(points), rule)
    return {
        "points": [fields_of(point) for point in points],
        "least_s": least_s,
        "most_s": most_s,
    }


def duration_s(num_points: int, rule: StoppingRule) -> tuple[float, float]:
    """By the stopping rule: every point needs some time on the device, and is left after more."""
    return num_points * rule.min_busy_s, num_points * rule.max_busy_s


def summary(measured: Profile, output: Path) -> dict[str, object]:
    return {
        "profile": str(output),
        "device": measured.environment.device,
        "samples": len(measured.samples),
        "complete": measured.complete,
        "verified": len(measured.verification),
        "digest": measured.digest(),
    }


def describe(measured: Profile, num_points: int, output: Path) -> list[str]:
    """What was measured, where, and what the graph column is on this device."""
    environment = measured.environment
    graph = "CUDA graph replays" if environment.graph_kind == "cuda-graph" else "static-buffer steps, not CUDA graphs"
    repetitions = sorted(len(sample.repetitions_ms) for sample in measured.samples)
    models = " and ".join(
        f"{model.name} {role} ({model.num_params:,} parameters, {model.weights} weights)"
        for role, model in (("target", measured.target), ("draft", measured.draft))
        if model is not None
    )
    settled = sum(sample.stop_reason == "converged" for sample in measured.samples)
    shape = (
        f"K = {measured.num_speculative_tokens}, up to {measured.max_num_seqs} requests, "
        f"capture limit {measured.capture_limit} tokens"
    )
    lines = [
        f"{models} on {environment.device}, {environment.dtype}",
        f"{len(measured.samples)} of {num_points} points measured, {repetitions[0]} to {repetitions[-1]} repetitions "
        f"each; {settled} settled (median known to 0.5%), the others stopped before that",
        f"{shape}; `graph` points, priced up to the capture limit, are {graph}",
    ]
    if measured.verification:
        lines.append(f"{len(measured.verification)} points verified by another process")
    return [*lines, f"wrote {output}"]


def describe_cut(verified: SweepResult, plan: ProfilePlan, seed: int, time_budget: float | None) -> Iterator[str]:
    """What of a verification is missing, and why."""
    from specplan.measure.verification import verification_points

    num_points = len(verification_points(plan, seed=seed))
    num_samples, num_failures = len(verified.samples), len(verified.failures)
    if num_samples + num_failures < num_points:
        told = f"{num_samples} of {num_points} points were" if num_samples else f"none of {num_points} points was"
        more = "" if time_budget is None else ", and a larger --time-budget, of which this is a third,"
        yield (
            f"out of time: the profile is written, and {told} verified; the same command with --resume{more} verifies "
            "anew"
        )
    if num_failures:
        yield f"{num_failures} of {num_points} points could not be verified: {verified.failures[0].message}"
