"""The trimmed batch: offsets that are true on the device, totals and bounds that are true on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specplan.device import compact_batch, host_counts
from specplan.errors import ConfigError


def test_offsets_count_logits_and_tokens_and_the_tail_holds_the_total() -> None:
    cu_num_logits, query_start_loc = compact_batch(torch.tensor([2, 0, 1]), torch.tensor([1, 40, 1]), padded_reqs=5)
    assert cu_num_logits.tolist() == [0, 3, 4, 6, 6, 6]
    assert query_start_loc.tolist() == [0, 3, 43, 45, 45, 45]
    assert cu_num_logits.dtype == query_start_loc.dtype == torch.int32


def test_an_empty_batch_is_all_tail() -> None:
    none = torch.zeros(0, dtype=torch.int32)
    assert [offsets.tolist() for offsets in compact_batch(none, none, padded_reqs=2)] == [[0, 0, 0], [0, 0, 0]]
    assert [offsets.tolist() for offsets in compact_batch(none, none)] == [[0], [0]]


@pytest.mark.parametrize("budget", range(5))
def test_a_batch_with_a_prefill_keeps_totals_and_bounds(budget: int) -> None:
    """Three requests, drafts [2, 2, 0], the third a 40-token prefill, K = 2."""
    scheduled, non_draft = np.array([2, 2, 0]), np.array([1, 1, 40])
    counts = host_counts(scheduled, non_draft, np.array([7, 9, 0]), budget)
    assert counts.total_drafts == budget
    assert counts.total_tokens == 42 + budget
    assert (counts.num_tokens[:2] <= 3).all()
    assert counts.num_tokens[2] == 40
    assert counts.max_query_lens.tolist() == [3, 3, 40]
    assert counts.max_seq_lens.tolist() == [10, 12, 40]
    assert counts.is_exact == (budget in (0, 4))


def test_a_budget_of_zero_leaves_one_logit_a_request() -> None:
    counts = host_counts(np.array([2, 2, 0]), np.array([1, 1, 40]), np.array([7, 9, 0]), 0)
    assert counts.cu_num_logits().tolist() == [0, 1, 2, 3]
    assert counts.num_tokens.tolist() == [1, 1, 40]


def test_what_does_not_divide_goes_to_the_first_rows_with_drafts() -> None:
    counts = host_counts(np.array([7, 7, 7, 0]), np.array([1, 1, 1, 5]), np.zeros(4, dtype=int), 11)
    assert counts.num_drafts.tolist() == [4, 4, 3, 0]


@given(
    scheduled=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    budget=st.integers(0, 90),
    extra=st.integers(0, 4),
)
def test_totals_are_true_whatever_is_admitted(scheduled: list[int], budget: int, extra: int) -> None:
    offered = np.array(scheduled)
    non_draft = np.where(offered > 0, 1, 13)
    counts = host_counts(offered, non_draft, np.zeros(len(offered), dtype=int), budget)
    admitted = min(budget, int(offered.sum()))
    assert counts.total_drafts == admitted
    assert (counts.num_tokens <= np.maximum(1 + offered.max(), non_draft)).all()
    assert (counts.num_drafts[offered == 0] == 0).all()
    assert not counts.is_exact or (counts.num_drafts <= offered).all()
    # The device's offsets end where the host says, however it has shared the budget out.
    trimmed = torch.zeros(len(offered), dtype=torch.int32)
    left = admitted
    for row, most in enumerate(scheduled):
        trimmed[row] = min(left, most)
        left -= int(trimmed[row])
    cu_num_logits, query_start_loc = compact_batch(
        trimmed, torch.from_numpy(non_draft), padded_reqs=len(offered) + extra
    )
    assert int(cu_num_logits[-1]) == counts.cu_num_logits()[-1]
    assert int(query_start_loc[-1]) == counts.total_tokens


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="padded to 1"):
        compact_batch(torch.ones(2), torch.ones(2), padded_reqs=1)
    with pytest.raises(ConfigError, match="draft_budget is -1"):
        host_counts(np.array([1]), np.array([1]), np.array([0]), -1)
    with pytest.raises(ConfigError, match="the fewest drafts of a row -1"):
        host_counts(np.array([-1, 3]), np.array([1, 1]), np.array([0, 0]), 1)


def test_narrow_integers_do_not_wrap() -> None:
    counts = host_counts(np.array([7], np.uint8), np.array([250], np.uint8), np.array([200], np.uint8), 7)
    assert (counts.total_tokens, counts.max_query_lens.tolist(), counts.max_seq_lens.tolist()) == (257, [257], [457])
    _, query_start_loc = compact_batch(torch.tensor([100], dtype=torch.int8), torch.tensor([100], dtype=torch.int8))
    assert query_start_loc.tolist() == [0, 200]
