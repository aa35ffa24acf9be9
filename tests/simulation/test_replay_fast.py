from __future__ import annotations

import numpy as np
import pytest

from specplan.simulation.prices import StepPrices, VerifyPrices
from specplan.simulation.replay import ReplayCase, Workload, replay
from specplan.simulation.replay_fast import replay_fast


def random_prices(rng: np.random.Generator, max_num_reqs: int, max_num_tokens: int) -> StepPrices:
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
    )
    return StepPrices(verify=verify, draft_ms=rng.random(max_num_reqs + 1), overhead_ms=float(rng.choice([0, 0.1])))


@pytest.mark.parametrize("seed", range(60))
def test_equals_the_reference_to_the_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_requests, concurrency, k = int(rng.integers(1, 30)), int(rng.integers(1, 7)), int(rng.integers(1, 6))
    max_tokens = concurrency * (1 + k) + int(rng.integers(0, 40))
    output_len = rng.integers(1, 15, num_requests).astype(np.int32)
    num_rows = max(int((output_len - 1).sum()), 1)
    # Coarse values tie within and across requests.
    confidence = rng.choice([0.0, 0.5, 0.9, 1.0, 0.123, rng.random()], size=(num_rows, k)).astype(np.float32)
    prices = random_prices(rng, concurrency, max_tokens)
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
        planner_prices=random_prices(rng, concurrency, max_tokens) if seed % 5 == 0 else prices,
    )
    order = rng.integers(0, num_requests, num_requests)
    assert replay_fast(case, order) == replay(case, order)
