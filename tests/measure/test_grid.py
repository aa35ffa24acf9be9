"""Which steps a profile measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specplan.errors import ConfigError
from specplan.measure import MeasuredPoint, ProfilePlan
from specplan.shapes import Layout, padded_size

BOTH: tuple[Layout, ...] = ("multi-query", "batch-expansion")


def tiny_plan(layouts: tuple[Layout, ...] = ("multi-query",)) -> ProfilePlan:
    return ProfilePlan(
        max_num_seqs=64, num_speculative_tokens=7, max_num_batched_tokens=1024, contexts=(128,), layouts=layouts
    )


COUNTS = (1, 2, 4, 8, 16, 32, 64)


def verify_sizes(plan: ProfilePlan, mode: str, lengths: str = "even") -> set[tuple[int, int, int]]:
    """Context, requests and tokens of the steps without prompts."""
    return {
        (point.shape.context_len, point.shape.num_reqs, point.shape.num_tokens)
        for point in plan.points()
        if (point.model, point.mode, point.shape.lengths) == ("verify", mode, lengths) and not point.shape.is_mixed
    }


def test_the_tiny_pairs_plan_covers_every_size_a_batch_can_reach() -> None:
    plan = replace(tiny_plan(), contexts=(32, 128))
    assert plan.capture_sizes[-1] == 512
    reachable = {(c, n, t) for c in (32, 128) for n in COUNTS for t in plan.capture_sizes if n <= t <= n * 8}
    assert verify_sizes(plan, "graph") == reachable
    doubled = {(c, n, n << i) for c in (32, 128) for n in COUNTS for i in range(4)}
    assert verify_sizes(plan, "eager") == doubled
    drafts = [point for point in plan.points() if point.model == "draft"]
    assert {point.shape.context_len for point in drafts} == {80}
    assert {(p.shape.num_reqs, p.k) for p in drafts if p.mode == "graph"} == {(n, k) for n in COUNTS for k in range(8)}
    assert {(p.shape.num_reqs, p.k) for p in drafts if p.mode == "eager"} == {(n, k) for n in COUNTS for k in (0, 7)}


def test_no_step_without_prompts_has_more_tokens_than_its_requests_bring() -> None:
    """6 requests of K = 6 bring 42, which run at 48; 16 bring 112, past the limit and eager, as 57 and 84 would."""
    plan = ProfilePlan(
        max_num_seqs=16,
        num_speculative_tokens=6,
        max_num_batched_tokens=4096,
        contexts=(64,),
        capture_sizes=(1, 2, 4, 8, 16, 24, 32, 40, 48, 56),
        num_reqs=(6, 8, 16),
    )
    sizes = verify_sizes(plan, "graph")
    assert {t for _, n, t in sizes if n == 6} == {8, 16, 24, 32, 40, 42}
    assert {t for _, n, t in sizes if n == 8} == {8, 16, 24, 32, 40, 48, 56}
    assert {t for _, n, t in verify_sizes(plan, "eager") if n == 16} == {16, 32, 56} | {57, 84, 112}
    assert max(point.shape.num_tokens for point in plan.points()) == 4096
    assert all(
        point.shape.num_tokens <= point.shape.num_reqs * 7 or point.shape.is_mixed
        for point in plan.points()
        if point.model == "verify"
    )


def test_a_few_ragged_steps_check_the_price_of_even_ones() -> None:
    plan = replace(tiny_plan(), checks_ragged=True)
    parts = {(n, padded_size(n + 7 * n * i // 4, plan.capture_sizes)) for n in COUNTS for i in (1, 2, 3)}
    assert {(1, 8), (2, 16)} < parts  # which are all of the drafts
    assert verify_sizes(plan, "graph", "ragged") == {(128, n, t) for n, t in parts if t < 8 * n}
    assert not verify_sizes(tiny_plan(), "graph", "ragged")


def test_drafting_is_timed_after_a_whole_step_too() -> None:
    """64 requests with K = 7: 2 or 8 tokens each in the first pass, then six passes of one."""
    widest = [point.shape.num_tokens for point in tiny_plan().points() if point.k == 7 and point.shape.num_reqs == 64]
    assert widest == [64 * 8, 64 * 8, 64 * 14]


def test_a_steps_machinery_is_timed_by_its_requests() -> None:
    machinery = [point for point in tiny_plan().points() if point.is_machinery]
    assert {(p.model, p.shape.num_reqs, p.shape.num_tokens) for p in machinery} == {
        *((term, n, 8 * n) for term in ("metadata", "budget", "admission") for n in COUNTS),
        *(("bare-metadata", n, n) for n in COUNTS),
    }


@pytest.mark.parametrize(("max_num_seqs", "k"), [(4, 3), (64, 3), (32, 7), (64, 1), (1, 1)])
def test_every_capture_size_is_measured_by_someone(max_num_seqs: int, k: int) -> None:
    """Those past n (1 + K) are none: a step reaches them with a prompt alone, and then replays no full graph."""
    plan = ProfilePlan(max_num_seqs=max_num_seqs, num_speculative_tokens=k, max_num_batched_tokens=1024, contexts=(64,))
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
    plan = ProfilePlan(**limits, max_num_batched_tokens=max_num_batched_tokens, contexts=(64,), layouts=BOTH)
    points = plan.points()
    alone = replace(plan, layouts=BOTH[:1]).points()
    expanded = points[len(alone) :]
    assert points[: len(alone)] == alone
    assert {point.shape.layout for point in alone} == {"multi-query"}
    assert {(point.model, point.shape.layout) for point in expanded} == {("verify", "batch-expansion")}
    twins = [replace(point, shape=replace(point.shape, layout="multi-query")) for point in expanded]
    assert set(twins) <= set(alone)

    limit = plan.capture_sizes[-1]

    def run(points: list[MeasuredPoint]) -> set[tuple[str, int, int]]:
        return {(p.mode, p.shape.num_reqs, padded_size(p.shape.num_tokens, plan.capture_sizes)) for p in points}

    timed = run([point for point in alone if point.model == "verify" and not point.shape.is_mixed])
    steps = {
        ("graph" if n * (1 + drafts) <= limit else "eager", n, padded_size(n * (1 + drafts), plan.capture_sizes))
        for n in {shape.num_reqs for shape in (point.shape for point in alone)}
        for drafts in range(k + 1)
    }
    assert run(twins) == steps & timed


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
    assert plan.longest_sequence == 136
    prefills = [point.shape for point in plan.points() if point.model == "draft-prefill"]
    assert [shape.num_tokens for shape in prefills] == [1, 4, 16, 64, 256, 1024]
    assert [shape.num_reqs for shape in prefills] == [1, 1, 1, 1, 2, 8]
    assert {shape.context_len for shape in prefills} == {0}


def test_mixed_steps_hold_as_many_prompt_tokens_as_the_others_leave() -> None:
    """64 requests with 8 tokens each leave 512 of 1024."""
    mixed = [point for point in tiny_plan().points() if point.shape.is_mixed]
    assert {(point.model, point.mode, point.k) for point in mixed} == {("verify", "eager", None)}
    grid = [
        (shape.num_verifying, shape.num_drafts, shape.num_prompt_tokens, shape.num_prefilling, shape.context_len)
        for shape in (point.shape for point in mixed)
    ]
    assert grid == [
        (verifying, verifying * k, size, -(-size // 128), 128 if verifying else 0)
        for verifying in (0, 1, 4, 16, 64)
        for k in ((0, 7) if verifying else (0,))
        for size in (1, 4, 16, 64, 256, 1024 - verifying * (1 + k))
    ]
    assert max(shape.num_tokens for shape in (point.shape for point in mixed)) == 1024


def test_half_of_the_drafts_are_timed_as_a_budget_leaves_them() -> None:
    limits = {"max_num_seqs": 4, "num_speculative_tokens": 3, "max_num_batched_tokens": 64, "contexts": (20,)}
    plan = ProfilePlan(**limits, lengths=("spread", "ragged"))
    mixed = [point.shape for point in plan.points() if point.shape.is_mixed]
    drafts = {
        lengths: {(shape.num_verifying, shape.num_drafts) for shape in mixed if shape.lengths == lengths}
        for lengths in ("spread", "ragged")
    }
    assert drafts == {"spread": {(0, 0), (1, 0), (1, 3), (4, 0), (4, 12)}, "ragged": {(1, 1), (4, 4)}}


def test_there_are_never_more_prompts_than_requests() -> None:
    """Caches would be that much larger: a row for each of 64 prompts, each as long as the one that is served."""
    plan = ProfilePlan(max_num_seqs=1, num_speculative_tokens=7, max_num_batched_tokens=8192, contexts=(128,))
    assert (plan.num_cache_rows, plan.longest_sequence) == (2, 8192)
    assert plan.prompts(8192) == (8192,)


def test_prompts_are_as_long_as_the_plan_says() -> None:
    limits = {"max_num_seqs": 4, "num_speculative_tokens": 3, "max_num_batched_tokens": 400, "contexts": (20,)}
    plan = ProfilePlan(**limits, prompt_len=150)
    assert plan.prompts(0) == ()
    assert plan.prompts(7) == (7,)
    assert plan.prompts(400) == (134, 133, 133)
    assert plan.num_cache_rows == 4 + 3
    assert plan.longest_sequence == 134  # a prompt's, not a context's


def test_the_longest_query_holds_the_padding() -> None:
    """A request alone runs its 8 tokens at 20: the queries of a CPU's static step are as long."""
    assert tiny_plan().longest_query == 8
    assert replace(tiny_plan(), max_num_seqs=1, capture_sizes=(1, 20)).longest_query == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0, expected at least 1"),
        ({"max_num_batched_tokens": 63}, "max_num_batched_tokens is 63, expected at least 64"),
        ({"contexts": (1,)}, "context_len is 1, expected at least 2"),
    ],
)
def test_impossible_limits_are_refused(change: dict[str, int], message: str) -> None:
    limits = {"max_num_seqs": 64, "num_speculative_tokens": 7, "max_num_batched_tokens": 1024, "contexts": (128,)}
    with pytest.raises(ConfigError, match=message):
        ProfilePlan(**(limits | change))


