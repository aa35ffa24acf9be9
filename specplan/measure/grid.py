"""Which steps a profile measures: the points of the sweep, in a stable order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from specplan.engine.passes import FEED_LEN
from specplan.errors import ConfigError
from specplan.files.profile import Machinery
from specplan.shapes import (
    EVEN,
    SPREAD,
    Layout,
    Lengths,
    StepShape,
    default_capture_sizes,
    padded_size,
    powers_of_four,
    powers_of_two,
    profiled_shapes,
    prompt_lens,
    reachable_sizes,
    request_grid,
    require_ascending,
    spread_lens,
)

__all__ = ["MeasuredPoint", "Mode", "ProfilePlan", "Region"]

Mode = Literal["graph", "eager"]
Region = Literal["captured", "smooth", "mixed", "draft", "draft-prefill", "machinery"]
MACHINERY: tuple[Machinery, ...] = get_args(Machinery)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One cell of the sweep. `k` is the drafts per request of a drafter's step, None of every other."""

    model: Literal["verify", "head", "draft", "draft-prefill"] | Machinery
    mode: Mode
    shape: StepShape
    k: int | None = None
    feed_len: int | None = None  # tokens of each request in the first pass of a drafter's step

    @property
    def is_machinery(self) -> bool:
        return self.model in MACHINERY


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """What to measure. `contexts` are the KV tokens that verifying requests hold before the step, the mean of a step.

    Where no `capture_sizes` are named they are those that vLLM captures under these limits and `capture_ceiling` (see
    `default_capture_sizes`), as far as verifying requests fill them.

    `layouts` are those of the verify pass. Multi-query is one of them, for it is what tables price. `lengths`: see
    `shapes.Lengths`; each gets a whole grid of verify steps. With `checks_ragged` a few ragged steps are timed beside
    even ones, to say how far the price of those holds. A drafter's queries are alike, whatever a budget does, and it is
    timed at one context, the mean of `contexts` where `draft_context_len` is 0.
    """

    max_num_seqs: int
    num_speculative_tokens: int
    max_num_batched_tokens: int
    contexts: tuple[int, ...]
    capture_sizes: tuple[int, ...] = ()
    capture_ceiling: int = 512
    layouts: tuple[Layout, ...] = ("multi-query",)
    lengths: tuple[Lengths, ...] = ("even",)
    checks_ragged: bool = False
    num_reqs: tuple[int, ...] = ()  # powers of two and the most where none are named
    draft_num_reqs: tuple[int, ...] = ()  # of the drafter's steps, `num_reqs` where none are named
    draft_context_len: int = 0
    context_spread: tuple[float, ...] = SPREAD  # of steps whose lengths are not even
    prompt_len: int = 0  # of the prompts in mixed steps, the longest context where 0; longer where they would be many

    def __post_init__(self) -> None:
        limits = {
            "max_num_seqs": (self.max_num_seqs, 1),
            "num_speculative_tokens": (self.num_speculative_tokens, 1),
            "max_num_batched_tokens": (self.max_num_batched_tokens, self.max_num_seqs),
            "context_len": (min(self.contexts, default=0), FEED_LEN),
        }
        for name, (value, least) in limits.items():
            if value < least:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{name} is {value}, expected at least {least}", f"pass {option} {least} or more")
        if list(self.contexts) != sorted(set(self.contexts)):
            raise ConfigError(
                f"contexts {', '.join(map(str, self.contexts))} are not ascending and distinct",
                "name each context once, the shortest first",
            )
        if not self.capture_sizes:
            object.__setattr__(self, "capture_sizes", self.default_sizes())
        require_ascending(self.capture_sizes)
        if "multi-query" not in self.layouts or len(set(self.layouts)) < len(self.layouts):
            raise ConfigError(
                f"layouts {', '.join(self.layouts) or 'none'}: expected multi-query, which tables price, and each once",
                "pass --layout multi-query, and with it --layout batch-expansion to compare the two",
            )

    def default_sizes(self) -> tuple[int, ...]:
        sizes = default_capture_sizes(
            self.max_num_seqs,
            self.num_speculative_tokens,
            max_num_batched_tokens=self.max_num_batched_tokens,
            ceiling=self.capture_ceiling,
        )
        return reachable_sizes(sizes, self.max_num_seqs * (1 + self.num_speculative_tokens))

    @property
    def counts(self) -> tuple[int, ...]:
        """Of requests in a step that verifies."""
        return self.num_reqs or request_grid(self.max_num_seqs)

    @property
    def drafting_context_len(self) -> int:
        return self.draft_context_len or round(sum(self.contexts) / len(self.contexts))

    @property
    def longest_query(self) -> int:
        """The most tokens that one request brings to any verify step, padding included."""
        return max(1 + self.num_speculative_tokens, -(-self.capture_sizes[-1] // self.max_num_seqs))

    @property
    def longest_sequence(self) -> int:
        """The most keys of one request at any point; the drafter stays within it, at K - 1 past its context."""
        lengths = {*self.lengths, *(("ragged",) if self.checks_ragged else ())}
        longest = max(self.contexts[-1], self.drafting_context_len)
        longest_context = max(max(self.context_lens(n, longest, each)) for n in self.counts for each in lengths)
        longest_prompt = max(max(self.prompts(size)) for size in self.prompt_sizes)
        return max(longest_context + self.longest_query, longest_prompt)

    @property
    def prompt_sizes(self) -> tuple[int, ...]:
        """Prompt tokens of a step, up to all that it may hold."""
        return powers_of_four(1, self.max_num_batched_tokens)

    @property
    def num_cache_rows(self) -> int:
        """As many as the most requests need, with the most prompts beside them."""
        return self.max_num_seqs + len(self.prompts(self.prompt_sizes[-1]))

    def prompts(self, num_tokens: int) -> tuple[int, ...]:
        """The prompts that bring `num_tokens` to a step: never more than there may be requests, and longer for it."""
        shortest = -(-self.max_num_batched_tokens // self.max_num_seqs)
        return prompt_lens(num_tokens, max(self.prompt_len or self.contexts[-1], shortest))

    def context_lens(self, num_reqs: int, context_len: int, lengths: Lengths) -> tuple[int, ...]:
        """Of requests that verify or draft."""
        return spread_lens(num_reqs, context_len, EVEN if lengths == "even" else self.context_spread)

    def points(self) -> list[MeasuredPoint]:
        """Verify steps of every context and lengths, and ragged ones that check them; drafts over requests and k; mixed
        steps; the drafter's prefill over tokens; a step's own machinery; and in batch expansion the verify points that
        are compared with it.
        """
        priced = [point for lengths in self.lengths for point in self.verify_points(lengths)]
        expanded = [self.expanded(point) for point in priced if self.is_compared(point)]
        drafts = [self.with_lengths(point, lengths) for lengths in self.draft_lengths for point in self.draft_points()]
        mixed = [point for lengths in self.lengths for point in self.mixed_points(lengths)]
        prefills = map(self.draft_prefill_point, self.prompt_sizes)
        checks = self.ragged_checks() if self.checks_ragged else ()
        machinery = (self.machinery_point(model, count) for model in MACHINERY for count in self.counts)
        return list(dict.fromkeys([*priced, *checks, *drafts, *mixed, *prefills, *machinery, *expanded]))

    @property
    def draft_lengths(self) -> tuple[Lengths, ...]:
        """A drafter's queries are alike, whatever a budget does."""
        return tuple(lengths for lengths in self.lengths if lengths != "ragged")

    def verify_points(self, lengths: Lengths) -> Iterator[MeasuredPoint]:
        """Captured at every size that a batch runs at. Eagerly nothing pads, so that powers of two say what lies
        between them; and above the largest graph every size is eager.
        """
        limit = self.capture_sizes[-1]
        for context_len in self.contexts:
            shapes = profiled_shapes(
                max_num_seqs=self.max_num_seqs,
                num_speculative_tokens=self.num_speculative_tokens,
                max_num_batched_tokens=self.max_num_batched_tokens,
                capture_sizes=self.capture_sizes,
                context_len=context_len,
                num_reqs=self.num_reqs,
            )
            for shape in shapes:
                mode: Mode = "graph" if shape.num_tokens <= limit else "eager"
                yield MeasuredPoint(model="verify", mode=mode, shape=replace(shape, lengths=lengths))
            for count in self.counts:
                most = min(count * (1 + self.num_speculative_tokens), limit, self.max_num_batched_tokens)
                for size in powers_of_two(count, most) if count <= most else ():
                    point = self.verify_point("eager", count, size, context_len)
                    yield self.with_lengths(point, lengths)

    def ragged_checks(self) -> Iterator[MeasuredPoint]:
        """A quarter, half and three quarters of the drafts, as a budget leaves them: all of some requests, none of
        others. With none or all of them queries are alike."""
        limit = self.capture_sizes[-1]
        for context_len in self.contexts:
            for count in self.counts:
                for quarters in (1, 2, 3):
                    size = padded_size(count + count * self.num_speculative_tokens * quarters // 4, self.capture_sizes)
                    if count < size < count * (1 + self.num_speculative_tokens):
                        mode: Mode = "graph" if size <= limit else "eager"
                        yield self.with_lengths(self.verify_point(mode, count, size, context_len), "ragged")

    def draft_points(self) -> Iterator[MeasuredPoint]:
        """Captured at every k; eagerly, which prices nothing where graphs exist, without drafts and with the most.

        The first pass takes the last two tokens of each request. With K drafts it is also timed with all 1 + K of the
        step, as engines run it that do not wait to know how many were accepted.
        """
        most = self.num_speculative_tokens
        for count in self.draft_num_reqs or self.counts:
            yield from (self.draft_point("graph", count, k) for k in range(most + 1))
            yield from (self.draft_point("eager", count, k) for k in (0, most))
            if FEED_LEN < 1 + most <= self.drafting_context_len:
                yield self.draft_point("graph", count, most, feed_len=1 + most)

    def region_of(self, point: MeasuredPoint) -> Region | None:
        """Which price a point is for; None where it only compares or checks."""
        shape = point.shape
        if point.is_machinery:
            return "machinery"
        if point.model == "draft-prefill":
            return "draft-prefill"
        if shape.layout != "multi-query" or shape.lengths not in self.lengths:
            return None
        if point.model == "draft":
            return "draft" if point.mode == "graph" and point.feed_len == FEED_LEN else None
        if point.model != "verify":
            return None
        if shape.is_mixed:
            return "mixed"
        if point.mode == "graph":
            return "captured"
        return "smooth" if shape.num_tokens > self.capture_sizes[-1] else None

    def with_lengths(self, point: MeasuredPoint, lengths: Lengths) -> MeasuredPoint:
        return replace(point, shape=replace(point.shape, lengths=lengths))

    def is_compared(self, point: MeasuredPoint) -> bool:
        """Whether layouts are compared at a multi-query point.

        They are where a step runs of as many requests with k drafts each, of any k: at its padded size, in its mode.
        """
        if "batch-expansion" not in self.layouts:
            return False
        if (point.mode == "graph") != (point.shape.num_tokens <= self.capture_sizes[-1]):
            return False
        steps = (point.shape.num_reqs * (1 + k) for k in range(self.num_speculative_tokens + 1))
        padded = padded_size(point.shape.num_tokens, self.capture_sizes)
        return padded in {padded_size(num_tokens, self.capture_sizes) for num_tokens in steps}

    def expanded(self, point: MeasuredPoint) -> MeasuredPoint:
        return replace(point, shape=replace(point.shape, layout="batch-expansion"))

    def verify_point(self, mode: Mode, num_reqs: int, num_tokens: int, context_len: int) -> MeasuredPoint:
        shape = StepShape(num_reqs=num_reqs, num_tokens=num_tokens, context_len=context_len)
        return MeasuredPoint(model="verify", mode=mode, shape=shape)

    def draft_point(
        self, mode: Mode, num_reqs: int, k: int, *, context_len: int = 0, feed_len: int = FEED_LEN
    ) -> MeasuredPoint:
        tokens = num_reqs * (feed_len + max(0, k - 1))  # over all passes of the step
        shape = StepShape(num_reqs=num_reqs, num_tokens=tokens, context_len=context_len or self.drafting_context_len)
        return MeasuredPoint(model="draft", mode=mode, shape=shape, k=k, feed_len=feed_len)

    def mixed_points(self, lengths: Lengths) -> Iterator[MeasuredPoint]:
        """Prompt tokens beside none, and beside verifying requests without drafts and with K each; ragged, with half of
        all drafts: without any or with all, queries are alike.

        No step holds more than `max_num_batched_tokens`: the most prompt tokens beside others are what these leave.
        """
        half = self.num_speculative_tokens // 2
        ks = (0, self.num_speculative_tokens) if lengths != "ragged" else (half,) if half else ()
        if lengths != "ragged":
            yield from (self.with_lengths(self.mixed_point(0, 0, size, 0), lengths) for size in self.prompt_sizes)
        for context_len in self.contexts:
            for count in self.mixed_counts:
                for k in ks:
                    left = self.max_num_batched_tokens - count * (1 + k)
                    for size in powers_of_four(1, left) if left > 0 else ():
                        yield self.with_lengths(self.mixed_point(count, k, size, context_len), lengths)

    @property
    def mixed_counts(self) -> tuple[int, ...]:
        return self.num_reqs or powers_of_four(1, self.max_num_seqs)

    def mixed_point(self, num_verifying: int, k: int, num_prompt_tokens: int, context_len: int) -> MeasuredPoint:
        num_prefilling = len(self.prompts(num_prompt_tokens))
        shape = StepShape(
            num_reqs=num_verifying + num_prefilling,
            num_tokens=num_verifying * (1 + k) + num_prompt_tokens,
            context_len=context_len,
            num_prefilling=num_prefilling,
            num_prompt_tokens=num_prompt_tokens,
        )
        return MeasuredPoint(model="verify", mode="eager", shape=shape)

    def head_point(self, num_tokens: int) -> MeasuredPoint:
        """The end of a verify pass of requests with K drafts each."""
        num_reqs = -(-num_tokens // (1 + self.num_speculative_tokens))
        shape = StepShape(num_reqs=num_reqs, num_tokens=num_tokens, context_len=self.contexts[0])
        return MeasuredPoint(model="head", mode="eager", shape=shape)

    def draft_prefill_point(self, num_tokens: int) -> MeasuredPoint:
        """The prompts that a mixed step of as many prompt tokens runs."""
        shape = StepShape(num_reqs=len(self.prompts(num_tokens)), num_tokens=num_tokens, context_len=0)
        return MeasuredPoint(model="draft-prefill", mode="eager", shape=shape)

    def machinery_point(self, model: Machinery, num_reqs: int) -> MeasuredPoint:
        """Of a step in which each request is offered K drafts, or none."""
        query_len = min(1 + self.num_speculative_tokens, self.max_num_batched_tokens // num_reqs)
        if model == "bare-metadata":
            query_len = 1
        shape = StepShape(num_reqs=num_reqs, num_tokens=num_reqs * query_len, context_len=self.contexts[0])
        return MeasuredPoint(model=model, mode="eager", shape=shape)
