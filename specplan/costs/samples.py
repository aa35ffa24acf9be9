"""A profile's samples as points."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from operator import itemgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from specplan.costs.uncertainty import median_half_widths
from specplan.errors import ConfigError
from specplan.files.profile import Failure, Machinery, Profile, Sample
from specplan.shapes import Layout, Lengths

__all__ = [
    "Points",
    "are_unpadded",
    "draft_points",
    "draft_prefill_points",
    "host_points",
    "machinery_points",
    "of_lengths",
    "require_positive",
    "verify_points",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Distinct measured points in ascending order. `size` is the axis that pads, and counts what ran; the others what
    was asked for.
    """

    page: NDArray[np.int64]  # [P]: the context of a verify pass; 0 for all others
    row: NDArray[np.int64]  # [P]: requests of a verify pass, k of a draft; 0 for the others
    size: NDArray[np.int64]  # [P]: tokens of a verify pass or of the drafter's prefill, requests of a draft or the host
    repetitions_ms: tuple[NDArray[np.float64], ...]  # [P] of [repetitions]

    @property
    def median_ms(self) -> NDArray[np.float64]:  # [P]
        return np.array([np.median(values) for values in self.repetitions_ms])

    @property
    def half_width_ms(self) -> NDArray[np.float64]:  # [P]
        """Of each median's 95% interval. One repetition says nothing of that: it is taken to be as unsure, for its
        cost, as the least sure of the others; 0 where no point has more."""
        half_width_ms, median_ms = median_half_widths(self.repetitions_ms), self.median_ms
        alone = np.array([len(values) == 1 for values in self.repetitions_ms], dtype=bool)
        worst = float((half_width_ms / median_ms)[~alone].max(initial=0.0))
        half: NDArray[np.float64] = np.where(alone, worst * median_ms, half_width_ms)
        return half

    @property
    def is_repeated(self) -> bool:
        """Whether any point has more than one repetition."""
        return any(len(values) > 1 for values in self.repetitions_ms)


def of_lengths(profile: Profile, lengths: Lengths) -> Profile:
    """The profile without what was timed on steps of other lengths, which is none of their price.

    A drafter's queries are alike, and prompts are whole: of a budget's raggedness they know nothing. Mixed steps are
    ragged between no drafts and all of them, where a step of ragged queries is one of even ones.
    """
    contexts = "even" if lengths == "even" else "spread"

    def is_priced(timed: Sample | Failure) -> bool:
        if timed.model == "draft":
            return timed.lengths == contexts
        if timed.model != "verify":
            return timed.lengths == "even"
        return timed.lengths == lengths or (timed.num_prompt_tokens > 0 and timed.lengths == contexts)

    return msgspec.structs.replace(
        profile,
        samples=[sample for sample in profile.samples if is_priced(sample)],
        failures=[failure for failure in profile.failures if is_priced(failure)],
    )


def verify_points(profile: Profile, layout: Layout = "multi-query") -> Points:
    """Graph samples at or below the capture limit, eager ones above it: the mode a step of that size would run in.

    Where nothing above it was timed eagerly, replays stand in, as of a bench that captures whatever it times.
    """
    limit = profile.capture_limit
    passes = [
        (index, sample)
        for index, sample in enumerate(profile.samples)
        if sample.model == "verify" and not sample.shape.is_mixed and sample.layout == layout
    ]
    above = {sample.mode for _, sample in passes if sample.executed_num_tokens > limit}
    mode_above = "eager" if "eager" in above else "graph"
    chosen = [
        (sample.context_len, sample.num_reqs, sample.executed_num_tokens, index)
        for index, sample in passes
        if sample.mode == ("graph" if sample.executed_num_tokens <= limit else mode_above)
    ]
    return _pool(profile.samples, chosen)


def are_unpadded(replayed: Collection[int], profile: Profile) -> bool:
    """Whether replays of these sizes are to be read at the engine's, for they were timed as they are.

    A sweep of specplan's own replays what the engine would, and where sizes are missing it was cut short; a bench of
    others may have left out any.
    """
    others = set(profile.capture_sizes).symmetric_difference(replayed)
    return bool(others.intersection(replayed) if profile.is_measured else others)


def draft_points(profile: Profile) -> Points:
    """Graph samples where there are any: launching kernels one by one inflates the drafter's interval."""
    drafts = [(index, sample) for index, sample in enumerate(profile.samples) if sample.model == "draft"]
    graph = [(index, sample) for index, sample in drafts if sample.mode == "graph"]
    # Of first passes of several lengths the shortest is priced; what a wider one adds, feeds.py says.
    known = [sample.feed_len for _, sample in graph or drafts if sample.feed_len is not None]
    chosen = [
        (0, sample.k, sample.executed_num_reqs, index)
        for index, sample in graph or drafts
        if sample.k is not None and sample.feed_len in (None, min(known, default=None))
    ]
    return _pool(profile.samples, chosen)


def host_points(profile: Profile) -> Points:
    """By requests alone: steps of all k, tokens and contexts count as one."""
    chosen = [(0, 0, sample.num_reqs, index) for index, sample in enumerate(profile.samples) if sample.model == "host"]
    return _pool(profile.samples, chosen, is_mixed=True)


def machinery_points(profile: Profile, term: Machinery) -> Points:
    """By requests."""
    chosen = [(0, 0, sample.num_reqs, index) for index, sample in enumerate(profile.samples) if sample.model == term]
    return _pool(profile.samples, chosen)


def draft_prefill_points(profile: Profile) -> Points:
    """By tokens alone: passes of all requests and contexts count as one."""
    chosen = [
        (0, 0, sample.num_tokens, index)
        for index, sample in enumerate(profile.samples)
        if sample.model == "draft-prefill"
    ]
    return _pool(profile.samples, chosen, is_mixed=True)


def _pool(samples: list[Sample], chosen: Iterable[tuple[int, int, int, int]], *, is_mixed: bool = False) -> Points:
    """Samples of the same point count as one: a size that was revisited has all its repetitions.

    Samples of one point follow each other in time, and so do their repetitions here. Where shapes are mixed in a point
    they ran by turns: their repetitions alternate, so that either half of a point holds some of every shape.
    """
    pools: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for page, row, size, index in chosen:
        require_positive(index, samples[index])
        repetitions = samples[index].repetitions_ms
        turns = [(at + 0.5) / len(repetitions) if is_mixed else 0.0 for at in range(len(repetitions))]
        pools.setdefault((page, row, size), []).extend(zip(turns, repetitions, strict=True))
    keys = sorted(pools)
    page_row_size = np.array(keys, dtype=np.int64).reshape(-1, 3)
    return Points(
        page=page_row_size[:, 0],
        row=page_row_size[:, 1],
        size=page_row_size[:, 2],
        repetitions_ms=tuple(np.array([ms for _, ms in sorted(pools[key], key=itemgetter(0))]) for key in keys),
    )


def require_positive(index: int, sample: Sample) -> None:
    """Refuses a sample made in memory whose times are none; a file that holds them is refused when it is read."""
    for at, ms in enumerate(sample.repetitions_ms):
        if not (np.isfinite(ms) and ms > 0):
            raise ConfigError(
                f"profile: $.samples[{index}].repetitions_ms[{at}]: "
                f"expected a positive finite number of milliseconds, got {ms}",
                "measure this shape again with `specplan profile`",
            )
