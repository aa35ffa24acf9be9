"""Which steps a profile measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specplan.errors import ConfigError
from specplan.measure import MeasuredPoint, ProfilePlan
from specplan.shapes import Layout, padded_size

BOTH: tuple[Layout, ...] = ("multi-query", "batch-expansion")


def tiny_plan(layouts: tuple[Layout, ...] = ("multi-query",)) -> ProfilePlan:
    return ProfilePlan.default(
        max_num_seqs=64, num_speculative_tokens=7, max_num_batched_tokens=1024, context_len=128, layouts=layouts
    )


def test_the_tiny_pairs_plan_covers_every_size_a_batch_can_reach() -> None:
    plan = tiny_plan()
    assert plan.capture_sizes[-1] == 512
    for mode in ("graph", "eager"):
        verify = {
            (point.shape.num_reqs, point.shape.num_tokens)
            for point in plan.points()
            if point.mode == mode and point.model == "verify" and not point.shape.is_mixed
        }
        reachable = {(n, t) for n in (1, 2, 4, 8, 16, 32, 64) for t in plan.capture_sizes if n <= t <= n * 8}
        reachable |= {(64, t) for t in plan.capture_sizes if t >= 64}
        tail = {(64, 768), (64, 1024)} if mode == "eager" else set()
        assert verify == reachable | tail
        drafts = {
            (point.shape.num_reqs, point.k) for point in plan.points() if point.mode == mode and point.model == "draft"
        }
        assert drafts == {(n, k) for n in (1, 2, 4, 8, 16, 32, 64) for k in range(8)}


@pytest.mark.parametrize(("max_num_seqs", "k"), [(4, 3), (64, 3), (32, 7), (64, 1), (1, 1)])
def test_every_capture_size_is_measured_by_someone(max_num_seqs: int, k: int) -> None:
    """Also those past n (1 + K), which a step reaches when it carries a prefill."""
    plan = ProfilePlan.default(
        max_num_seqs=max_num_seqs, num_speculative_tokens=k, max_num_batched_tokens=1024, context_len=64
    )
    graph = {point.shape.num_tokens for point in plan.points() if point.mode == "graph" and point.model == "verify"}
    assert graph == set(plan.capture_sizes)


@pytest.mark.parametrize("layouts", [BOTH[:1], BOTH], ids=str)
def test_points_are_distinct_and_in_a_stable_order(layouts: tuple[Layout, ...]) -> None:
    points = tiny_plan(layouts).points()
    assert len(points) == len({(p.model, p.mode, p.k, p.shape) for p in points})
    assert points == tiny_plan(layouts).points()


@pytest.mark.parametrize(
    ("max_num_seqs", "k", "max_num_batched_tokens"), [(64, 7, 1024), (6, 2, 48), (256, 7, 4096), (1, 1, 4)]
)
def test_batch_expansion_is_timed_where_a_step_of_k_drafts_each_runs(
    max_num_seqs: int, k: int, max_num_batched_tokens: int
) -> None:
    """And nowhere else: at the padded size and in the mode of its multi-query twin, of which it changes nothing."""
    limits = {"max_num_seqs": max_num_seqs, "num_speculative_tokens": k}
    plan = ProfilePlan.default(**limits, max_num_batched_tokens=max_num_batched_tokens, context_len=64, layouts=BOTH)
    points = plan.points()
    alone = replace(plan, layouts=BOTH[:1]).points()
    expanded = points[len(alone) :]
    assert points[: len(alone)] == alone
    assert {point.shape.layout for point in alone} == {"multi-query"}
    assert {(point.model, point.shape.layout) for point in expanded} == {("verify", "batch-expansion")}
    twins = [replace(point, shape=replace(point.shape, layout="multi-query")) for point in expanded]
    assert set(twins) <= set(alone)

    limit = plan.capture_sizes[-1]
    timed = {(point.mode, point.shape.num_reqs, point.shape.num_tokens) for point in alone if point.model == "verify"}
    steps = {
        ("graph" if n * (1 + drafts) <= limit else "eager", n, padded_size(n * (1 + drafts), plan.capture_sizes))
        for n in {shape.num_reqs for shape in (point.shape for point in alone)}
        for drafts in range(k + 1)
    }
    assert {(point.mode, point.shape.num_reqs, point.shape.num_tokens) for point in twins} == steps & timed


def test_the_tiny_pairs_plan_compares_every_number_of_drafts() -> None:
    compared = {
        (point.shape.num_reqs, point.shape.num_tokens)
        for point in tiny_plan(BOTH).points()
        if point.shape.layout == "batch-expansion"
    }
    sizes = tiny_plan().capture_sizes
    assert compared == {(n, padded_size(n * (1 + k), sizes)) for n in (1, 2, 4, 8, 16, 32, 64) for k in range(8)}
    assert len(compared) == 45


@pytest.mark.parametrize("layouts", [(), ("batch-expansion",), ("multi-query", "multi-query")], ids=str)
def test_multi_query_is_priced_so_it_is_timed(layouts: tuple[Layout, ...]) -> None:
    with pytest.raises(ConfigError, match="expected multi-query, which tables price, and each once"):
        tiny_plan(layouts)


def test_a_drafters_tokens_are_those_of_all_its_passes() -> None:
    tokens = [tiny_plan().draft_point("graph", 4, k).shape.num_tokens for k in (0, 1, 2, 7)]
    assert tokens == [8, 8, 12, 32]


def test_a_drafters_prefill_runs_the_prompts_of_a_mixed_step() -> None:
    plan = tiny_plan()
    assert plan.longest_sequence == 144
    prefills = [point.shape for point in plan.points() if point.model == "draft-prefill"]
    assert [shape.num_tokens for shape in prefills] == [1, 4, 16, 64, 256, 1024]
    assert [shape.num_reqs for shape in prefills] == [1, 1, 1, 1, 2, 8]
    assert {shape.context_len for shape in prefills} == {0}


def test_mixed_steps_are_a_whole_grid_of_requests_drafts_and_prompt_tokens() -> None:
    mixed = [point for point in tiny_plan().points() if point.shape.is_mixed]
    assert {(point.model, point.mode, point.k) for point in mixed} == {("verify", "eager", None)}
    grid = [
        (shape.num_verifying, shape.num_drafts, shape.num_prompt_tokens, shape.num_prefilling, shape.context_len)
        for shape in (point.shape for point in mixed)
    ]
    assert grid == [
        (verifying, verifying * k, size, prompts, 128 if verifying else 0)
        for size, prompts in ((1, 1), (4, 1), (16, 1), (64, 1), (256, 2), (1024, 8))
        for verifying in (0, 1, 4, 16, 64)
        for k in ((0, 7) if verifying else (0,))
    ]


def test_half_of_the_drafts_are_timed_as_a_budget_leaves_them() -> None:
    limits = {"max_num_seqs": 4, "num_speculative_tokens": 3, "max_num_batched_tokens": 64, "context_len": 20}
    plan = ProfilePlan.default(**limits, lengths=("spread", "ragged"))
    mixed = [point.shape for point in plan.points() if point.shape.is_mixed]
    drafts = {
        lengths: {(shape.num_verifying, shape.num_drafts) for shape in mixed if shape.lengths == lengths}
        for lengths in ("spread", "ragged")
    }
    assert drafts == {"spread": {(0, 0), (1, 0), (1, 3), (4, 0), (4, 12)}, "ragged": {(1, 1), (4, 4)}}


def test_there_are_never_more_prompts_than_requests() -> None:
    """Caches would be that much larger: a row for each of 64 prompts, each as long as the one that is served."""
    plan = ProfilePlan.default(max_num_seqs=1, num_speculative_tokens=7, max_num_batched_tokens=8192, context_len=128)
    assert (plan.num_cache_rows, plan.longest_sequence) == (2, 8320)
    assert plan.prompts(8192) == (8192,)


def test_prompts_are_as_long_as_the_plan_says() -> None:
    limits = {"max_num_seqs": 4, "num_speculative_tokens": 3, "max_num_batched_tokens": 400, "context_len": 20}
    plan = ProfilePlan.default(**limits, prompt_len=150)
    assert plan.prompts(0) == ()
    assert plan.prompts(7) == (7,)
    assert plan.prompts(400) == (134, 133, 133)
    assert plan.num_cache_rows == 4 + 3
    assert plan.longest_sequence == 134  # a prompt's, not a context's


def test_the_longest_query_holds_the_tail() -> None:
    assert tiny_plan().longest_query == 16  # 1024 tokens over 64 requests
    assert isinstance(tiny_plan().points()[-1], MeasuredPoint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0, expected at least 1"),
        ({"max_num_batched_tokens": 63}, "max_num_batched_tokens is 63, expected at least 64"),
        ({"context_len": 1}, "context_len is 1, expected at least 2"),
    ],
)
def test_impossible_limits_are_refused(change: dict[str, int], message: str) -> None:
    limits = {"max_num_seqs": 64, "num_speculative_tokens": 7, "max_num_batched_tokens": 1024, "context_len": 128}
    with pytest.raises(ConfigError, match=message):
        ProfilePlan.default(**(limits | change))


@pytest.mark.parametrize("sizes", [(), (8, 4), (4, 4)])
def test_capture_sizes_ascend(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="ascending and distinct"):
        ProfilePlan(
            max_num_seqs=4, num_speculative_tokens=1, max_num_batched_tokens=8, context_len=4, capture_sizes=sizes
        )


def test_lengths_are_timed_apart_and_a_drafters_queries_are_always_alike() -> None:
    limits = {"max_num_seqs": 4, "num_speculative_tokens": 3, "max_num_batched_tokens": 48, "context_len": 20}
    even = ProfilePlan.default(**limits)
    plan = ProfilePlan.default(**limits, lengths=("spread", "ragged"))
    assert (even.longest_sequence, plan.longest_sequence) == (20 + 12, 27 + 12)
    lengths = {(point.model, point.shape.lengths) for point in plan.points()}
    assert lengths == {("verify", "spread"), ("verify", "ragged"), ("draft", "spread"), ("draft-prefill", "even")}
    of = [point for point in plan.points() if point.shape.lengths == "spread"]
    assert len(of) == len([point for point in even.points() if point.model != "draft-prefill"])
