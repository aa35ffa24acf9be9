"""What there is to say of imported drafting that its price does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specplan.costs.uncertainty import median_half_widths
from specplan.files.profile import Sample
from specplan.files.trust import WORTH_AN_AXIS

__all__ = ["pooled_drafting", "unpriced_drafting"]


def pooled_drafting(samples: Sequence[Sample]) -> Iterator[str]:
    """What there is to say of it: one sentence, of where it matters most.

    Timings of other tools do not tell what the drafter's first pass took, so those of as many requests and drafts count
    as one. Where they differ by more than noise, steps of few tokens are priced too high and others too low.
    """
    alike: dict[tuple[object, ...], list[Sample]] = {}
    for sample in _priced(samples):
        if sample.feed_len is not None:
            continue
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


def unpriced_drafting(samples: Sequence[Sample]) -> Iterator[str]:
    """Where first passes are known, the shortest of all are priced, and of replays of as many requests and drafts the
    shortest and the longest are compared: timings of others are for nothing.
    """
    by_feed: dict[tuple[int, bool, int | None], dict[int, int]] = {}
    for sample in _priced(samples):
        if sample.feed_len is not None:
            feeds = by_feed.setdefault((sample.num_reqs, sample.mode == "graph", sample.k), {})
            feeds[sample.feed_len] = feeds.get(sample.feed_len, 0) + len(sample.repetitions_ms)
    shortest = min((min(feeds) for feeds in by_feed.values()), default=0)
    unpriced = 0
    for (_, is_replayed, k), feeds in by_feed.items():
        used = {shortest, min(feeds), max(feeds)} if len(feeds) > 1 and is_replayed and k else {shortest}
        unpriced += sum(count for feed, count in feeds.items() if feed not in used)
    if unpriced:
        yield (
            "timings of drafting in no price, as their first pass is neither the shortest of all nor one of two that "
            f"are compared: {unpriced}"
        )


def _priced(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Drafting as tables choose it: replays, where there are any."""
    drafts = [sample for sample in samples if sample.model == "draft"]
    return [sample for sample in drafts if sample.mode == "graph"] or drafts


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
