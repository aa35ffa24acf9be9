"""How far costs can be trusted: held-out errors, and comparisons of what was measured in two ways."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from specplan.files.profile import Milliseconds

__all__ = ["AdditiveFit", "FeedCosts", "HeldOutError", "LayoutCosts", "RegionError", "Stratum"]

Interval = Annotated[float, Meta(ge=0)]
WORTH_AN_AXIS: Final = 0.02  # of a cost
ADDITIVE: Final = 0.02  # an additive fit holds where 95 of 100 points lie within this of it


class RegionError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well held-out points are predicted. `mape`, `p95` and `bias` are fractions of the held-out cost.

    With e = predicted / held out - 1: mape = mean |e|, p95 = the 95th percentile of |e|, bias = mean e.
    """

    method: str
    mape: float
    p95: float
    bias: float
    points: Annotated[int, Meta(ge=1)]


class Stratum(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a new process found: of points that it measured again, or of others, held out, between those of the table.

    Over all contexts and requests where both are null. `num_reqs` is a range, its ends included.
    """

    kind: Literal["re-run", "held-out"]
    region: Literal["captured", "smooth", "mixed", "draft"]
    context_len: Annotated[int, Meta(ge=0)] | None
    num_reqs: tuple[int, int] | None
    error: RegionError

    @property
    def is_whole(self) -> bool:
        return self.context_len is None and self.num_reqs is None


class HeldOutError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Per region; null where there is too little data to hold anything out."""

    captured: RegionError | None
    smooth: RegionError | None
    draft: RegionError | None
    overhead: RegionError | None
    draft_prefill: RegionError | None
    mixed: RegionError | None = None
    ragged: RegionError | None = None  # of the price of even steps, where ragged ones were timed beside them
    strata: list[Stratum] = []  # of a verification; none where there was none

    def known_to(self, region: Literal["captured", "smooth", "mixed", "draft"]) -> float | None:
        """The worst MAPE that is known of a region: of its repetitions or lines, and of what a new process found."""
        verified = [stratum.error.mape for stratum in self.strata if stratum.region == region and stratum.is_whole]
        own: RegionError | None = getattr(self, region)
        return max([*verified, *([] if own is None else [own.mape])], default=None)


class AdditiveFit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a verify pass costs so much for its tokens, and `context_ms` for each token of context that its requests
    hold together.

    `error` is of the measured points against that sum. Where it holds, contexts past the longest measured are priced by
    `context_ms`; where not, the longest measured holds.
    """

    context_ms: Annotated[float, Meta(ge=0)]
    error: RegionError

    @property
    def holds(self) -> bool:
        return self.error.p95 <= ADDITIVE


class FeedCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What drafting costs by what the drafter's first pass takes: of each of `num_reqs` requests its last few tokens,
    or all tokens of the step. Medians, and half-widths of their 95% intervals.
    """

    num_reqs: Annotated[int, Meta(ge=1)]
    k: Annotated[int, Meta(ge=0)]
    narrow_len: Annotated[int, Meta(ge=1)]  # tokens of each request
    narrow_ms: Milliseconds
    narrow_ci_ms: Interval
    wide_len: Annotated[int, Meta(ge=1)]
    wide_ms: Milliseconds
    wide_ci_ms: Interval

    def __post_init__(self) -> None:
        if self.wide_len <= self.narrow_len:
            raise ValueError(f".wide_len: expected more than narrow_len ({self.narrow_len}), got {self.wide_len}")

    @property
    def ratio(self) -> float:
        """How many times as long the wide first pass makes drafting take."""
        return self.wide_ms / self.narrow_ms

    @property
    def is_too_close_to_call(self) -> bool:
        return abs(self.wide_ms - self.narrow_ms) <= self.narrow_ci_ms + self.wide_ci_ms

    @property
    def ms_per_token(self) -> float:
        """Of the first pass, past the narrow one; 0 where the two differ by no more than 2%, or within the noise."""
        if self.is_too_close_to_call or abs(self.ratio - 1) <= WORTH_AN_AXIS:
            return 0.0
        return max(self.wide_ms - self.narrow_ms, 0.0) / self.num_more_tokens

    @property
    def ci_ms_per_token(self) -> float:
        """Half-width of the interval of `ms_per_token`, if both medians erred together."""
        return (self.wide_ci_ms + self.narrow_ci_ms) / self.num_more_tokens

    @property
    def num_more_tokens(self) -> int:
        return self.num_reqs * (self.wide_len - self.narrow_len)


class LayoutCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a verify pass costs in either layout: `num_reqs` requests with `k` drafts each, run at `num_tokens`.

    Medians, and half-widths of their 95% intervals. The two are too close to call where their intervals overlap.
    """

    context_len: Annotated[int, Meta(ge=0)]
    num_reqs: Annotated[int, Meta(ge=1)]
    k: Annotated[int, Meta(ge=0)]
    num_tokens: Annotated[int, Meta(ge=1)]
    multi_query_ms: Milliseconds
    multi_query_ci_ms: Interval
    batch_expansion_ms: Milliseconds
    batch_expansion_ci_ms: Interval

    @property
    def ratio(self) -> float:
        """How many times as long as multi-query batch expansion takes."""
        return self.batch_expansion_ms / self.multi_query_ms

    @property
    def is_too_close_to_call(self) -> bool:
        difference_ms = abs(self.batch_expansion_ms - self.multi_query_ms)
        return difference_ms <= self.multi_query_ci_ms + self.batch_expansion_ci_ms
