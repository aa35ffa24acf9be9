"""Cost tables: what a step of any size costs, where each cell comes from and how sure it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from specplan.errors import CoverageError
from specplan.files._arrays import (
    LEGEND,
    LETTERS,
    Source,
    check_axis,
    check_length,
    check_table,
    decode_array,
    encode_array,
)
from specplan.files._json import encode, read_json, write_json
from specplan.files.axis import corners, place_on
from specplan.files.machinery import MachineryCosts
from specplan.files.mixed_costs import MixedCosts
from specplan.files.profile import Drafts, Environment, ModelInfo
from specplan.files.trust import AdditiveFit, FeedCosts, HeldOutError, LayoutCosts, RegionError
from specplan.shapes import Layout

__all__ = [
    "TABLES_SCHEMA",
    "AdditiveFit",
    "CostTables",
    "FeedCosts",
    "Finding",
    "HeldOutError",
    "LayoutCosts",
    "MachineryCosts",
    "Monotone",
    "RegionError",
    "Semantics",
    "Source",
]

# History of the schema:
#   1  first version
TABLES_SCHEMA: Final = "specplan.tables/1"

Monotone = Literal["running-max", "pad-up", "none"]
# What a verify pass of a size that was not measured is taken to cost.
Semantics = Literal["padded", "linear", "exact", "floor"]


class Finding(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something about the costs that whoever plans with them should know, and what to do about it."""

    code: str
    severity: Literal["note", "warning"]
    place: str
    message: str
    hint: str


