"""What whoever plans with these costs should know. Judging is done here; nothing is printed and nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from specplan.costs.samples import are_unpadded
from specplan.files.profile import Machinery, Profile, Sample
from specplan.files.tables import Finding
from specplan.shapes import reachable_sizes

__all__ = [
    "Evidence",
    "MeasuredCurve",
    "fewest_repetitions",
    "free_drafter",
    "judge_costs",
    "judge_profile",
    "lowered_limit",
    "unmeasured",
]

_FLAT = 0.05  # a table that rises less than this over its whole range
_FALL = 0.01  # a fall between neighbouring sizes below this is taken for noise
_SPREAD = 0.10  # interquartile range over median
_FEW = 20  # repetitions


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    place: str
    sizes: NDArray[np.int64]  # [P], ascending
    ms: NDArray[np.float64]  # [P]
    ci_ms: NDArray[np.float64] | None  # [P]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One table and the curves it was made from."""

    name: Literal["verify", "draft", "host", "draft-prefill"]
    unit: Literal["tokens", "requests"]
    curves: Sequence[MeasuredCurve]
    cells_ms: NDArray[np.float64]  # [..., max_size + 1]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.unique(np.concatenate([curve.sizes for curve in self.curves]))

    @property
    def max_size(self) -> int:
        return int(self.cells_ms.shape[-1]) - 1


def judge_costs(evidence: Evidence) -> list[Finding]:
    return [
        *_one_point(evidence),
        *_flat(evidence),
        *_non_monotone(evidence),
        *_extrapolated(evidence),
    ]


def judge_profile(profile: Profile) -> list[Finding]:
    return [
        *_incomplete(profile),
        *_failures(profile),
        *_eager_draft(profile),
        *_contexts(profile),
        *_few_repetitions(profile),
        *_spread(profile),
        *_thin_verification(profile),
    ]


def free_drafter() -> Finding:
    return Finding(
        code="free-drafter",
        severity="note",
        place="draft",
        message="drafting is priced at 0 ms",
        hint="right for an n-gram drafter; for a draft model, give its curve",
    )


def unmeasured(name: Literal["host", "draft-prefill"]) -> Finding:
    if name == "host":
        work, hint = "the host's work in a step", "an engine's own; specplan validate measures that of specplan's"
    else:
        work, hint = (
            "the drafter's pass over prompt tokens",
            "measure it, or prompts are free: specplan profile",
        )
    return Finding(
        code=f"{name}-not-measured",
        severity="note",
        place=name,
        message=f"{work} was not measured and is not in these costs",
        hint=hint,
    )


def lowered_limit(asked: int, used: int, *, name: str, unit: str) -> Iterator[Finding]:
    if used != asked:
        effect = f"lowered to {used}, the largest point below it" if used else "ignored: no point is at or below it"
        yield Finding(
            code="capture-limit-lowered",
            severity="note",
            place=name,
            message=f"the capture limit of {asked} {unit} is {effect}",
            hint=f"measure {asked} {unit} if a graph of that size exists",
        )


def _one_point(evidence: Evidence) -> Iterator[Finding]:
    if len(evidence.sizes) == 1 and evidence.max_size > 1:
        yield Finding(
            code="one-point-curve",
            severity="warning",
            place=evidence.name,
            message=f"one {evidence.name} size ({evidence.sizes[0]} {evidence.unit}) prices every step",
            hint="measure at least two sizes",
        )


def _flat(evidence: Evidence) -> Iterator[Finding]:
    if evidence.name != "verify" or len(evidence.sizes) == 1:
        return
    with np.errstate(over="ignore"):  # a cost of next to nothing, as mangled files hold
        rise = float(np.max(evidence.cells_ms[..., -1] / evidence.cells_ms[..., 1])) - 1.0
    if rise < _FLAT:
        yield Finding(
            code="flat-verify",
            severity="warning",
            place="verify",
            message=f"verify costs rise {rise:.1%} from 1 to {evidence.max_size} tokens: verify-all is all it can say",
            hint="measure larger sizes, and check that the sweep timed the step and not a constant",
        )


