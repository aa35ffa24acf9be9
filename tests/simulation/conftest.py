from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specplan.planning import Policy, parse_policy
from specplan.planning.prices import StepPrices, VerifyPrices
from specplan.simulation.replay import ReplayCase, Workload

MakeCase = Callable[..., ReplayCase]
MakePrices = Callable[..., StepPrices]


@pytest.fixture
def make_prices() -> MakePrices:
    """Prices of one context, by tokens and, of drafting, by k (one for any), whatever the number of requests."""

    def make(
        verify_ms: Any,
        *,
        max_num_reqs: int,
        draft_ms: Any = 0.0,
        overhead_ms: Any = 0.0,  # one for any number of requests, or one for each
        draft_prefill_ms: Any = 0.0,  # the same, of prompt tokens
    ) -> StepPrices:
        row = np.asarray(verify_ms, dtype=np.float64)
        table = np.broadcast_to(row, (1, max_num_reqs + 1, len(row))).copy()
        verify = VerifyPrices(contexts=np.zeros(1), verify_ms=table, extrapolated=np.zeros(table.shape, dtype=np.bool_))
        by_k = np.full(8, draft_ms) if np.isscalar(draft_ms) else np.asarray(draft_ms, dtype=np.float64)
        return StepPrices(
            verify=verify,
            mixed=None,
            draft_ms=np.repeat(by_k[:, None], max_num_reqs + 1, axis=1),
            overhead_ms=np.broadcast_to(np.float64(overhead_ms), max_num_reqs + 1).copy(),
            draft_prefill_ms=np.broadcast_to(np.float64(draft_prefill_ms), len(row)).copy(),
        )

    return make


@pytest.fixture
def make_case() -> MakeCase:
    """A policy at a concurrency, on a workload given row by row."""

    def make(
        policy: str | Policy,
        *,
        accepted_lens: list[Any],  # per request, from position 1 on
        prices: StepPrices,
        confidence: NDArray[np.float32] | None = None,
        prompt_len: int | list[int] = 1,
        concurrency: int = 1,
        k: int = 7,
        lag: int = 1,
        max_num_batched_tokens: int | None = None,
        planner_prices: StepPrices | None = None,
    ) -> ReplayCase:
        policy = parse_policy(policy) if isinstance(policy, str) else policy
        lens = np.array([len(steps) for steps in accepted_lens])
        accepted_len = np.concatenate([np.asarray(steps, dtype=np.int32) for steps in accepted_lens])
        if policy.kind == "oracle":
            confidence = (np.arange(k) < accepted_len[:, None]).astype(np.float32)
        return ReplayCase(
            workload=Workload(
                accepted_len=accepted_len,
                first_row=np.concatenate(([0], np.cumsum(lens)[:-1])).astype(np.int64),
                prompt_len=np.broadcast_to(np.asarray(prompt_len, dtype=np.int32), lens.shape).copy(),
                output_len=(lens + 1).astype(np.int32),
            ),
            concurrency=concurrency,
            max_num_batched_tokens=max_num_batched_tokens or prices.verify.verify_ms.shape[2] - 1,
            num_drafts=policy.num_drafts(k),
            is_ema=policy.kind == "ema",
            confidence=confidence if policy.kind in ("adaptive", "oracle") else None,
            lag=0 if policy.kind == "oracle" else lag,
            prices=prices,
            planner_prices=planner_prices or prices,
        )

    return make