@pytest.mark.parametrize("sizes", [(8, 4), (4, 4)])
def test_capture_sizes_ascend(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="ascending and distinct"):
        ProfilePlan(
            max_num_seqs=4, num_speculative_tokens=1, max_num_batched_tokens=8, contexts=(4,), capture_sizes=sizes
        )


def test_lengths_are_timed_apart_and_a_drafters_queries_are_always_alike() -> None:
    limits = {"max_num_seqs": 4, "num_speculative_tokens": 3, "max_num_batched_tokens": 48, "contexts": (20,)}
    even = ProfilePlan(**limits)
    plan = ProfilePlan(**limits, lengths=("spread", "ragged"))
    assert (even.longest_sequence, plan.longest_sequence) == (20 + 4, 27 + 4)
    lengths = {(point.model, point.shape.lengths) for point in plan.points() if not point.is_machinery}
    assert lengths == {("verify", "spread"), ("verify", "ragged"), ("draft", "spread"), ("draft-prefill", "even")}
    of = [point for point in plan.points() if point.shape.lengths == "spread"]
    assert len(of) == len([p for p in even.points() if p.model != "draft-prefill" and not p.is_machinery])


def test_every_point_is_for_one_price_or_for_none() -> None:
    plan = ProfilePlan(
        max_num_seqs=16, num_speculative_tokens=6, max_num_batched_tokens=256, contexts=(64, 128),
        capture_sizes=(1, 2, 4, 8, 16, 24, 32), layouts=BOTH, checks_ragged=True,
    )  # fmt: skip
    regions: dict[str | None, list[MeasuredPoint]] = {}
    for point in plan.points():
        regions.setdefault(plan.region_of(point), []).append(point)
    assert set(regions) == {None, "captured", "smooth", "mixed", "draft", "draft-prefill", "machinery"}
    assert {(point.mode, point.shape.is_mixed) for point in regions["captured"]} == {("graph", False)}
    assert all(point.shape.num_tokens > 32 and point.mode == "eager" for point in regions["smooth"])
    drafts = [(point.shape.num_reqs, point.k) for point in regions["draft"]]
    assert len(drafts) == len(set(drafts)) == 5 * 7
    for point in regions[None]:
        wide = point.model == "draft" and point.shape.num_tokens == point.shape.num_reqs * 12
        apart = point.shape.layout == "batch-expansion" or point.shape.lengths == "ragged" or point.mode == "eager"
        assert wide or apart