def _non_monotone(evidence: Evidence) -> Iterator[Finding]:
    neighbours, falls = 0, 0
    worst, where = 0.0, ""
    for curve in evidence.curves:
        fall = -np.diff(curve.ms) / curve.ms[:-1]
        noise = np.full(len(fall), _FALL)
        if curve.ci_ms is not None:
            noise = np.maximum(noise, (curve.ci_ms[:-1] + curve.ci_ms[1:]) / curve.ms[:-1])
        real = np.where(fall > noise, fall, 0.0)
        neighbours += len(fall)
        falls += int(np.count_nonzero(real))
        if len(real) and real.max() > worst:
            worst, at = float(real.max()), int(real.argmax())
            where = f"{curve.place}, {curve.sizes[at]} to {curve.sizes[at + 1]} {evidence.unit}"
    if falls:
        yield Finding(
            code="non-monotone",
            severity="warning",
            place=where,
            message=f"{evidence.name} costs fall at {falls} of {neighbours} neighbouring sizes, at most by {worst:.1%}",
            hint="measure again on a quiet device; pad-up prices a real fall as padding to the larger size",
        )


def _extrapolated(evidence: Evidence) -> Iterator[Finding]:
    last = int(evidence.sizes[-1])
    if evidence.max_size <= last:
        return
    held = bool(np.any(evidence.cells_ms[..., -1] <= evidence.cells_ms[..., last]))
    how = "held at the last cost, as the last slope does not rise" if held else "continued along the last slope"
    yield Finding(
        code="extrapolation-held" if held else "extrapolated",
        severity="warning",
        place=evidence.name,
        message=f"{evidence.name} costs past {last} {evidence.unit} (to {evidence.max_size}) were not measured: {how}",
        hint=f"measure up to {evidence.max_size} {evidence.unit}, or plan for at most {last}",
    )


def _incomplete(profile: Profile) -> Iterator[Finding]:
    captured = {
        sample.executed_num_tokens
        for sample in _passes(profile)
        if sample.model == "verify" and sample.mode == "graph" and sample.executed_num_tokens <= profile.capture_limit
    }
    most_tokens = min(profile.max_num_seqs * (1 + profile.num_speculative_tokens), profile.max_num_batched_tokens)
    reached = reachable_sizes(profile.capture_sizes, most_tokens)
    missing = [] if are_unpadded(captured, profile) else [size for size in reached if size not in captured]
    if not profile.complete or missing:
        what = f"{len(missing)} of {len(reached)} capture sizes were not measured" if missing else ""
        stopped = "" if profile.complete else "the sweep was stopped before its end"
        yield Finding(
            code="incomplete-profile",
            severity="warning",
            place="profile",
            message="; ".join(part for part in (stopped, what) if part),
            hint="measure it anew, with more time: specplan profile --time-budget SECONDS",
        )


def _failures(profile: Profile) -> Iterator[Finding]:
    """Those of what is priced; apart from them, those of the layout that is only compared."""
    priced = [index for index, failure in enumerate(profile.failures) if failure.layout == "multi-query"]
    compared = [index for index, failure in enumerate(profile.failures) if failure.layout != "multi-query"]
    if priced:
        yield Finding(
            code="failed-points",
            severity="warning",
            place=f"$.failures[{priced[0]}]",
            message=f"{len(priced)} shapes could not run; the first, {_failed(profile, priced[0])}",
            hint="their costs are held from neighbours; measure within what the device can run",
        )
    if compared:
        yield Finding(
            code="failed-layout-points",
            severity="note",
            place=f"$.failures[{compared[0]}]",
            message=f"{len(compared)} batch-expansion shapes could not run; the first, {_failed(profile, compared[0])}",
            hint="the layouts are not compared there; tables price multi-query, which is not affected",
        )


def _failed(profile: Profile, index: int) -> str:
    failure = profile.failures[index]
    return (
        f"{failure.model} {failure.mode} of {failure.num_reqs} requests and {failure.num_tokens} tokens: "
        f"{failure.message}"
    )


def _eager_draft(profile: Profile) -> Iterator[Finding]:
    modes = {sample.mode for sample in profile.samples if sample.model == "draft"}
    if modes == {"eager"} and profile.capture_sizes:
        yield Finding(
            code="eager-draft",
            severity="warning",
            place="draft",
            message="drafting was measured eagerly only, which inflates it where serving replays graphs",
            hint="measure the draft in graph mode: specplan profile",
        )


