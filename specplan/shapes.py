"""What one step looks like, and which sizes a graph exists for. Sizes are in tokens unless a name says otherwise."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from specplan.errors import ConfigError

__all__ = [
    "EVEN",
    "SPREAD",
    "Layout",
    "Lengths",
    "StepShape",
    "default_capture_sizes",
    "even_query_lens",
    "padded_size",
    "powers_of_four",
    "powers_of_two",
    "profiled_shapes",
    "prompt_lens",
    "ragged_query_lens",
    "reachable_sizes",
    "request_grid",
    "require_ascending",
    "spread_lens",
    "tail_sizes",
]

# How a pass attends. multi-query: a row for each request, its keys read once for all its queries. batch-expansion: a
# row for each query, its request's keys read again for every one of them.
Layout = Literal["multi-query", "batch-expansion"]

# How alike the requests of a step are. even: queries and contexts of one length. spread: contexts as unlike as in
# serving. ragged: the same contexts, and queries as a budget leaves them: all drafts of some requests, none of others.
# A kernel that pads to the longest pays for what one that reads lengths does not.
Lengths = Literal["even", "spread", "ragged"]
# How unlike lengths are: evenly spaced quantiles of them over their mean, from the shortest to the longest.
EVEN = (1.0,)
SPREAD = (0.5, 1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """A step of `num_reqs` requests and `num_tokens` queries. `context_len`: tokens in a request's cache, the mean.

    Of a mixed step's requests `num_prefilling` bring `num_prompt_tokens` of its tokens, prompts from their beginning;
    the context is that of the others, which verify.
    """

    num_reqs: int
    num_tokens: int
    context_len: int
    layout: Layout = "multi-query"
    lengths: Lengths = "even"
    num_prefilling: int = 0
    num_prompt_tokens: int = 0

    @property
    def num_verifying(self) -> int:
        return self.num_reqs - self.num_prefilling

    @property
    def num_drafts(self) -> int:
        return self.num_tokens - self.num_prompt_tokens - self.num_verifying

    @property
    def is_mixed(self) -> bool:
        return self.num_prompt_tokens > 0

    def __post_init__(self) -> None:
        if self.num_reqs < 1 or self.num_tokens < self.num_reqs or self.context_len < 0:
            raise ConfigError(
                f"a step of {self.num_reqs} requests, {self.num_tokens} tokens, context {self.context_len} cannot run",
                "give at least one request, at least one token per request and a context of 0 or more",
            )


def default_capture_sizes(
    max_num_seqs: int,
    num_speculative_tokens: int,
    *,
    max_num_batched_tokens: int = 8192,
    ceiling: int = 512,
) -> tuple[int, ...]:
    """The token counts vLLM 0.33 captures by default, ascending.

    With q = 1 + K and max = min(2 q max_num_seqs, ceiling, max_num_batched_tokens): 1, 2, 4, every 8 below 256, every
    16 from there to max, plus q times the same grid over requests, so that uniform decode batches hit a size exactly.
    `ceiling` is 512, or 1024 on SM100.
    """
    if max_num_seqs < 1 or num_speculative_tokens < 0:
        raise ConfigError(
            f"max_num_seqs {max_num_seqs} with K {num_speculative_tokens}: expected at least 1 and at least 0",
            "pass --max-num-seqs 1 or more and -k 1 or more",
        )
    query_len = 1 + num_speculative_tokens
    largest = min(max_num_seqs * query_len * 2, ceiling, max_num_batched_tokens)
    grid = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    sizes = {size for size in grid if size <= largest}
    if max_num_batched_tokens <= largest:
        sizes.add(max_num_batched_tokens)
    if num_speculative_tokens:
        sizes |= {size * query_len for size in grid if size <= max_num_seqs and size * query_len <= largest}
    elif max_num_seqs <= largest:
        sizes.add(max_num_seqs)
    return tuple(sorted(sizes))


def tail_sizes(capture_limit: int, largest: int) -> tuple[int, ...]:
    """Sizes past the capture limit: the first, 1.5x, 2x, 4x, ... of it, then the `largest` itself."""
    if largest <= capture_limit:
        return ()
    sizes = {capture_limit + 1, largest}
    if capture_limit * 3 // 2 < largest:
        sizes.add(capture_limit * 3 // 2)
    size = capture_limit * 2
    while size and size < largest:
        sizes.add(size)
        size *= 2
    return tuple(sorted(size for size in sizes if size > capture_limit))


def request_grid(max_num_seqs: int) -> tuple[int, ...]:
    """The powers of two up to `max_num_seqs`, and `max_num_seqs` itself."""
    return powers_of_two(1, max_num_seqs)


def powers_of_two(smallest: int, largest: int) -> tuple[int, ...]:
    """From `smallest` on, times 2 each, as far as they are below `largest`; and `largest` itself."""
    return _multiples(smallest, largest, 2)


def powers_of_four(smallest: int, largest: int) -> tuple[int, ...]:
    """From `smallest` on, times 4 each, as far as they are below `largest`; and `largest` itself."""
    return _multiples(smallest, largest, 4)


def _multiples(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    sizes = [largest]
    while smallest < largest:
        sizes.append(smallest)
        smallest *= factor
    return tuple(sorted(sizes))


def require_ascending(capture_sizes: Sequence[int]) -> None:
    """Refuses capture sizes that are none, or not ascending and distinct."""
    if not capture_sizes or list(capture_sizes) != sorted(set(capture_sizes)):
        raise ConfigError(
            f"capture sizes {list(capture_sizes)} are not one or more, ascending and distinct",
            "list each size once, the smallest first",
        )


def reachable_sizes(capture_sizes: Sequence[int], most_tokens: int) -> tuple[int, ...]:
    """The ascending `capture_sizes` that steps of up to `most_tokens` run at: up to the first that holds so many."""
    return tuple(capture_sizes[: bisect_left(capture_sizes, most_tokens) + 1])


def profiled_shapes(
    *,
    max_num_seqs: int,
    num_speculative_tokens: int,
    max_num_batched_tokens: int,
    capture_sizes: Sequence[int],  # ascending
    context_len: int,
    num_reqs: Sequence[int] = (),  # the counts of requests; the powers of two up to the most where none are named
) -> list[StepShape]:
    """The verify steps that price every batch without prompts: n requests by the sizes that n to n (1 + K) tokens run
    at.

    Those are the captured sizes, of which the largest may hold more than n (1 + K) tokens, and the tail past the
    capture limit. More tokens come only with a prompt, and no such step is among these.
    """
    require_ascending(capture_sizes)
    query_len, pairs = 1 + num_speculative_tokens, []
    tail = tail_sizes(capture_sizes[-1], min(max_num_seqs * query_len, max_num_batched_tokens))
    for count in num_reqs or request_grid(max_num_seqs):
        most = min(count * query_len, max_num_batched_tokens)
        sizes = {size for size in (*capture_sizes, *tail) if count <= size <= most}
        if padded_size(most, capture_sizes) not in sizes:
            sizes.add(most)
        if count > capture_sizes[-1]:
            sizes.add(count)  # without drafts, past every graph
        pairs += [(count, size) for size in sorted(sizes)]
    return [StepShape(num_reqs=n, num_tokens=t, context_len=context_len) for n, t in pairs]


def padded_size(num_tokens: int, capture_sizes: Sequence[int]) -> int:
    """The smallest of the ascending `capture_sizes` that holds `num_tokens`; `num_tokens` itself where none does."""
    index = bisect_left(capture_sizes, num_tokens)
    return capture_sizes[index] if index < len(capture_sizes) else num_tokens


def even_query_lens(num_reqs: int, num_tokens: int) -> tuple[int, ...]:
    """`num_tokens` over `num_reqs` requests as evenly as whole tokens allow, the longer ones first."""
    base, extra = divmod(num_tokens, num_reqs)
    return tuple(base + (row < extra) for row in range(num_reqs))


def prompt_lens(num_tokens: int, prompt_len: int) -> tuple[int, ...]:
    """As few prompts of up to `prompt_len` tokens as hold `num_tokens`, as even as whole tokens allow."""
    return even_query_lens(-(-num_tokens // prompt_len), num_tokens) if num_tokens else ()


def ragged_query_lens(num_reqs: int, num_tokens: int, num_speculative_tokens: int) -> tuple[int, ...]:
    """`num_tokens` over `num_reqs` requests as unevenly as K drafts each allow; evenly where those do not hold them.

    Those with all their drafts stand evenly among the others, as admission leaves them.
    """
    query_len = 1 + num_speculative_tokens
    if num_tokens > num_reqs * query_len:
        return even_query_lens(num_reqs, num_tokens)
    full, rest = divmod(num_tokens - num_reqs, num_speculative_tokens)
    drafts = [num_speculative_tokens] * full + [rest] * (full < num_reqs)
    lens = [1] * num_reqs
    for index, count in enumerate(drafts):
        lens[index * num_reqs // len(drafts)] += count
    return tuple(lens)


def spread_lens(count: int, mean: float, spread: Sequence[float]) -> tuple[int, ...]:
    """`count` lengths of that mean, at the middles of as many equal parts of the distribution; long beside short."""
    relative = [quantile(spread, (2 * index + 1) / (2 * count)) for index in range(count)]
    scale = mean * count / sum(relative)
    # From the outside in: the longest is next to the shortest, and no part of a batch is all long.
    order = [index // 2 if index % 2 == 0 else count - 1 - index // 2 for index in range(count)]
    ends = [math.floor(end + 0.5) for end in accumulate((relative[index] * scale for index in order), initial=0.0)]
    return tuple(end - start for start, end in pairwise(ends))


def quantile(spread: Sequence[float], place: float) -> float:
    """Linear between the evenly spaced quantiles."""
    at = place * (len(spread) - 1)
    low = min(int(at), len(spread) - 1)
    high = min(low + 1, len(spread) - 1)
    return spread[low] + (spread[high] - spread[low]) * (at - low)
