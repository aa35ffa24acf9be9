"""Drafting that took longer in steps of more tokens, and is priced without regard to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specplan.costs.uncertainty import median_half_widths
from specplan.files.profile import Sample
from specplan.files.trust import WORTH_AN_AXIS

__all__ = ["pooled_drafting"]


def pooled_drafting(samples: Sequence[Sample]) -> Iterator[str]:
    """What there is to say of it: one sentence, of where it matters most.

    Timings of other tools do not tell what the drafter's first pass took, so those of as many requests and drafts count
    as one. Where they differ by more than noise, steps of few tokens are priced too high and others too low.
    """
    drafts = [sample for sample in samples if sample.model == "draft" and sample.feed_len is None]
    replays = [sample for sample in drafts if sample.mode == "graph"]
    alike: dict[tuple[object, ...], list[Sample]] = {}
    for sample in replays or drafts:
        key = sample.num_reqs, sample.k, sample.context_len, sample.lengths, sample.mode
        alike.setdefault(key, []).append(sample)
    differing = [spread for spread in map(_spread, alike.values()) if spread.is_told]
    if differing:
        worst = max(differing, key=lambda spread: spread.ratio)
        yield (
            f"drafting for {worst.few.num_reqs} requests took {worst.few_ms:.4g} ms in steps of "
            f"{worst.few.num_tokens} tokens and {worst.many_ms:.4g} ms in steps of {worst.many.num_tokens}: priced as "
            "one, as the source does not tell what the drafter's first pass took"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """Medians over the fewest tokens and over the most, and the half-widths of their intervals together."""

    few: Sample
    many: Sample
    few_ms: float
    many_ms: float
    noise_ms: float

    @property
    def ratio(self) -> float:
        low, high = sorted((self.few_ms, self.many_ms))
        return high / low

    @property
    def is_told(self) -> bool:
        return self.ratio > 1 + WORTH_AN_AXIS and abs(self.many_ms - self.few_ms) > self.noise_ms


def _spread(samples: Sequence[Sample]) -> _Spread:
    few, many = (choose(samples, key=lambda sample: sample.num_tokens) for choose in (min, max))
    repetitions = [np.array(sample.repetitions_ms) for sample in (few, many)]
    few_ms, many_ms = (float(np.median(values)) for values in repetitions)
    return _Spread(
        few=few, many=many, few_ms=few_ms, many_ms=many_ms, noise_ms=float(median_half_widths(repetitions).sum())
    )
