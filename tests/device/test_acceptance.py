"""Masks of accepted drafts: the vectorised one is the plain one, and both are right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specplan.device import accepted_counts, accepted_prefix_mask
from specplan.device.acceptance import accepted_prefix_mask_reference

BOTH = pytest.mark.parametrize("mask_of", [accepted_prefix_mask, accepted_prefix_mask_reference])


@BOTH
@pytest.mark.parametrize(
    ("drafts", "sampled", "num_drafts", "expected"),
    [
        # The first draft of the second request belongs to the second request.
        ([10, 11, 20], [[10, 99, 0], [20, 0, 0]], [2, 1], [True, False, True]),
        ([1, 2, 3, 4], [[1, 2, 0, 4]], [4], [True, True, False, False]),
        ([5, 6], [[9, 9], [5, 6], [9, 9]], [0, 2, 0], [True, True]),  # zero-draft requests on both sides
        ([7], [[8]], [1], [False]),  # a first-token mismatch
        ([-1, 3], [[-1, 3]], [2], [False, False]),  # padding matches nothing, not even padding
        ([3, 4], [[3, -1]], [2], [True, False]),
        ([], [[1], [2]], [0, 0], []),
    ],
)
def test_true_up_to_the_first_mismatch(
    mask_of: object, drafts: list[int], sampled: list[list[int]], num_drafts: list[int], expected: list[bool]
) -> None:
    mask = mask_of(torch.tensor(drafts, dtype=torch.int64), torch.tensor(sampled), torch.tensor(num_drafts))
    assert mask.dtype == torch.bool
    assert mask.tolist() == expected


@BOTH
def test_no_requests(mask_of: object) -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert mask_of(empty, torch.zeros(0, 4, dtype=torch.int64), empty).shape == (0,)


@given(
    rows=st.lists(st.lists(st.tuples(st.integers(-1, 1), st.integers(-1, 1)), max_size=5), max_size=6),
    extra_columns=st.integers(0, 2),
)
def test_vectorised_equals_plain(rows: list[list[tuple[int, int]]], extra_columns: int) -> None:
    columns = max((len(row) for row in rows), default=0) + extra_columns
    drafts = torch.tensor([draft for row in rows for draft, _ in row], dtype=torch.int64)
    sampled = torch.tensor(
        [[token for _, token in row] + [0] * (columns - len(row)) for row in rows], dtype=torch.int64
    ).reshape(len(rows), columns)
    num_drafts = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    mask = accepted_prefix_mask(drafts, sampled, num_drafts)
    assert torch.equal(mask, accepted_prefix_mask_reference(drafts, sampled, num_drafts))
    counts = accepted_counts(mask, num_drafts)
    assert counts.tolist() == [int(part.sum()) for part in mask.split(num_drafts.tolist())][: len(rows)]
