"""Three ways to run the mask, and what the one that captures does with shapes, failures and old buffers."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specplan.device import AcceptanceMask, ScvMode, accepted_prefix_mask
from specplan.device.scv import SCV_MODE_VARIABLE, GraphMask, MaskKey
from specplan.errors import ConfigError, MeasurementError

Batch = tuple[Tensor, Tensor, Tensor]

rows_of_tokens = st.lists(st.lists(st.tuples(st.integers(-1, 1), st.integers(-1, 1)), max_size=5), max_size=6)


def batch_of(rows: list[list[tuple[int, int]]], extra_columns: int = 0) -> Batch:
    columns = max((len(row) for row in rows), default=0) + extra_columns
    drafts = torch.tensor([draft for row in rows for draft, _ in row], dtype=torch.int64)
    sampled = torch.tensor(
        [[token for _, token in row] + [0] * (columns - len(row)) for row in rows], dtype=torch.int64
    ).reshape(len(rows), columns)
    return drafts, sampled, torch.tensor([len(row) for row in rows], dtype=torch.int64)


def equal_lengths(num_reqs: int, num_drafts: int) -> Batch:
    """All drafts accepted, of `num_reqs` requests with as many drafts each."""
    tokens = torch.arange(num_reqs * num_drafts)
    return tokens, tokens.view(num_reqs, num_drafts), torch.full((num_reqs,), num_drafts)


@given(batches=st.lists(st.tuples(rows_of_tokens, st.integers(0, 2)), min_size=1, max_size=5))
def test_all_modes_give_the_same_mask(batches: list[tuple[list[list[tuple[int, int]]], int]]) -> None:
    """One batch after the other through the same objects: what one leaves in a buffer must not reach the next."""
    masks = [AcceptanceMask(mode) for mode in ScvMode]
    for rows, extra_columns in batches:
        batch = batch_of(rows, extra_columns)
        off, graph, adaptive = (mask(*batch) for mask in masks)
        assert torch.equal(off, graph)
        assert torch.equal(off, adaptive)


def test_off_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SCV_MODE_VARIABLE, raising=False)
    assert AcceptanceMask().mode is ScvMode.OFF
    monkeypatch.setenv(SCV_MODE_VARIABLE, "adaptive")
    assert AcceptanceMask().mode is ScvMode.ADAPTIVE
    assert AcceptanceMask("graph").mode is ScvMode.GRAPH  # an argument wins


def test_an_unknown_mode_lists_the_three(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'fast', expected one of off, graph, adaptive"):
        ScvMode.parse("fast")
    monkeypatch.setenv(SCV_MODE_VARIABLE, "GRAPH")
    with pytest.raises(ConfigError, match="off, graph, adaptive") as raised:
        AcceptanceMask()
    assert SCV_MODE_VARIABLE in raised.value.hint


def test_every_composition_of_draft_lengths_replays_one_graph() -> None:
    captured = []

    def capture(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        captured.append(run)
        return run

    mask = GraphMask(capture=capture)
    for lengths in ([2, 3, 0], [1, 1, 3], [3, 2, 1], [0, 3, 3]):
        drafts = torch.arange(sum(lengths))
        mask(drafts, torch.zeros(3, 3, dtype=torch.int64), torch.tensor(lengths))
    assert len(captured) == 1
    assert list(mask.replays) == [
        MaskKey(4, 8, 4, torch.int64, torch.int64, torch.int64, torch.device("cpu")),
    ]


def test_a_dtype_is_another_graph() -> None:
    mask = GraphMask()
    drafts, sampled, num_drafts = equal_lengths(2, 2)
    for dtype in (torch.int64, torch.int32):
        assert mask(drafts.to(dtype), sampled.to(dtype), num_drafts.to(torch.int32)).all()
    assert len(mask.replays) == 2


def test_the_least_recently_used_graph_goes_first() -> None:
    mask = GraphMask(max_graphs=2)
    small, middle, large = (equal_lengths(2, k) for k in (1, 2, 4))
    for batch in (small, middle, small, large, small):
        assert mask(*batch).all()
    assert [key.num_tokens for key in mask.replays] == [8, 2]  # the middle one is gone
    assert GraphMask().max_graphs == 64


def test_a_failed_capture_is_told_once_and_is_its_own_affair(caplog: pytest.LogCaptureFixture) -> None:
    attempts = []

    def capture(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        attempts.append(run)
        if len(attempts) == 2:
            raise MeasurementError("CUDA graph capture failed: the first error", "see whether the step runs eagerly")
        if len(attempts) == 3:
            raise torch.OutOfMemoryError("no room for the graph")
        return run

    mask = GraphMask(capture=capture)
    fine, fails, full = (equal_lengths(2, k) for k in (1, 2, 4))
    with caplog.at_level(logging.WARNING):
        for batch in (fine, fails, full, fails, full, fine):
            assert mask(*batch).all()
    assert len(attempts) == 3
    assert [len(mask.replays), len(mask.failed)] == [1, 2]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "the first error" in messages[0]
    assert "no room for the graph" in messages[1]


def test_a_mask_outlives_the_next_replay() -> None:
    mask = GraphMask()
    drafts, sampled, num_drafts = equal_lengths(2, 2)
    first = mask(drafts, sampled, num_drafts)
    mask(drafts, sampled + 1, num_drafts)
    assert first.all()


def test_a_narrower_batch_does_not_see_the_columns_of_a_wider_one() -> None:
    """Drafts past the last column are rejected, also where the buffer still holds a match for them."""
    mask = GraphMask()
    drafts, sampled, num_drafts = equal_lengths(1, 4)
    assert mask(drafts, sampled, num_drafts).all()
    narrow = sampled[:, :3]
    assert torch.equal(mask(drafts, narrow, num_drafts), accepted_prefix_mask(drafts, narrow, num_drafts))
    assert mask(drafts, narrow, num_drafts).tolist() == [True, True, True, False]


def test_a_mask_outlives_inference_mode() -> None:
    mask = GraphMask()
    batch = equal_lengths(2, 2)
    with torch.inference_mode():
        assert mask(*batch).all()
    assert mask(*batch).all()


def test_nothing_to_keep_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_graphs is 0"):
        GraphMask(max_graphs=0)