def _contexts(profile: Profile) -> Iterator[Finding]:
    verify = {
        sample.context_len for sample in _passes(profile) if sample.model == "verify" and not sample.shape.is_mixed
    }
    draft = {sample.context_len for sample in profile.samples if sample.model == "draft"}
    if len(verify) == 1:
        yield Finding(
            code="one-context",
            severity="note",
            place="verify",
            message=f"verify costs were measured at one context ({min(verify)} tokens) and are used for every one",
            hint="attention grows with context, so measure at the one you serve",
        )
    if len(draft) > 1:
        yield Finding(
            code="draft-contexts-pooled",
            severity="note",
            place="draft",
            message=f"draft costs of {len(draft)} contexts ({min(draft)} to {max(draft)} tokens) count as one",
            hint="profile the draft at the context you serve",
        )


def _few_repetitions(profile: Profile) -> Iterator[Finding]:
    counts = [len(sample.repetitions_ms) for sample in _passes(profile)]
    few = [count for count in counts if count < _FEW]
    if few:
        yield Finding(
            code="few-repetitions",
            severity="warning",
            place="profile",
            message=f"{len(few)} of {len(counts)} samples have fewer than {_FEW} repetitions, at least {min(few)}",
            hint="their medians are less sure; give the sweep more time: specplan profile --time-budget SECONDS",
        )


def fewest_repetitions(findings: Iterable[Finding]) -> int | None:
    """Of the samples that tables with these findings were made from: what `few-repetitions` says. None where it says
    nothing: no sample of a pass has few, or nobody counted them."""
    for finding in findings:
        if (finding.code, finding.place) == ("few-repetitions", "profile"):
            told = re.search(r", at least ([0-9]{1,9})$", finding.message)
            return None if told is None else int(told[1])
    return None


def _thin_verification(profile: Profile) -> Iterator[Finding]:
    counts = [len(sample.repetitions_ms) for sample in profile.verification]
    few = [count for count in counts if count < _FEW]
    if len(few) * 2 > len(counts):
        yield Finding(
            code="few-repetitions",
            severity="warning",
            place="verification",
            message=f"a new process had time for {min(few)} repetitions at the least, and for fewer than {_FEW} at "
            f"{len(few)} of {len(counts)} points: the error that it found is its own noise as well",
            hint="give it more time: specplan profile --verify-error --time-budget SECONDS",
        )


def _spread(profile: Profile) -> Iterator[Finding]:
    samples, spreads = _passes(profile), []
    for sample in samples:
        low, middle, high = np.percentile(sample.repetitions_ms, [25, 50, 75])
        spreads.append(float((high - low) / middle))
    wide = [index for index, spread in enumerate(spreads) if spread > _SPREAD]
    if wide:
        worst = max(wide, key=lambda index: spreads[index])
        yield Finding(
            code="wide-spread",
            severity="warning",
            place=_shape_of(samples[worst]),
            message=f"{len(wide)} of {len(spreads)} samples spread over {_SPREAD:.0%} (interquartile), "
            f"the one named by {spreads[worst]:.0%}",
            hint="specplan doctor says what here may spoil a measurement; measure again without it",
        )


def _passes(profile: Profile) -> list[Sample]:
    """Samples of one pass run over and over, of those that price it.

    The host's are of steps as they came, and count once pooled. A step's machinery takes microseconds, and its spread
    is little of a step's. A head prices nothing, nor does batch expansion, and where that is compared its intervals say
    how sure it is.
    """
    apart = ("host", "head", *get_args(Machinery))
    return [sample for sample in profile.samples if sample.model not in apart and sample.layout == "multi-query"]


def _shape_of(sample: Sample) -> str:
    k = "" if sample.k is None else f", k = {sample.k}"
    prompts = f", of which {sample.num_prompt_tokens} of prompts" if sample.shape.is_mixed else ""
    return f"{sample.model} {sample.mode}, {sample.num_reqs} requests, {sample.num_tokens} tokens{prompts}{k}"
