"""Masks of accepted drafts: the vectorised one is the plain one, and both are right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specplan.device import accepted_counts, accepted_prefix_mask, accepted_slot_mapping
from specplan.device.acceptance import accepted_prefix_mask_reference
from specplan.errors import ConfigError

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
        ([3, 4, 5], [[3, 4]], [3], [True, True, False]),  # past the last column there is nothing to match
        ([3, 9, 9], [[3], [9]], [1, 0], [True, False, False]),  # past the last request's drafts there is padding
        ([3, 3], [[], []], [1, 1], [False, False]),
    ],
)
def test_true_up_to_the_first_mismatch(
    mask_of: object, drafts: list[int], sampled: list[list[int]], num_drafts: list[int], expected: list[bool]
) -> None:
    said = torch.tensor(sampled, dtype=torch.int64)
    mask = mask_of(torch.tensor(drafts, dtype=torch.int64), said, torch.tensor(num_drafts))
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


def test_nothing_is_written_on_reject() -> None:
    mask = torch.tensor([True, False, True, False])
    slots = accepted_slot_mapping(torch.tensor([16, 17, 48, 49], dtype=torch.int32), mask)
    assert slots.tolist() == [16, -1, 48, -1]
    assert slots.dtype == torch.int32
    cache = torch.zeros(64)
    cache[slots[slots >= 0]] = 1.0  # as a cache write that skips negative slots
    assert cache.nonzero().flatten().tolist() == [16, 48]


@BOTH
@pytest.mark.parametrize(
    ("drafts", "sampled", "num_drafts", "words"),
    [
        (torch.zeros(2, 2), torch.zeros(2, 2), torch.ones(2), r"drafts of shape \[2, 2\]"),
        (torch.zeros(2), torch.zeros(2), torch.ones(2), r"samples of \[2\]"),
        (torch.zeros(2), torch.zeros(3, 2), torch.ones(2), r"counts of \[2\]"),
        (torch.zeros(2), torch.zeros(2, 2), torch.tensor([2, 1]), "2 drafts, and counts from 1 that sum to 3"),
        (torch.zeros(2), torch.zeros(2, 2), torch.tensor([-1, 3]), "counts from -1"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    mask_of: object, drafts: torch.Tensor, sampled: torch.Tensor, num_drafts: torch.Tensor, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        mask_of(drafts.long(), sampled.long(), num_drafts.long())


@BOTH
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
def test_what_cannot_hold_minus_one_is_refused(mask_of: object, dtype: torch.dtype) -> None:
    """255 of uint8 would be taken for padding, and a mask of booleans would not index."""
    fine = [torch.zeros(2, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, dtype=torch.int16)]
    for place in range(3):
        tensors = [tensor.to(dtype) if index == place else tensor for index, tensor in enumerate(fine)]
        with pytest.raises(ConfigError, match="expected signed integers"):
            mask_of(*tensors)
    with pytest.raises(ConfigError, match="expected signed integers"):
        accepted_slot_mapping(torch.zeros(2, dtype=dtype), torch.ones(2, dtype=torch.bool))
    with pytest.raises(ConfigError, match="a mask of"):
        accepted_slot_mapping(torch.zeros(1, dtype=torch.int32), torch.ones(2, dtype=torch.bool))
