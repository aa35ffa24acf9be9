from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specplan.planning.prices import MixedPrices, StepPrices, VerifyPrices
from specplan.simulation.replay import ReplayCase, Workload, replay, replay_steps
from specplan.simulation.replay_fast import replay_fast


def random_prices(rng: np.random.Generator, max_num_reqs: int, max_num_tokens: int, k: int) -> StepPrices:
    """One to three contexts; padded, smooth or flat."""
    num_contexts = int(rng.integers(1, 4))
    shape = (num_contexts, max_num_reqs + 1, max_num_tokens + 1)
    bucket = int(rng.choice([1, 4, 8]))
    tokens = np.ceil(np.arange(max_num_tokens + 1) / bucket) * bucket
    slope = rng.choice([0.0, 0.01, 0.1])
    verify_ms = 1 + rng.random((*shape[:2], 1)) + slope * tokens
    verify = VerifyPrices(
        contexts=np.sort(rng.choice(80, num_contexts, replace=False)).astype(np.float64),
        verify_ms=np.broadcast_to(verify_ms, shape).copy(),
        extrapolated=rng.random(shape) < 0.2,
        context_ms=rng.choice([0.0, 0.01]),
        furthest_context=rng.choice([30.0, np.inf]),
        capture_limit=int(rng.integers(0, max_num_tokens)),
    )
    return StepPrices(
        verify=verify,
        mixed=random_mixed_prices(rng, max_num_reqs, max_num_tokens, k) if rng.random() < 0.7 else None,
        draft_ms=rng.random((k + 1, max_num_reqs + 1)),
        overhead_ms=rng.choice([0.0, 0.1, 1.0]) * rng.random(max_num_reqs + 1),
        draft_prefill_ms=rng.choice([0.0, 0.1]) * np.sort(rng.random(max_num_tokens + 1)),
        feed_ms=rng.random(max_num_reqs + 1) if rng.random() < 0.3 else None,
        feed_len=int(rng.integers(1, 3)),
    )


def with_holes(rng: np.random.Generator, prices: StepPrices) -> StepPrices:
    """Sizes without a cost, as exact tables have them: now and then all."""
    verify_ms = prices.verify.verify_ms
    verify_ms[rng.random(verify_ms.shape) < rng.choice([0.0, 0.3, 1.0])] = np.inf
    return prices


def random_mixed_prices(rng: np.random.Generator, max_num_reqs: int, max_num_tokens: int, k: int) -> MixedPrices:
    """One to three places on each axis, of which some steps are past the last."""
    most = (80, max_num_reqs + 2, k + 2, max_num_tokens)
    axes = [
        np.sort(rng.choice(end, min(int(rng.integers(1, 4)), end), replace=False)).astype(np.float64) for end in most
    ]
    return MixedPrices(
        contexts=axes[0],
        num_verifying=axes[1],
        drafts=axes[2],
        prompt_tokens=axes[3] + 1,
        ms=0.5 + rng.random(tuple(map(len, axes))),
    )


def random_case(seed: int) -> tuple[ReplayCase, np.ndarray]:
    rng = np.random.default_rng(seed)
    num_requests, concurrency, k = int(rng.integers(1, 30)), int(rng.integers(1, 7)), int(rng.integers(1, 6))
    max_tokens = concurrency * (1 + k) + int(rng.integers(0, 40))
    output_len = rng.integers(1, 15, num_requests).astype(np.int32)
    num_rows = max(int((output_len - 1).sum()), 1)
    # Coarse values tie within and across requests.
    confidence = rng.choice([0.0, 0.5, 0.9, 1.0, 0.123, rng.random()], size=(num_rows, k)).astype(np.float32)
    prices = random_prices(rng, concurrency, max_tokens, k)
    case = ReplayCase(
        workload=Workload(
            accepted_len=rng.integers(0, 6, num_rows).astype(np.int32),
            first_row=np.concatenate(([0], np.cumsum(output_len - 1)[:-1])).astype(np.int64),
            prompt_len=rng.integers(0, 50, num_requests).astype(np.int32),
            output_len=output_len,
        ),
        concurrency=concurrency,
        max_num_batched_tokens=max_tokens,
        num_drafts=int(rng.integers(0, k + 1)) if seed % 4 == 0 else k,
        confidence=None if seed % 4 == 0 else confidence,
        lag=seed % 3,
        prices=prices,
        planner_prices=with_holes(rng, random_prices(rng, concurrency, max_tokens, k)) if seed % 5 == 0 else prices,
        half_widths=random_prices(rng, concurrency, max_tokens, k) if seed % 3 == 0 else None,
    )
    return case, rng.integers(0, num_requests, num_requests)


def random_ema_case(seed: int) -> tuple[ReplayCase, np.ndarray]:
    """K of 1 to 16, and stretches in which most drafts are accepted, few, or about the share that k hovers at."""
    rng = np.random.default_rng(seed)
    case, order = random_case(seed)
    k = int(rng.choice([1, 2, 3, 5, 8, 16]))
    num_rows = len(case.workload.accepted_len)
    share = np.repeat(rng.choice([0.0, 0.3, 0.6, 1.0], num_rows // 8 + 1), 8)[:num_rows]
    max_tokens = case.concurrency * (1 + k) + int(rng.integers(0, 40))
    prices = random_prices(rng, case.concurrency, max_tokens, k)
    prices.draft_ms[: max(1, k // 4)] = np.nan  # never drafted
    return (
        replace(
            case,
            workload=replace(case.workload, accepted_len=rng.binomial(k, share).astype(np.int32)),
            max_num_batched_tokens=max_tokens,
            num_drafts=k,
            is_ema=True,
            confidence=None,
            prices=prices,
            planner_prices=prices,
            half_widths=prices if seed % 2 else None,
        ),
        order,
    )


@pytest.mark.parametrize("seed", range(60))
def test_equals_the_reference_to_the_bit(seed: int) -> None:
    case, order = random_case(seed)
    assert replay_fast(case, order) == replay(case, order)


@pytest.mark.parametrize("seed", range(60))
def test_ema_equals_the_reference_to_the_bit(seed: int) -> None:
    case, order = random_ema_case(seed)
    assert replay_fast(case, order) == replay(case, order)


def test_ema_rounds_as_the_reference_does(make_case: Any, make_prices: Any) -> None:
    """A ratio that rounding alone puts below 0.48: another order of operations keeps k at 7."""
    accepted = np.full(30, 3)
    accepted[[0, 7, 9, 11]] = 6, 1, 1, 0  # the rows that the first four steps stand on
    prices = make_prices(np.ones(20), max_num_reqs=1, draft_ms=np.arange(8.0))
    case, order = make_case("ema", accepted_lens=[accepted] * 8, prices=prices), np.arange(8)
    steps = list(replay_steps(case, case.closed_loop(order)))
    assert [step.draft_budget for step in steps[1:6]] == [7, 7, 7, 7, 6]
    assert replay_fast(case, order) == replay(case, order)


def test_the_random_ema_cases_move_k_both_ways() -> None:
    """And meet steps that only prefill after k has moved: without these, equality above would say little."""
    falls = rises = prefills = 0
    for seed in range(60):
        case, order = random_ema_case(seed)
        k = case.num_drafts
        for step in replay_steps(case, case.closed_loop(order)):
            if step.num_verifying:
                drafts = step.draft_budget // step.num_verifying
                falls, rises, k = falls + (drafts < k), rises + (drafts > k), drafts
            else:
                prefills += k < case.num_drafts
    assert min(falls, rises, prefills) > 50
