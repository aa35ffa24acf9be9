"""The target's pass without prompts: its costs by context, requests and tokens, and how far they can be trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specplan.costs.build import check_at_least
from specplan.costs.error import LEAVE_ONE_OUT, leave_one_out, split_half, summarise
from specplan.costs.findings import MeasuredCurve
from specplan.costs.pricing import Rows
from specplan.costs.rows import MEASURE_ANEW, Pricing, curves_of
from specplan.costs.samples import Points, are_unpadded, verify_points
from specplan.errors import CoverageError
from specplan.files.profile import Profile
from specplan.files.tables import Monotone, RegionError, Semantics

__all__ = ["VerifyTable", "price_verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTable:
    """`rows` as they are read, `padded` as an engine runs: findings are of the latter, however tables are read."""

    points: Points
    curves: list[MeasuredCurve]
    contexts: NDArray[np.int64]  # [C]
    num_reqs: NDArray[np.int64]  # [R]
    capture_sizes: list[int]
    rows: Rows  # [C, R, max_num_tokens + 1]
    padded: Rows  # [C, R, max_num_tokens + 1]
    captured_error: RegionError | None
    smooth_error: RegionError | None

    @property
    def max_num_reqs(self) -> int:
        return int(self.num_reqs[-1])


def price_verify(
    profile: Profile,
    *,
    monotone: Monotone,
    semantics: Semantics,
    max_num_reqs: int | None,
    step_tokens: int,
    ends_at_reach: bool,
) -> VerifyTable:
    """Up to `step_tokens`; with `ends_at_reach` up to what requests bring without prompts, which have prices apart."""
    points = verify_points(profile)
    replayed = np.unique(points.size[points.size <= profile.capture_limit]).tolist()
    _require_points(profile, points, replayed)
    is_unpadded = are_unpadded(replayed, profile)
    captured = list(profile.capture_sizes) if is_unpadded else replayed
    limit = max(captured, default=0)
    max_num_reqs = _most_requests(profile, points, max_num_reqs)
    reach = max_num_reqs * (1 + profile.num_speculative_tokens)
    max_size = min(step_tokens, reach) if ends_at_reach else step_tokens
    num_reqs = np.union1d(points.row[points.row < max_num_reqs], [max_num_reqs])
    ms, ci_ms = points.median_ms, points.half_width_ms

    def price(pricing: Pricing) -> Rows:
        return pricing.price(points, ms, ci_ms, rows=num_reqs, max_size=max_size)

    resampled_to = tuple(captured) if is_unpadded else ()
    as_run = Pricing(name="verify", capture_limit=limit, monotone=monotone, resampled_to=resampled_to)
    as_timed = replace(as_run, semantics="linear" if is_unpadded else "padded", resampled_to=())
    padded = price(as_run)
    curves = list(curves_of(points, ms, ci_ms, "{row} requests, context {page}"))
    smooth = [leave_one_out(curve.sizes, curve.ms, capture_limit=limit) for curve in curves]
    return VerifyTable(
        points=points,
        curves=curves,
        contexts=np.unique(points.page),
        num_reqs=num_reqs,
        capture_sizes=captured,
        rows=padded if semantics == "padded" else price(replace(as_run, semantics=semantics, resampled_to=())),
        padded=padded,
        captured_error=split_half(points, as_timed.predictor(points), points.size <= limit),
        smooth_error=summarise(np.concatenate(smooth), LEAVE_ONE_OUT),
    )


def _most_requests(profile: Profile, points: Points, asked: int | None) -> int:
    largest = int(points.row.max())
    most = check_at_least(1, "max_num_reqs", min(profile.max_num_seqs, largest) if asked is None else asked)
    if most > largest:
        raise CoverageError(
            f"tables for {most} requests: the profile measured verify passes of at most {largest}",
            f"ask for at most {largest}, or measure more: specplan profile --max-num-seqs {most}",
        )
    return most


def _require_points(profile: Profile, points: Points, captured: list[int]) -> None:
    if profile.capture_sizes and not captured:
        raise CoverageError(
            f"the profile names {len(profile.capture_sizes)} capture sizes and has no graph samples of the verify pass",
            MEASURE_ANEW,
        )
    if not len(points.size):
        raise CoverageError(
            "the profile has no samples of the verify pass",
            MEASURE_ANEW,
        )
