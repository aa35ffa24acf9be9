"""What it costs a drafter to take a whole step in its first pass, and not each request's last few tokens alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specplan.costs.uncertainty import median_half_widths
from specplan.files.profile import Profile, Sample
from specplan.files.tables import Finding
from specplan.files.trust import FeedCosts

__all__ = ["compare_feeds", "judge_feeds"]


def compare_feeds(profile: Profile) -> list[FeedCosts]:
    """Every number of requests and k whose first pass was timed over two numbers of tokens; of more, the ends."""
    shapes: dict[tuple[int, int], dict[int, list[Sample]]] = {}
    for sample in profile.samples:
        if sample.model == "draft" and sample.mode == "graph" and sample.k and sample.feed_len is not None:
            shapes.setdefault((sample.num_reqs, sample.k), {}).setdefault(sample.feed_len, []).append(sample)
    compared = []
    for (num_reqs, k), by_feed in sorted(shapes.items()):
        narrow, wide = min(by_feed), max(by_feed)
        if narrow < wide:
            repetitions = [
                np.array([ms for sample in by_feed[feed] for ms in sample.repetitions_ms]) for feed in (narrow, wide)
            ]
            half_widths = median_half_widths(repetitions)
            compared.append(
                FeedCosts(
                    num_reqs=num_reqs,
                    k=k,
                    narrow_len=narrow,
                    narrow_ms=float(np.median(repetitions[0])),
                    narrow_ci_ms=float(half_widths[0]),
                    wide_len=wide,
                    wide_ms=float(np.median(repetitions[1])),
                    wide_ci_ms=float(half_widths[1]),
                )
            )
    return compared


def judge_feeds(compared: list[FeedCosts]) -> Iterator[Finding]:
    dearer = [costs for costs in compared if costs.ms_per_token > 0]
    if dearer:
        worst = max(dearer, key=lambda costs: costs.ratio)
        yield Finding(
            code="wide-first-pass",
            severity="note",
            place=f"draft, {worst.num_reqs} requests, k = {worst.k}",
            message=f"a drafter whose first pass takes all {worst.wide_len} tokens of each request's step takes up to "
            f"{worst.ratio - 1:.0%} longer than one that takes the last {worst.narrow_len}",
            hint="drafting is priced by the latter; where your engine runs the former: specplan simulate "
            "--drafter-input "
            "step",
        )
