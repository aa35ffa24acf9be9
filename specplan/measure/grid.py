"""Which steps a profile measures: the points of the sweep, in a stable order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from specplan.engine.passes import FEED_LEN
from specplan.errors import ConfigError
from specplan.shapes import (
    EVEN,
    SPREAD,
    Layout,
    Lengths,
    StepShape,
    default_capture_sizes,
    padded_size,
    powers_of_four,
    profiled_shapes,
    prompt_lens,
    request_grid,
    require_ascending,
    spread_lens,
)

__all__ = ["MeasuredPoint", "ProfilePlan"]

Mode = Literal["graph", "eager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One cell of the sweep. `k` is the drafts per request of a drafter's step, None of every other."""

    model: Literal["verify", "head", "draft", "draft-prefill"]
    mode: Mode
    shape: StepShape
    k: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """What to measure. `context_len` is the KV tokens each verifying request holds before the step.

    `layouts` are those of the verify pass. Multi-query is one of them, for it is what tables price. `lengths`: see
    `shapes.Lengths`; a drafter's queries are alike, whatever a budget does.
    """

    max_num_seqs: int
    num_speculative_tokens: int
    max_num_batched_tokens: int
    context_len: int
    capture_sizes: tuple[int, ...]
    layouts: tuple[Layout, ...] = ("multi-query",)
    lengths: tuple[Lengths, ...] = ("even",)
    num_reqs: tuple[int, ...] = ()  # powers of two and the most where none are named
    context_spread: tuple[float, ...] = SPREAD  # of steps whose lengths are not even
    prompt_len: int = 0  # of the prompts in mixed steps, the context where 0; longer where they would be many

    def __post_init__(self) -> None:
        limits = {
            "max_num_seqs": (self.max_num_seqs, 1),
            "num_speculative_tokens": (self.num_speculative_tokens, 1),
            "max_num_batched_tokens": (self.max_num_batched_tokens, self.max_num_seqs),
            "context_len": (self.context_len, FEED_LEN),
        }
        for name, (value, least) in limits.items():
            if value < least:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{name} is {value}, expected at least {least}", f"pass {option} {least} or more")
        require_ascending(self.capture_sizes)
        if "multi-query" not in self.layouts or len(set(self.layouts)) < len(self.layouts):
            raise ConfigError(
                f"layouts {', '.join(self.layouts) or 'none'}: expected multi-query, which tables price, and each once",
                "pass --layout multi-query, and with it --layout batch-expansion to compare the two",
            )

    @classmethod
    def default(
        cls,
        *,
        max_num_seqs: int,
        num_speculative_tokens: int,
        max_num_batched_tokens: int,
        context_len: int,
        ceiling: int = 512,
        layouts: tuple[Layout, ...] = ("multi-query",),
        lengths: tuple[Lengths, ...] = ("even",),
        num_reqs: tuple[int, ...] = (),
        context_spread: tuple[float, ...] = SPREAD,
        prompt_len: int = 0,
    ) -> ProfilePlan:
        """The sizes that vLLM captures for these limits; `ceiling` as in `default_capture_sizes`."""
        return cls(
            max_num_seqs=max_num_seqs,
            num_speculative_tokens=num_speculative_tokens,
            max_num_batched_tokens=max_num_batched_tokens,
            context_len=context_len,
            capture_sizes=default_capture_sizes(
                max_num_seqs,
                num_speculative_tokens,
                max_num_batched_tokens=max_num_batched_tokens,
                ceiling=ceiling,
            ),
            layouts=layouts,
            lengths=lengths,
            num_reqs=num_reqs,
            context_spread=context_spread,
            prompt_len=prompt_len,
        )

    @property
    def longest_query(self) -> int:
        """The most tokens that one request brings to any point: the largest batch, spread over the most requests."""
        largest = max(self.capture_sizes[-1], self.max_num_batched_tokens)
        return max(1 + self.num_speculative_tokens, -(-largest // self.max_num_seqs))

    @property
    def longest_sequence(self) -> int:
        """The most keys of one request at any point; the drafter stays within it, at K - 1 past its context."""
        counts = self.num_reqs or request_grid(self.max_num_seqs)
        longest_context = max(
            max(self.context_lens(n, self.context_len, lengths)) for n in counts for lengths in self.lengths
        )
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
        return prompt_lens(num_tokens, max(self.prompt_len or self.context_len, shortest))

    def context_lens(self, num_reqs: int, context_len: int, lengths: Lengths) -> tuple[int, ...]:
        """Of requests that verify or draft."""
        return spread_lens(num_reqs, context_len, EVEN if lengths == "even" else self.context_spread)

    def points(self) -> list[MeasuredPoint]:
        """Verify over requests and tokens, drafts over requests and k, in both modes; the eager tail; mixed steps; the
        drafter's prefill over tokens; and in batch expansion the verify points that are compared with it."""
        shapes = profiled_shapes(
            max_num_seqs=self.max_num_seqs,
            num_speculative_tokens=self.num_speculative_tokens,
            max_num_batched_tokens=self.max_num_batched_tokens,
            capture_sizes=self.capture_sizes,
            context_len=self.context_len,
            num_reqs=self.num_reqs,
        )
        captured = [shape for shape in shapes if shape.num_tokens <= self.capture_sizes[-1]]
        points = []
        for mode in ("graph", "eager"):
            points += [MeasuredPoint(model="verify", mode=mode, shape=shape) for shape in captured]
            for num_reqs in self.num_reqs or request_grid(self.max_num_seqs):
                points += [self.draft_point(mode, num_reqs, k) for k in range(self.num_speculative_tokens + 1)]
        points += [MeasuredPoint(model="verify", mode="eager", shape=shape) for shape in shapes[len(captured) :]]
        points += self.mixed_points()
        points = [
            replace(point, shape=replace(point.shape, lengths=lengths))
            for lengths in self.lengths
            for point in points
            if lengths != "ragged" or (point.model == "verify" and not point.shape.is_mixed)
        ]
        if "ragged" in self.lengths:
            points += self.ragged_mixed_points()
        expanded = [self.expanded(point) for point in points if self.is_compared(point)]
        return [*points, *map(self.draft_prefill_point, self.prompt_sizes), *expanded]

    def is_compared(self, point: MeasuredPoint) -> bool:
        """Whether layouts are compared at a multi-query point.

        They are where a step runs of as many requests with k drafts each, of any k: at its padded size, in its mode.
        """
        if "batch-expansion" not in self.layouts or point.model != "verify" or point.shape.is_mixed:
            return False
        if (point.mode == "graph") != (point.shape.num_tokens <= self.capture_sizes[-1]):
            return False
        steps = (point.shape.num_reqs * (1 + k) for k in range(self.num_speculative_tokens + 1))
        return point.shape.num_tokens in {padded_size(num_tokens, self.capture_sizes) for num_tokens in steps}

    def expanded(self, point: MeasuredPoint) -> MeasuredPoint:
        return replace(point, shape=replace(point.shape, layout="batch-expansion"))

    def verify_point(self, mode: Mode, num_reqs: int, num_tokens: int) -> MeasuredPoint:
        shape = StepShape(num_reqs=num_reqs, num_tokens=num_tokens, context_len=self.context_len)
        return MeasuredPoint(model="verify", mode=mode, shape=shape)

    def draft_point(self, mode: Mode, num_reqs: int, k: int) -> MeasuredPoint:
        tokens = num_reqs * (FEED_LEN + max(0, k - 1))  # over all passes of the step
        shape = StepShape(num_reqs=num_reqs, num_tokens=tokens, context_len=self.context_len)
        return MeasuredPoint(model="draft", mode=mode, shape=shape, k=k)

    def mixed_points(self) -> list[MeasuredPoint]:
        """Prompt tokens beside verifying requests without drafts and with K each; and beside none.

        The grid is whole, though its corner is a step of more tokens than an engine would run.
        """
        points = []
        for size in self.prompt_sizes:
            points.append(self.mixed_point(0, 0, size))
            points += [
                self.mixed_point(n, k, size) for n in self.mixed_counts for k in (0, self.num_speculative_tokens)
            ]
        return points

    def ragged_mixed_points(self) -> list[MeasuredPoint]:
        """Half of all drafts, as a budget leaves them: without any or with all, queries are alike."""
        half = self.num_speculative_tokens // 2
        points = [self.mixed_point(n, half, size) for size in self.prompt_sizes for n in self.mixed_counts if half]
        return [replace(point, shape=replace(point.shape, lengths="ragged")) for point in points]

    @property
    def mixed_counts(self) -> tuple[int, ...]:
        return self.num_reqs or powers_of_four(1, self.max_num_seqs)

    def mixed_point(self, num_verifying: int, k: int, num_prompt_tokens: int) -> MeasuredPoint:
        num_prefilling = len(self.prompts(num_prompt_tokens))
        shape = StepShape(
            num_reqs=num_verifying + num_prefilling,
            num_tokens=num_verifying * (1 + k) + num_prompt_tokens,
            context_len=self.context_len if num_verifying else 0,
            num_prefilling=num_prefilling,
            num_prompt_tokens=num_prompt_tokens,
        )
        return MeasuredPoint(model="verify", mode="eager", shape=shape)

    def head_point(self, num_tokens: int) -> MeasuredPoint:
        """The end of a verify pass of requests with K drafts each."""
        num_reqs = -(-num_tokens // (1 + self.num_speculative_tokens))
        shape = StepShape(num_reqs=num_reqs, num_tokens=num_tokens, context_len=self.context_len)
        return MeasuredPoint(model="head", mode="eager", shape=shape)

    def draft_prefill_point(self, num_tokens: int) -> MeasuredPoint:
        """The prompts that a mixed step of as many prompt tokens runs."""
        shape = StepShape(num_reqs=len(self.prompts(num_tokens)), num_tokens=num_tokens, context_len=0)
        return MeasuredPoint(model="draft-prefill", mode="eager", shape=shape)
