"""What the choice of layout costs: multi-query against batch expansion, where a profile has both."""

from __future__ import annotations

from typing import TypeAlias

from specplan.costs.samples import verify_points
from specplan.files.profile import Profile
from specplan.files.tables import LayoutCosts
from specplan.shapes import Layout, padded_size

__all__ = ["compare_layouts"]

# A median and the half-width of its interval, by context, requests and tokens run.
_Costs: TypeAlias = dict[tuple[int, int, int], tuple[float, float]]


def compare_layouts(profile: Profile) -> list[LayoutCosts]:
    """Every context, number of requests and k, in this order, whose step was measured in both layouts.

    A step of n requests with k drafts each runs n (1 + k) tokens padded to a captured size, so several k may share one
    measurement. Both layouts ran as many tokens, in the mode that a step of this size runs in.
    """
    multi_query, batch_expansion = _costs(profile, "multi-query"), _costs(profile, "batch-expansion")
    compared = []
    for context_len, num_reqs in sorted({shape[:2] for shape in batch_expansion}):
        for k in range(profile.num_speculative_tokens + 1):
            num_tokens = padded_size(num_reqs * (1 + k), profile.capture_sizes)
            shape = (context_len, num_reqs, num_tokens)
            if shape in multi_query and shape in batch_expansion:
                compared.append(
                    LayoutCosts(
                        context_len=context_len,
                        num_reqs=num_reqs,
                        k=k,
                        num_tokens=num_tokens,
                        multi_query_ms=multi_query[shape][0],
                        multi_query_ci_ms=multi_query[shape][1],
                        batch_expansion_ms=batch_expansion[shape][0],
                        batch_expansion_ci_ms=batch_expansion[shape][1],
                    )
                )
    return compared


def _costs(profile: Profile, layout: Layout) -> _Costs:
    points = verify_points(profile, layout)
    if not len(points.size):
        return {}
    shapes = zip(points.page.tolist(), points.row.tolist(), points.size.tolist(), strict=True)
    costs = zip(points.median_ms.tolist(), points.half_width_ms.tolist(), strict=True)
    return dict(zip(shapes, costs, strict=True))
