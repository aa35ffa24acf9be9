"""Confidences a fixed number of steps late, whatever is in flight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specplan.device import ConfidenceBuffer
from specplan.errors import ConfigError

CPU = torch.device("cpu")


def make(lag: int, num_slots: int = 4, num_drafts: int = 2) -> ConfidenceBuffer:
    return ConfidenceBuffer(num_slots=num_slots, num_speculative_tokens=num_drafts, lag=lag, device=CPU)


def record(buffer: ConfidenceBuffer, values: dict[int, float], not_sampling: Sequence[int] = ()) -> None:
    slots = np.array([*values, *not_sampling], dtype=np.int64)
    is_sampling = np.array([True] * len(values) + [False] * len(not_sampling), dtype=bool)
    confidence = torch.tensor([[value, value / 2] for value in (*values.values(), *[0.77] * len(not_sampling))])
    buffer.record(slots, is_sampling, confidence.reshape(len(slots), 2))


def lagged(buffer: ConfidenceBuffer, *slots: int) -> list[float]:
    return [round(float(value), 6) for value in buffer.lagged(np.array(slots, dtype=np.int64))[:, 0]]


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_budget_reads_the_record_of_exactly_lag_steps_ago(lag: int) -> None:
    buffer = make(lag)
    assert lagged(buffer, 0, 3) == [1.0, 1.0]
    seen = []
    for step in range(6):
        record(buffer, {0: step / 10, 2: step / 100})
        seen.append(lagged(buffer, 0, 2, 1))
    expected = [[(step - lag) / 10, (step - lag) / 100, 1.0] if step >= lag else [1.0] * 3 for step in range(6)]
    assert seen == expected
    assert buffer.live[:3].tolist() == [pytest.approx([0.5, 0.25]), [1.0, 1.0], pytest.approx([0.05, 0.025])]


def test_a_reused_slot_reads_nothing_of_the_request_before_it() -> None:
    buffer = make(lag=2)
    for _ in range(4):
        record(buffer, {1: 0.2})
    assert lagged(buffer, 1) == [0.2]
    buffer.add(1)  # two records of the old request are still to be read
    assert lagged(buffer, 1) == [1.0]
    assert buffer.live[1].tolist() == [1.0, 1.0]
    seen = []
    for step in range(4):
        record(buffer, {1: 0.5 + step / 100})
        seen.append(lagged(buffer, 1)[0])
    assert seen == [1.0, 1.0, 0.5, 0.51]


def test_a_request_that_does_not_sample_is_not_recorded() -> None:
    buffer = make(lag=0)
    record(buffer, {0: 0.3}, not_sampling=[1, 2])
    assert lagged(buffer, 0, 1, 2) == [0.3, 1.0, 1.0]
    assert buffer.live[1].tolist() == [1.0, 1.0]
    record(buffer, {1: 0.4}, not_sampling=[0])
    assert lagged(buffer, 0, 1) == [0.3, 0.4]  # what it had stays


def test_an_empty_step_passes_too() -> None:
    buffer = make(lag=1)
    record(buffer, {0: 0.3})
    assert lagged(buffer, 0) == [1.0]
    record(buffer, {})
    assert lagged(buffer, 0) == [0.3]


def test_what_is_no_probability_is_counted() -> None:
    buffer = make(lag=0)
    buffer.record(np.array([0, 1]), np.array([True, True]), torch.tensor([[np.nan, 0.5], [1.5, -0.1]]))
    assert buffer.num_unusable == 0
    buffer.lagged(np.array([0, 1]))
    assert buffer.num_unusable == 3


steps = st.lists(
    st.tuples(st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3))),  # slots that take a request; slots that sample
    min_size=1,
    max_size=12,
)


@given(steps=steps, lag=st.integers(0, 3))
def test_the_buffer_is_a_log_read_late(steps: list[tuple[set[int], set[int]]], lag: int) -> None:
    """Against the definition: every request's own records, the newest of those at least `lag` steps old."""
    buffer = make(lag)
    log: dict[int, list[tuple[int, float]]] = {slot: [] for slot in range(4)}
    for step, (taken, sampling) in enumerate(steps):
        for slot in taken:
            buffer.add(slot)
            log[slot] = []
        values = {slot: round((1 + step * 4 + slot) / 100, 6) for slot in sampling}
        record(buffer, values, not_sampling=sorted(set(range(4)) - sampling))
        for slot, value in values.items():
            log[slot].append((step, value))
        expected = [next((v for at, v in reversed(log[slot]) if at <= step - lag), 1.0) for slot in range(4)]
        assert lagged(buffer, 0, 1, 2, 3) == expected


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda buffer: buffer.add(4), "slots from 4 to 4, expected 0 to 3"),
        (lambda buffer: buffer.lagged(np.array([-1])), "slots from -1 to -1"),
        (lambda buffer: buffer.record(np.array([9]), np.array([True]), torch.ones(1, 2)), "slots from 9"),
        (lambda buffer: buffer.record(np.array([0]), np.array([True]), torch.ones(1, 3)), r"expected \[1, 2\]"),
        (lambda buffer: make(lag=-1), "lag -1"),
    ],
)
def test_what_does_not_fit_is_refused(call: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call(make(lag=0))


def test_it_outlives_inference_mode_and_takes_what_a_model_made() -> None:
    with torch.inference_mode():
        buffer = make(lag=0)
        buffer.record(np.array([0]), np.array([True]), torch.full((1, 2), 0.5))
    buffer.record(np.array([1]), np.array([True]), torch.full((1, 2), 0.25, requires_grad=True))
    assert lagged(buffer, 0, 1) == [0.5, 0.25]
    assert not buffer.live.requires_grad