class CostTables(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    eq=False,  # arrays have no single truth value
    rename={"verify_table_ms": "verify_ms", "draft_table_ms": "draft_ms"},
):
    """Costs of a verify pass by (context, num_reqs, num_tokens) and of drafting by (k, num_reqs), in milliseconds.

    `mixed` prices the verify pass of a step that holds prompt tokens. `overhead_ms` is the host's work in a step, by
    num_reqs, and `machinery` the parts of it that can be timed alone, for where it was not measured as a whole;
    `draft_prefill_ms` the drafter's pass over a step's prompt tokens, by their number, of as many as a step may hold.
    Their `_source` is None where they were not measured: the cost is as given, or 0.

    `num_reqs` and `contexts` are the measured requests and contexts of the verify axes; tables made from a plain curve
    have one of each, and hold for any. `draft_ks` is None where one draft row holds for every k. A `_ci_ms` is the
    half-width of the 95% interval, None without raw repetitions. `semantics` is of the verify pass alone, see
    pricing.py: "exact" tables have no cost where nothing was measured, and can plan and not charge. `capture_sizes` are
    those that were measured. `draft_capture_limit` is in requests; None: every measured draft size is a captured one.
    All costs are of `layout`; `layout_costs` compares it with batch expansion, and is empty where only one was
    measured.
    """

    schema: Literal["specplan.tables/1"] = TABLES_SCHEMA
    specplan_version: str
    source: str
    environment: Environment | None
    target: ModelInfo | None = None
    draft: ModelInfo | None = None
    layout: Layout = "multi-query"  # of the verify passes that are priced
    profile_digest: str | None
    num_speculative_tokens: Drafts | None
    capture_sizes: list[int]
    capture_limit: int
    draft_capture_limit: Annotated[int, Meta(ge=0)] | None
    monotone: Monotone
    semantics: Semantics = "padded"
    error: HeldOutError
    findings: list[Finding]
    legend: dict[str, str] = msgspec.field(default_factory=lambda: dict(LEGEND))
    contexts: list[int]  # [C]
    num_reqs: list[int]  # [R]
    verify_table_ms: NDArray[np.float64]  # [C, R, max_num_tokens + 1]
    verify_source: NDArray[np.uint8]  # [C, R, max_num_tokens + 1] of Source
    verify_ci_ms: NDArray[np.float64] | None  # [C, R, max_num_tokens + 1]
    draft_ks: list[int] | None  # [D]
    draft_table_ms: NDArray[np.float64]  # [D, max_num_reqs + 1]
    draft_source: NDArray[np.uint8]  # [D, max_num_reqs + 1] of Source
    draft_ci_ms: NDArray[np.float64] | None  # [D, max_num_reqs + 1]
    overhead_ms: NDArray[np.float64]  # [max_num_reqs + 1]
    overhead_source: NDArray[np.uint8] | None  # [max_num_reqs + 1] of Source
    overhead_ci_ms: NDArray[np.float64] | None  # [max_num_reqs + 1]
    draft_prefill_ms: NDArray[np.float64]  # [max_num_tokens + 1]; 0 at 0 tokens
    draft_prefill_source: NDArray[np.uint8] | None  # [max_num_tokens + 1] of Source
    draft_prefill_ci_ms: NDArray[np.float64] | None  # [max_num_tokens + 1]
    mixed: MixedCosts | None = None  # None: not measured, and a mixed step costs what a verify pass of its size does
    machinery: MachineryCosts | None = None  # None: not timed apart
    additive: AdditiveFit | None = None  # None: too little was measured to tell
    layout_costs: list[LayoutCosts] = []
    feed_costs: list[FeedCosts] = []

    def __post_init__(self) -> None:
        check_axis(".contexts", self.contexts, least=0)
        check_axis(".num_reqs", self.num_reqs, least=1)
        if self.draft_ks is not None:
            check_axis(".draft_ks", self.draft_ks, least=0)
        if self.capture_sizes:
            check_axis(".capture_sizes", self.capture_sizes, least=1)
        if self.capture_limit != max(self.capture_sizes, default=0):
            largest = max(self.capture_sizes, default=0)
            raise ValueError(f".capture_limit: expected the largest capture size ({largest}), got {self.capture_limit}")
        before = {letter: name for letter, name in LEGEND.items() if letter != "u"}  # as files of before have it
        if self.legend not in (LEGEND, before):
            raise ValueError(f".legend: expected {LEGEND}, got {self.legend}")
        verify_rows = (len(self.contexts), len(self.num_reqs))
        draft_rows = (1 if self.draft_ks is None else len(self.draft_ks),)
        check_table("verify", verify_rows, self.verify_table_ms, self.verify_source, self.verify_ci_ms, positive=True)
        check_table("draft", draft_rows, self.draft_table_ms, self.draft_source, self.draft_ci_ms, positive=False)
        check_length(".overhead_ms", self.overhead_ms, self.max_num_reqs, "requests")
        check_table("overhead", (), self.overhead_ms, self.overhead_source, self.overhead_ci_ms, positive=False)
        prefill_ms, source, ci_ms = self.draft_prefill_ms, self.draft_prefill_source, self.draft_prefill_ci_ms
        if prefill_ms.ndim != 1 or len(prefill_ms) < self.max_num_tokens + 1:
            raise ValueError(
                f".draft_prefill_ms: expected {self.max_num_tokens + 1} cells or more, for 0 to {self.max_num_tokens} "
                f"tokens, got shape {list(prefill_ms.shape)}"
            )
        check_table("draft_prefill", (), prefill_ms, source, ci_ms, positive=False)
        if self.machinery is not None and self.machinery.ms.shape[-1] != self.max_num_reqs + 1:
            raise ValueError(
                f".machinery.ms: expected {self.max_num_reqs + 1} cells a row, for 0 to {self.max_num_reqs} requests, "
                f"got {self.machinery.ms.shape[-1]}"
            )
        if prefill_ms[0] != 0:
            raise ValueError(f".draft_prefill_ms[0]: expected 0 for no tokens, got {prefill_ms[0]}")

    @property
    def max_num_tokens(self) -> int:
        """Of a verify pass without prompts."""
        return int(self.verify_table_ms.shape[-1]) - 1

    @property
    def max_step_tokens(self) -> int:
        """Of any step. Where steps with prompts were not timed as such, they cost what a verify pass of their size
        does.
        """
        return self.max_num_tokens if self.mixed is None else len(self.draft_prefill_ms) - 1

    @property
    def max_num_reqs(self) -> int:
        return int(self.draft_table_ms.shape[-1]) - 1

    @property
    def verify_ms(self) -> NDArray[np.float64]:  # [max_num_tokens + 1]
        """The verify row at the most requests and the longest context measured."""
        row: NDArray[np.float64] = self.verify_table_ms[-1, -1]
        return row

    @property
    def draft_ms(self) -> NDArray[np.float64]:  # [max_num_reqs + 1]
        """The draft row at the most drafts per request."""
        row: NDArray[np.float64] = self.draft_table_ms[-1]
        return row

    def feed_ms(self) -> NDArray[np.float64]:  # [max_num_reqs + 1]
        """What each token that a verifying request brings to the drafter's first pass, past the `narrow_len` that
        drafting is priced at, adds to it. By num_reqs, linear between those measured, held outside them; 0 where the
        two ends are within the noise or 2% of each other.

        Raises CoverageError where a wide first pass was not measured.
        """
        if not self.feed_costs:
            raise CoverageError(
                "these tables do not hold what drafting costs after a whole step",
                "plan for a drafter that takes the last tokens alone (--drafter-input last), or measure it: specplan "
                "profile",
            )
        return self._by_num_reqs([costs.ms_per_token for costs in self.feed_costs])

    def feed_ci_ms(self) -> NDArray[np.float64]:  # [max_num_reqs + 1]
        """Half-width of the 95% interval of each of `feed_ms`, at most."""
        return self._by_num_reqs([costs.ci_ms_per_token for costs in self.feed_costs])

    def _by_num_reqs(self, of_feeds: Sequence[float]) -> NDArray[np.float64]:  # [max_num_reqs + 1]
        counts = [costs.num_reqs for costs in self.feed_costs]
        by_count: NDArray[np.float64] = np.interp(np.arange(self.max_num_reqs + 1), counts, of_feeds)
        return by_count

    def step_overhead_ms(self, *, has_drafts: bool, has_budget: bool) -> NDArray[np.float64]:  # [max_num_reqs + 1]
        """The host's work in a step by num_reqs; where it was not measured as a whole, the parts of it that were, of a
        step with or without drafts, under a policy with or without a budget."""
        parts = self.machinery if self.overhead_source is None else None
        more_ms = 0.0 if parts is None else parts.total(parts.ms, has_drafts=has_drafts, has_budget=has_budget)
        total: NDArray[np.float64] = self.overhead_ms + more_ms
        return total

    def step_overhead_ci_ms(self, *, has_drafts: bool, has_budget: bool) -> NDArray[np.float64]:  # [max_num_reqs + 1]
        """Half-width of the 95% interval of each cost of `step_overhead_ms`, at most; 0 where nobody knows."""
        parts = self.machinery if self.overhead_source is None else None
        more_ms = 0.0 if parts is None else parts.total(parts.ci_ms, has_drafts=has_drafts, has_budget=has_budget)
        known = np.zeros_like(self.overhead_ms) if self.overhead_ci_ms is None else self.overhead_ci_ms
        total: NDArray[np.float64] = known + more_ms
        return total

    def verify_row(self, num_reqs: int, context_len: float) -> NDArray[np.float64]:  # [max_num_tokens + 1]
        """Cost of a verify pass by num_tokens, linear between measured requests and contexts, held outside them; past
        the longest context, where an additive fit holds, by its slope.

        Holding over requests is normal: a step with a prefill has few requests and many tokens.
        """
        beyond_ms = self.context_ms * (num_reqs * max(context_len - self.contexts[-1], 0.0))
        row = self._blend(self.verify_table_ms, num_reqs, context_len)
        row += beyond_ms
        if self.semantics == "exact" and num_reqs not in self.num_reqs:
            row[:] = np.inf
        return row

    def verify_ci_row(self, num_reqs: int, context_len: float) -> NDArray[np.float64]:  # [max_num_tokens + 1]
        """Half-width of the 95% interval of each cost of `verify_row`, at most: as if all points it rests on erred
        together. 0 where nobody knows."""
        if self.verify_ci_ms is None:
            return np.zeros(self.max_num_tokens + 1)
        return self._blend(self.verify_ci_ms, num_reqs, context_len)

    def _blend(self, table: NDArray[np.float64], num_reqs: int, context_len: float) -> NDArray[np.float64]:
        row = np.zeros(self.max_num_tokens + 1)
        for context, request, weight in self._verify_cells(num_reqs, context_len):
            # Weights, not a + w (b - a): rounding is monotone, so a blend of non-decreasing rows never falls.
            row += weight * table[context, request]
        return row

    @property
    def context_ms(self) -> float:
        """What each token of context past the longest measured adds to a verify pass."""
        return self.additive.context_ms if self.additive is not None and self.additive.holds else 0.0

    def verify_sources(self, num_reqs: int, context_len: float) -> NDArray[np.str_]:  # [max_num_tokens + 1]
        """Letters as in `legend`: the worst source of the contexts a cost rests on, interpolated or worse between rows.

        Between two request counts one that was measured is enough. Of 4 and 8 requests only 8 can run 40 tokens at
        K = 7: a step of 5 requests that does lies between the two.
        """
        by_context: dict[int, list[NDArray[np.uint8]]] = {}
        for context, request, _ in self._verify_cells(num_reqs, context_len):
            by_context.setdefault(context, []).append(self.verify_source[context, request])
        source = np.max([np.min(cells, axis=0) for cells in by_context.values()], axis=0)
        if sum(len(cells) for cells in by_context.values()) > 1:
            source = np.maximum(source, Source.INTERPOLATED)
        letters: NDArray[np.str_] = np.array(list(LETTERS))[source]
        return letters

    def draft_row(self, k: int) -> NDArray[np.float64]:  # [max_num_reqs + 1]
        """Cost of drafting `k` tokens per request by num_reqs, linear between measured k."""
        return self._draft_blend(self.draft_table_ms, k)

    def draft_ci_row(self, k: int) -> NDArray[np.float64]:  # [max_num_reqs + 1]
        """Half-width of the 95% interval of each cost of `draft_row`, at most; 0 where nobody knows."""
        if self.draft_ci_ms is None:
            return np.zeros(self.max_num_reqs + 1)
        return self._draft_blend(self.draft_ci_ms, k)

    def _draft_blend(self, table: NDArray[np.float64], k: int) -> NDArray[np.float64]:
        if k < 0:
            raise CoverageError(f"a draft of {k} tokens per request: expected 0 or more", "give a k of 0 or more")
        if self.draft_ks is None:
            only: NDArray[np.float64] = table[-1].copy()
            return only
        if not self.draft_ks[0] <= k <= self.draft_ks[-1]:
            raise CoverageError(
                f"no draft cost for k = {k}: k from {self.draft_ks[0]} to {self.draft_ks[-1]} was measured",
                f"use a k in that range (-k {self.draft_ks[-1]}), or measure it: specplan profile -k {k}",
            )
        row = np.zeros(self.max_num_reqs + 1)
        for index, weight in _brackets(self.draft_ks, k):
            row += weight * table[index]
        return row

    def _verify_cells(self, num_reqs: int, context_len: float) -> Iterator[tuple[int, int, float]]:
        if not 1 <= num_reqs <= self.max_num_reqs:
            raise CoverageError(
                f"no cost for a step of {num_reqs} requests: these tables cover 1 to {self.max_num_reqs}",
                f"use fewer requests, or measure more: specplan profile --max-num-seqs {max(num_reqs, 1)}",
            )
        if not context_len >= 0:
            raise CoverageError(f"no cost at context {context_len}: expected 0 or more", "give a context of 0 or more")
        for context, context_weight in _brackets(self.contexts, context_len):
            for request, request_weight in _brackets(self.num_reqs, num_reqs):
                yield context, request, context_weight * request_weight

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> CostTables:
        return read_json(path, cls, schema=TABLES_SCHEMA, dec_hook=decode_array)

    def to_json(self) -> bytes:
        """The bytes that `write` writes."""
        return encode(self, enc_hook=encode_array)

    def digest(self) -> str:
        """sha256 of the bytes that `write` writes."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def write(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self, schema=TABLES_SCHEMA, enc_hook=encode_array, dec_hook=decode_array)


def _brackets(axis: Sequence[int], value: float) -> list[tuple[int, float]]:
    """Indices of the `axis` entries around `value` and their weights; one entry where `value` is on it or outside."""
    return [(index, weight) for index, weight in corners(place_on(axis, value)) if weight > 0]
