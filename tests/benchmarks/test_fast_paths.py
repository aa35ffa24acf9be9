"""How much sooner each fast path is done than the plain one it is held equal to. Run: make benchmarks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from specplan.costs import build_cost_tables
from specplan.costs.pricing import plan_row, price_rows, reference_row
from specplan.device.acceptance import accepted_prefix_mask, accepted_prefix_mask_reference
from specplan.planning.prices import MixedPrices, StepPrices, VerifyPrices
from specplan.shapes import default_capture_sizes, tail_sizes
from specplan.simulation.replay import ReplayCase, Workload, replay
from specplan.simulation.replay_fast import replay_fast

Compare = Callable[..., None]


@pytest.mark.parametrize("num_reqs", [8, 64, 256])
def test_accepted_prefix_mask(compare: Compare, num_reqs: int) -> None:
    num_drafts = torch.randint(0, 8, (num_reqs,))
    drafts = torch.randint(0, 3, (int(num_drafts.sum()),))
    sampled = torch.randint(0, 3, (num_reqs, 8))
    compare(
        f"mask of accepted drafts, {num_reqs} requests, vectorised against a loop",
        fast=lambda: accepted_prefix_mask(drafts, sampled, num_drafts),
        plain=lambda: accepted_prefix_mask_reference(drafts, sampled, num_drafts),
    )


def test_pricing_a_row(compare: Compare) -> None:
    sizes = np.array([*default_capture_sizes(64, 7), *tail_sizes(512, 4096)])
    ms = np.sqrt(sizes.astype(float))
    source = np.zeros(len(sizes), dtype=np.uint8)

    def vectorised() -> None:
        plan = plan_row(sizes, capture_limit=512, max_size=4096, name="verify")
        price_rows(plan, ms, ms, source, monotone="running-max")

    compare(
        "pricing 4,096 sizes, vectorised against cell by cell",
        fast=vectorised,
        plain=lambda: reference_row(
            sizes.tolist(), ms.tolist(), capture_limit=512, max_size=4096, monotone="running-max"
        ),
    )


@pytest.mark.parametrize("concurrency", [1, 16, 64])
def test_replay(compare: Compare, concurrency: int) -> None:
    tables = build_cost_tables(
        [(1, 0.5), (64, 2.0)],
        [(1, 2.0), (64, 4.0), (256, 9.0), (512, 16.0), (768, 30.0), (1024, 40.0)],
        max_num_reqs=64,
        max_num_tokens=1024,
        capture_limit=512,
    )
    rng = np.random.default_rng(0)
    prices = StepPrices(
        verify=VerifyPrices.from_tables(tables, max_num_reqs=64, max_num_tokens=1024, num_speculative_tokens=7),
        mixed=MixedPrices(
            contexts=np.array([128.0]),
            num_verifying=np.array([0.0, 1.0, 4.0, 16.0, 64.0]),
            drafts=np.array([0.0, 7.0]),
            prompt_tokens=np.array([16.0, 64.0, 256.0, 1024.0]),
            ms=np.sort(rng.uniform(2.0, 60.0, (1, 5, 2, 4)), -1),
        ),
        draft_ms=np.tile(tables.draft_ms, (8, 1)),
        overhead_ms=tables.overhead_ms.copy(),
        draft_prefill_ms=tables.draft_prefill_ms.copy(),
    )
    num_requests, output_len, k = 100, 128, 7
    confidence = rng.uniform(0.3, 1.0, (num_requests * output_len, k)).astype(np.float32)
    accepted_len = np.cumprod(rng.uniform(size=confidence.shape) < confidence, axis=1).sum(axis=1)
    case = ReplayCase(
        workload=Workload(
            accepted_len=accepted_len.astype(np.int32),
            first_row=np.arange(num_requests, dtype=np.int64) * output_len + 1,
            prompt_len=np.full(num_requests, 100, dtype=np.int32),
            output_len=np.full(num_requests, output_len, dtype=np.int32),
        ),
        concurrency=concurrency,
        max_num_batched_tokens=1024,
        num_drafts=k,
        confidence=confidence,
        lag=1,
        prices=prices,
        planner_prices=prices,
    )
    order = np.arange(num_requests, dtype=np.int64)
    compare(
        f"adaptive replay at concurrency {concurrency}, compiled against plain",
        fast=lambda: replay_fast(case, order),
        plain=lambda: replay(case, order),
    )
