"""Which graph mode adaptive verification runs under, and which batches replay a graph."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.errors import ConfigError, InfeasibleError
from specplan.planning import (
    AttentionSupport,
    GraphMode,
    StepRoute,
    parse_attention,
    parse_graph_mode,
    resolve_graph_mode,
    route_step,
)
from specplan.shapes import default_capture_sizes

ALWAYS = AttentionSupport(kind="always")
WITH_FULL_DECODE = [mode for mode in GraphMode if mode.decode_batches == "full"]


def resolve(wished: str, *, has_piecewise: bool = True, attention: AttentionSupport = ALWAYS, k: int = 7) -> GraphMode:
    return resolve_graph_mode(
        GraphMode(wished), has_piecewise=has_piecewise, attention=attention, num_speculative_tokens=k
    )


def up_to(max_query_len: int) -> AttentionSupport:
    return AttentionSupport(kind="up-to", max_query_len=max_query_len)


@pytest.mark.parametrize(
    ("wished", "has_piecewise", "resolved"),
    [
        ("full", True, "full-and-piecewise"),
        ("full", False, "full-decode-only"),
        ("full-and-piecewise", True, "full-and-piecewise"),
        ("full-and-piecewise", False, "full-decode-only"),
        ("full-decode-only", True, "full-decode-only"),
        ("full-decode-only", False, "full-decode-only"),
    ],
)
def test_modes_resolve_as_in_vllm(wished: str, has_piecewise: bool, resolved: str) -> None:
    assert resolve(wished, has_piecewise=has_piecewise) == resolved


@pytest.mark.parametrize(
    ("wished", "has_piecewise", "reason", "instead"),
    [
        ("none", True, "captures nothing", "--graph-mode full-and-piecewise"),
        ("none", False, "captures nothing", "--graph-mode full-decode-only"),
        ("piecewise", True, "launches attention from the host", "--graph-mode full-and-piecewise"),
        ("piecewise", False, "launches attention from the host", "--graph-mode full-decode-only"),
    ],
)
def test_modes_without_full_decode_graphs_are_refused(
    wished: str, has_piecewise: bool, reason: str, instead: str
) -> None:
    with pytest.raises(InfeasibleError, match=f"^graph mode {wished} {reason}.* decided on the device") as caught:
        resolve(wished, has_piecewise=has_piecewise)
    assert caught.value.hint == f"use {instead}"


@pytest.mark.parametrize("attention", [ALWAYS, up_to(8), up_to(9)])
def test_attention_that_takes_every_trimmed_query(attention: AttentionSupport) -> None:
    assert resolve("full", attention=attention) == "full-and-piecewise"


@pytest.mark.parametrize(
    ("attention", "message", "hint"),
    [
        (up_to(7), r"up to 7 tokens, and 1 \+ K = 8 > 7", "draft at most 6 (-k 6), or use"),
        (up_to(1), r"up to 1 tokens, and 1 \+ K = 8 > 1", "no K fits: use"),
        (AttentionSupport(kind="uniform"), "equal query lengths only, and at K = 7 .* 1 to 8 tokens", "fixed:k"),
        (AttentionSupport(kind="never"), "never part of a full graph, and at K = 7 .* 1 to 8 tokens", "up to 8 tokens"),
    ],
)
def test_attention_that_does_not_is_refused(attention: AttentionSupport, message: str, hint: str) -> None:
    with pytest.raises(InfeasibleError, match=message) as caught:
        resolve("full-and-piecewise", attention=attention)
    assert hint in caught.value.hint


@given(st.sampled_from(WITH_FULL_DECODE), st.booleans(), st.integers(1, 64))
def test_what_resolves_captures_decode_batches_and_no_more_than_exists(
    wished: GraphMode, has_piecewise: bool, k: int
) -> None:
    resolved = resolve(wished, has_piecewise=has_piecewise, k=k)
    assert resolved.decode_batches == "full"
    assert resolved.mixed_batches == ("piecewise" if has_piecewise and wished != "full-decode-only" else "eager")
    assert resolve(resolved, has_piecewise=has_piecewise, k=k) is resolved


@given(st.sampled_from(WITH_FULL_DECODE), st.booleans(), st.integers(1, 64), st.integers(1, 70))
def test_a_bound_is_as_good_as_none_from_1_plus_k_on_and_refused_below(
    wished: GraphMode, has_piecewise: bool, k: int, bound: int
) -> None:
    if bound >= 1 + k:
        bounded = resolve(wished, has_piecewise=has_piecewise, attention=up_to(bound), k=k)
        assert bounded is resolve(wished, has_piecewise=has_piecewise, k=k)
        return
    with pytest.raises(InfeasibleError, match=f"up to {bound} tokens") as caught:
        resolve(wished, has_piecewise=has_piecewise, attention=up_to(bound), k=k)
    if bound > 1:  # the K that the hint names fits
        assert f"-k {bound - 1})" in caught.value.hint
        resolve(wished, has_piecewise=has_piecewise, attention=up_to(bound), k=bound - 1)


@pytest.mark.parametrize("k", [0, -1])
def test_nothing_drafted_is_nothing_to_trim(k: int) -> None:
    with pytest.raises(ConfigError, match=f"K is {k}"):
        resolve("full", k=k)


@pytest.mark.parametrize("text", ["always", "up-to:8", "uniform", "never"])
def test_attention_reads_back_as_it_was_written(text: str) -> None:
    assert parse_attention(text).name == text


@pytest.mark.parametrize("text", ["", "up-to", "up-to:", "up-to:-1", "up-to:0", "up-to:x", "up-to:²", "Always", "8"])
def test_attention_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="attention") as caught:
        parse_attention(text)
    for known in ("always", "up-to:N", "uniform", "never"):
        assert known in caught.value.hint


def test_only_up_to_has_a_bound() -> None:
    with pytest.raises(ConfigError, match="attention uniform with a bound of 8"):
        AttentionSupport(kind="uniform", max_query_len=8)
    with pytest.raises(ConfigError, match="attention up-to with a bound of None"):
        AttentionSupport(kind="up-to")


def test_graph_modes_parse_and_unknown_ones_name_the_known() -> None:
    for mode in GraphMode:
        assert parse_graph_mode(mode.value) is mode
    with pytest.raises(ConfigError, match="unknown graph mode 'FULL'") as caught:
        parse_graph_mode("FULL")
    for mode in GraphMode:
        assert mode.value in caught.value.hint


@pytest.mark.parametrize(
    ("num_tokens", "sizes", "padded_tokens", "mode"),
    [
        (42, (8, 40), 42, "eager"),
        (40, (8, 40), 40, "graph"),
        (9, (8, 40), 40, "graph"),
        (1, (8, 40), 8, "graph"),
        (1, (), 1, "eager"),
    ],
)
def test_a_batch_replays_the_next_size_or_runs_eagerly(
    num_tokens: int, sizes: tuple[int, ...], padded_tokens: int, mode: str
) -> None:
    route = route_step(num_tokens, sizes)
    assert (route.num_tokens, route.padded_tokens, route.mode) == (num_tokens, padded_tokens, mode)


@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 3000))
def test_what_replays_executes_a_captured_size(max_num_seqs: int, k: int, num_tokens: int) -> None:
    sizes = default_capture_sizes(max_num_seqs, k)
    route = route_step(num_tokens, sizes)
    if route.mode == "graph":
        assert route.padded_tokens in sizes
        assert not any(num_tokens <= size < route.padded_tokens for size in sizes)
    else:
        assert num_tokens > sizes[-1]
        assert route == StepRoute(num_tokens=num_tokens, padded_tokens=num_tokens, mode="eager")


def test_a_batch_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="a batch of 0 tokens"):
        route_step(0, (8,))
