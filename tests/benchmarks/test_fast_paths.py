"""How much sooner each fast path is done than the plain one it is held equal to. Run: make benchmarks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from specplan.costs.pricing import plan_row, price_rows, reference_row
from specplan.device.acceptance import accepted_prefix_mask, accepted_prefix_mask_reference
from specplan.shapes import default_capture_sizes, tail_sizes

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
