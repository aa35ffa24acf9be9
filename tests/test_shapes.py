"""Sizes of steps: what is captured, what pads to what."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.errors import ConfigError
from specplan.shapes import (
    EVEN,
    SPREAD,
    StepShape,
    default_capture_sizes,
    even_query_lens,
    padded_size,
    prompt_lens,
    ragged_query_lens,
    request_grid,
    spread_lens,
    tail_sizes,
)


def test_default_capture_sizes_are_vllms() -> None:
    assert default_capture_sizes(8, 0) == (1, 2, 4, 8, 16)
    assert (len(default_capture_sizes(128, 0)), default_capture_sizes(128, 0)[-1]) == (35, 256)
    assert (len(default_capture_sizes(256, 7)), default_capture_sizes(256, 7)[-1]) == (51, 512)
    sizes = default_capture_sizes(512, 16)
    assert len(sizes) == 55
    assert {17, 34, 68} <= set(sizes)
    assert 2176 not in default_capture_sizes(128, 16)
    assert default_capture_sizes(64, 7)[-1] == 512


@given(st.integers(1, 600), st.integers(0, 20), st.integers(1, 4096))
def test_capture_sizes_ascend_within_their_bounds(max_num_seqs: int, k: int, max_num_batched_tokens: int) -> None:
    sizes = default_capture_sizes(max_num_seqs, k, max_num_batched_tokens=max_num_batched_tokens)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] <= min(512, max_num_batched_tokens)


@given(st.integers(1, 700), st.sets(st.integers(1, 512), max_size=20))
def test_padded_size_is_the_least_upper_bound(num_tokens: int, captured: set[int]) -> None:
    sizes = sorted(captured)
    padded = padded_size(num_tokens, sizes)
    above = [size for size in sizes if size >= num_tokens]
    assert padded == (above[0] if above else num_tokens)


@given(st.integers(1, 64), st.integers(0, 600))
def test_even_query_lens_share_out_every_token(num_reqs: int, extra: int) -> None:
    lens = even_query_lens(num_reqs, num_reqs + extra)
    assert (len(lens), sum(lens)) == (num_reqs, num_reqs + extra)
    assert max(lens) - min(lens) <= 1


def test_the_tail_ends_at_the_most_batched_tokens() -> None:
    assert tail_sizes(512, 1024) == (513, 768, 1024)
    assert tail_sizes(512, 8192) == (513, 768, 1024, 2048, 4096, 8192)
    assert tail_sizes(512, 600) == (513, 600)
    assert tail_sizes(512, 512) == ()


def test_the_request_grid_ends_at_the_most_requests() -> None:
    assert request_grid(1) == (1,)
    assert request_grid(64) == (1, 2, 4, 8, 16, 32, 64)
    assert request_grid(48) == (1, 2, 4, 8, 16, 32, 48)


@pytest.mark.parametrize(("num_reqs", "num_tokens", "context_len"), [(0, 1, 0), (2, 1, 0), (1, 1, -1)])
def test_a_step_that_cannot_run_is_refused(num_reqs: int, num_tokens: int, context_len: int) -> None:
    with pytest.raises(ConfigError, match="cannot run"):
        StepShape(num_reqs=num_reqs, num_tokens=num_tokens, context_len=context_len)


def test_limits_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs 0"):
        default_capture_sizes(0, 7)


@given(num_reqs=st.integers(1, 40), extra=st.integers(0, 400), k=st.integers(1, 9))
def test_ragged_queries_are_as_uneven_as_drafts_allow(num_reqs: int, extra: int, k: int) -> None:
    lens = ragged_query_lens(num_reqs, num_reqs + extra, k)
    assert (len(lens), sum(lens), min(lens) >= 1) == (num_reqs, num_reqs + extra, True)
    if extra <= num_reqs * k:
        full, rest = divmod(extra, k)
        assert sorted(lens) == sorted([1 + k] * full + [1 + rest] * bool(rest) + [1] * (num_reqs - full - bool(rest)))
    else:
        assert max(lens) - min(lens) <= 1


@given(count=st.integers(1, 64), mean=st.integers(0, 4000))
def test_spread_lengths_keep_their_mean(count: int, mean: int) -> None:
    lens = spread_lens(count, mean, SPREAD)
    assert sum(lens) == count * mean
    assert mean / 2 - 1 <= min(lens)
    assert max(lens) <= mean * 1.5 + 1
    assert spread_lens(count, mean, EVEN) == (mean,) * count


def test_the_more_requests_the_wider_their_contexts_lie() -> None:
    widths = [sorted(spread_lens(n, 100, SPREAD))[:: max(n - 1, 1)] for n in (1, 2, 4, 64)]
    assert widths == [[100], [75, 125], [63, 137], [51, 149]]


def test_lengths_follow_the_quantiles_and_long_ones_stand_beside_short_ones() -> None:
    skewed = (0.25, 0.5, 0.5, 3.0)
    lens = spread_lens(6, 100, skewed)  # at 1/12, 3/12, ...: 0.3125, 0.4375, 0.5, 0.5, 1.125, 2.375
    assert [round(length * 0.875 / 100, 1) for length in lens] == [0.3, 2.4, 0.4, 1.1, 0.5, 0.5]


@given(num_tokens=st.integers(0, 5000), prompt_len=st.integers(1, 900))
def test_prompts_hold_all_tokens(num_tokens: int, prompt_len: int) -> None:
    lens = prompt_lens(num_tokens, prompt_len)
    assert sum(lens) == num_tokens
    assert all(0 < length <= prompt_len for length in lens)
    assert len(lens) == math.ceil(num_tokens / prompt_len)
