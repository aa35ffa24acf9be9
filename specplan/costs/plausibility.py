"""Whether samples can be what they say they are: steps of that size, in milliseconds, without their warm-up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specplan.costs.findings import MeasuredCurve
from specplan.files.profile import Profile, Sample
from specplan.files.tables import Finding
from specplan.shapes import padded_size

__all__ = ["judge_plausibility", "outliers"]

_OUTLIER = 1.25  # times the dearer neighbour, or under the cheaper one by that
_MANY_CONTEXTS, _MORE_THAN_SIZES = 4, 2
# Of the smallest verify pass: no one serves a model that takes longer, and a dozen kernel launches take as long.
_SLOWEST_MS, _FASTEST_MS = 500.0, 0.1
_WARM_UP = 1.5  # times the median of the rest, and more than any of them
_FEWEST = 5  # repetitions, or nobody can tell the first from the rest
_MANY_WARM = 0.2  # of the samples; a first repetition is the slowest now and then


def judge_plausibility(profile: Profile) -> list[Finding]:
    return [
        *_not_executed(profile),
        *_replayed_above_limit(profile),
        *_swapped(profile),
        *_unit(profile),
        *_warm_up(profile),
    ]


def outliers(name: str, curves: Sequence[MeasuredCurve]) -> Iterator[Finding]:
    """Sizes that cost far more than both neighbours, or far less: no staircase does that."""
    found = []
    for curve in curves:
        if len(curve.ms) > 2:
            before, middle, after = curve.ms[:-2], curve.ms[1:-1], curve.ms[2:]
            times = np.maximum(middle / np.maximum(before, after), np.minimum(before, after) / middle)
            found += [(float(times[i]), curve, i + 1) for i in np.flatnonzero(times > _OUTLIER)]
    if found:
        times_off, curve, at = max(found, key=lambda each: each[0])
        what = "more" if curve.ms[at] > curve.ms[at - 1] else "less"
        yield Finding(
            code="outlier",
            severity="warning",
            place=f"{name}, {curve.place}, size {curve.sizes[at]}",
            message=f"{len(found)} {name} sizes cost far more or less than both neighbours; this one "
            f"{curve.ms[at]:.3g} ms, "
            f"{times_off:.1f} times {what} than the nearer of {curve.ms[at - 1]:.3g} and {curve.ms[at + 1]:.3g} ms",
            hint="measure it again: specplan profile; until then pad-up and none, other than running-max, do not carry "
            "a dear one to all larger sizes (--monotone)",
        )


def _not_executed(profile: Profile) -> Iterator[Finding]:
    """A budget that was forced and not kept times the full width, and every budget looks alike."""

    def expected(sample: Sample) -> int:
        return padded_size(sample.num_tokens, profile.capture_sizes) if sample.mode == "graph" else sample.num_tokens

    other = [
        index
        for index, sample in enumerate(profile.samples)
        if sample.model == "verify" and sample.executed_num_tokens not in (sample.num_tokens, expected(sample))
    ]
    if other:
        first = profile.samples[other[0]]
        yield Finding(
            code="size-not-executed",
            severity="warning",
            place=f"$.samples[{other[0]}].executed_num_tokens",
            message=f"{len(other)} verify samples ran another size than they were to; the first was to run "
            f"{first.num_tokens} tokens at {expected(first)}, and {first.executed_num_tokens} ran",
            hint="they are priced as what ran; see that the engine keeps to the size it is told, and time them again",
        )


def _replayed_above_limit(profile: Profile) -> Iterator[Finding]:
    """A bench may capture whatever it times; an engine runs such a step eagerly, for more than a replay of it costs."""
    above = [
        sample
        for sample in profile.samples
        if sample.model == "verify"
        and not sample.shape.is_mixed
        and sample.layout == "multi-query"
        and sample.executed_num_tokens > profile.capture_limit
    ]
    if above and all(sample.mode == "graph" for sample in above):
        sizes = [sample.executed_num_tokens for sample in above]
        yield Finding(
            code="replayed-above-limit",
            severity="warning",
            place="verify",
            message=f"{len(above)} verify steps of {min(sizes)} to {max(sizes)} tokens, past the capture limit "
            f"({profile.capture_limit}), were timed as replays: an engine runs them eagerly, for more than they are "
            "priced at, and what a step past its largest graph costs more is unknown",
            hint="add eager timings past the limit, or plan for steps within it",
        )


def _swapped(profile: Profile) -> Iterator[Finding]:
    """Sweeps have many sizes at few contexts. The other way round two columns may have been taken for each other."""
    passes = [sample for sample in profile.samples if sample.model == "verify" and not sample.shape.is_mixed]
    contexts, sizes = ({getattr(sample, name) for sample in passes} for name in ("context_len", "num_tokens"))
    if len(contexts) >= _MANY_CONTEXTS and len(contexts) > _MORE_THAN_SIZES * len(sizes):
        yield Finding(
            code="swapped-columns",
            severity="warning",
            place="verify",
            message=f"{len(passes)} verify samples are of {len(contexts)} contexts, from {min(contexts)} to "
            f"{max(contexts)}, and of {len(sizes)} numbers of tokens, from {min(sizes)} to {max(sizes)}: as if "
            "num_tokens and context_len were swapped",
            hint="import it again with the columns named: specplan import costs --column num_tokens=NAME",
        )


def _unit(profile: Profile) -> Iterator[Finding]:
    medians_ms = [float(np.median(sample.repetitions_ms)) for sample in profile.samples if sample.model == "verify"]
    if not medians_ms:
        return
    smallest, largest = min(medians_ms), max(medians_ms)
    guess = "microseconds" if smallest > _SLOWEST_MS else "seconds" if smallest < _FASTEST_MS else None
    if guess is not None:
        yield Finding(
            code="implausible-unit",
            severity="warning",
            place="verify",
            message=f"verify passes take {smallest:.3g} to {largest:.3g} ms: these look like {guess} read as "
            "milliseconds",
            hint="import it again with its unit: specplan import costs --unit "
            f"{'us' if guess == 'microseconds' else 's'}",
        )


def _warm_up(profile: Profile) -> Iterator[Finding]:
    def is_warm_up(sample: Sample) -> bool:
        first, *rest = sample.repetitions_ms
        return first > _WARM_UP * float(np.median(rest)) and first > max(rest)

    known = [sample for sample in profile.samples if len(sample.repetitions_ms) >= _FEWEST and sample.model != "host"]
    warm = [sample for sample in known if is_warm_up(sample)]
    if len(warm) > _MANY_WARM * len(known):
        worst = max(warm, key=lambda sample: sample.repetitions_ms[0] / float(np.median(sample.repetitions_ms[1:])))
        times = worst.repetitions_ms[0] / float(np.median(worst.repetitions_ms[1:]))
        yield Finding(
            code="warm-up-in-samples",
            severity="warning",
            place=f"{worst.model} {worst.mode}, {worst.num_reqs} requests, {worst.num_tokens} tokens",
            message=f"the first repetition is the slowest by far in {len(warm)} of {len(known)} samples, here "
            f"{times:.1f} "
            "times the median of the others: their warm-up is among them",
            hint="leave the first repetitions out where they are measured; medians of few move with them",
        )
