"""One admission in four forms: numpy's, which the simulator uses, torch's, torch's compiled, and the fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from specplan.device import admit_drafts, compact_batch
from specplan.errors import ConfigError
from specplan.planning import admit_by_survival, survival_probability

THREE = torch.arange(3)


def run_torch(case: Any, *, on_device: bool = False) -> np.ndarray[Any, np.dtype[np.int32]]:
    budget = torch.tensor(case.draft_budget) if on_device else case.draft_budget
    admitted = admit_drafts(
        torch.from_numpy(case.confidence), torch.from_numpy(case.idx_mapping), torch.from_numpy(case.scheduled), budget
    )
    assert admitted.dtype == torch.int32
    return admitted.numpy()


@pytest.mark.slow
def test_torch_equals_numpy(admission_case: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    for number in range(100_000):
        case = admission_case(rng)
        assert np.array_equal(run_torch(case), case.expected()), number


@given(
    confidence=hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(width=32)),
    data=st.data(),
)
def test_torch_equals_numpy_on_any_float(confidence: Any, data: st.DataObject) -> None:
    num_reqs, num_positions = confidence.shape
    scheduled = np.array(
        data.draw(st.lists(st.integers(0, num_positions), min_size=num_reqs, max_size=num_reqs)), dtype=np.int64
    )
    budget = data.draw(st.integers(0, num_reqs * num_positions + 1))
    expected = admit_by_survival(survival_probability(confidence, scheduled), scheduled, budget)
    got = admit_drafts(
        torch.from_numpy(confidence), torch.arange(num_reqs), torch.from_numpy(scheduled), torch.tensor(budget)
    )
    assert np.array_equal(got.numpy(), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own, of other parts of torch
def test_compiled_equals_eager(admission_case: Callable[..., Any]) -> None:
    compiled = torch.compile(admit_drafts, fullgraph=True, dynamic=False)
    rng = np.random.default_rng(1)
    for num_reqs, num_positions in ((5, 1), (8, 3), (16, 7), (3, 15)):
        for number in range(125):
            case = admission_case(rng, num_reqs=num_reqs, num_positions=num_positions)
            # The number of slots is a shape too: one of them, so that one graph serves.
            confidence = np.zeros((num_reqs + 3, num_positions), dtype=np.float32)
            confidence[: len(case.confidence)] = case.confidence
            admitted = compiled(
                torch.from_numpy(confidence),
                torch.from_numpy(case.idx_mapping),
                torch.from_numpy(case.scheduled),
                torch.tensor(case.draft_budget),
            )
            assert np.array_equal(admitted.numpy(), case.expected()), (num_reqs, num_positions, number)


@pytest.mark.slow
def test_the_fused_kernel_equals_its_parts(admission_case: Callable[..., Any]) -> None:
    """In Triton's interpreter; tests/gpu runs the compiled kernel."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu runs the compiled kernel")
    from specplan.device.admission_kernel import admit_and_compact

    rng = np.random.default_rng(2)
    for number in range(1_000):
        case = admission_case(rng, num_reqs=int(rng.integers(1, 10)))
        num_reqs = len(case.scheduled)
        padded_reqs = num_reqs + int(rng.integers(0, 4))
        num_non_draft_tokens = torch.from_numpy(rng.integers(1, 60, num_reqs))
        num_bonus_tokens = int(rng.integers(0, 2))
        budget = torch.tensor(case.draft_budget) if number % 2 else case.draft_budget
        out = torch.full((num_reqs + 2 * (padded_reqs + 1),), -7, dtype=torch.int32)
        admit_and_compact(
            torch.from_numpy(case.confidence),
            torch.from_numpy(case.idx_mapping),
            torch.from_numpy(case.scheduled),
            num_non_draft_tokens,
            budget,
            out,
            padded_reqs=padded_reqs,
            num_bonus_tokens=num_bonus_tokens,
        )
        expected = torch.from_numpy(case.expected())
        offsets = compact_batch(
            expected, num_non_draft_tokens, padded_reqs=padded_reqs, num_bonus_tokens=num_bonus_tokens
        )
        assert torch.equal(out, torch.cat((expected, *offsets))), number


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("rows", "positions", "warps", "on_device"),
    [(1, 1, 1, False), (8, 1, 1, True), (256, 8, 8, True), (1024, 16, 32, False), (2048, 8, 32, False)],
)
def test_the_fused_kernel_compiles_without_spills(
    compile_ahead: Callable[..., dict[str, Any]],
    capability: int,
    rows: int,
    positions: int,
    warps: int,
    on_device: bool,
) -> None:
    """For GPUs that need not be here: the interpreter accepts what the compiler would not."""
    from specplan.device.admission_kernel import MAX_SLOTS, num_warps

    assert rows * positions <= MAX_SLOTS
    assert num_warps(rows * positions) == warps
    pointers = ("scheduled", "num_non_draft_tokens", "admitted", "cu_num_logits", "query_start_loc")
    numbers = ("num_reqs", "padded_reqs", "num_positions", "slot_stride", "num_bonus_tokens")
    compiled = compile_ahead(
        "specplan.device.admission_kernel",
        "admit_and_compact_kernel",
        signature={"confidence": "*fp32", "idx_mapping": "*i32", "draft_budget": "*i32" if on_device else "i32"}
        | dict.fromkeys(pointers, "*i32")
        | dict.fromkeys(numbers, "i32"),
        constants={"BUDGET_ON_DEVICE": on_device, "ROWS": rows, "POSITIONS": positions},
        capability=capability,
        num_warps=warps,
    )
    assert compiled["spilled_bytes"] == 0
    assert compiled["shared_bytes"] <= 48 * 1024


def test_ties_go_to_the_earlier_position_then_the_lower_row() -> None:
    confidence = torch.tensor([[0.5, 1.0, 1.0], [0.5, 1.0, 1.0], [0.9, 0.1, 0.1]])
    scheduled = torch.tensor([3, 3, 3])
    admitted = [admit_drafts(confidence, torch.arange(3), scheduled, budget).tolist() for budget in range(8)]
    # 0.9 first; then every 0.5, position by position; then the rest of the third row.
    assert admitted == [
        [0, 0, 0],
        [0, 0, 1],
        [1, 0, 1],
        [1, 1, 1],
        [2, 1, 1],
        [2, 2, 1],
        [3, 2, 1],
        [3, 3, 1],
    ]


def test_a_budget_past_what_is_offered_admits_what_is_offered() -> None:
    confidence = torch.ones(4, 3)
    admitted = admit_drafts(confidence, torch.tensor([3, 0, 1]), torch.tensor([2, 0, 3]), 100)
    assert admitted.tolist() == [2, 0, 3]


def test_rows_read_the_slots_they_are_mapped_to() -> None:
    confidence = torch.tensor([[0.1, 0.1], [0.9, 0.9], [0.5, 0.5]])
    assert admit_drafts(confidence, torch.tensor([2, 1]), torch.tensor([2, 2]), 2).tolist() == [0, 2]


def test_half_precision_is_ranked_as_float32() -> None:
    confidence = torch.tensor([[0.9, 0.9], [0.8, 0.99]], dtype=torch.bfloat16)
    scheduled = torch.tensor([2, 2])
    expected = admit_by_survival(
        survival_probability(confidence.float().numpy(), scheduled.numpy()), scheduled.numpy(), 3
    )
    assert admit_drafts(confidence, torch.arange(2), scheduled, 3).tolist() == expected.tolist()


def test_no_requests_and_no_positions() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert admit_drafts(torch.ones(2, 3), none, none, 4).shape == (0,)
    assert admit_drafts(torch.ones(2, 0), torch.arange(2), torch.zeros(2, dtype=torch.int64), 4).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("confidence", "idx_mapping", "scheduled", "budget", "words"),
    [
        (torch.ones(3), THREE, THREE, 1, r"\[num_slots, K\]"),
        (torch.ones(3, 2), THREE, torch.arange(2), 1, r"scheduled of \[2\]"),
        (torch.ones(3, 2), THREE, THREE, -1, "draft_budget is -1"),
        (torch.ones(3, 2), THREE, THREE, 2.5, "draft_budget is 2.5"),
        (torch.ones(3, 2), THREE, THREE, torch.ones(1), r"a draft_budget of \[1\] torch.float32"),
        (torch.ones(3, 2), THREE, THREE, THREE, r"a draft_budget of \[3\]"),
        (torch.ones(3, 2), THREE.to(torch.uint8), THREE, 1, "idx_mapping is torch.uint8"),
        (torch.ones(3, 2), THREE, THREE.float(), 1, "scheduled is torch.float32"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    confidence: torch.Tensor, idx_mapping: torch.Tensor, scheduled: torch.Tensor, budget: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        admit_drafts(confidence, idx_mapping, scheduled, budget)


def test_the_fused_kernel_refuses_what_it_would_misread() -> None:
    pytest.importorskip("triton")
    from specplan.device.admission_kernel import admit_and_compact, is_fused

    line = torch.ones(3, dtype=torch.int32)

    def call(confidence: torch.Tensor, rows: torch.Tensor, *, padded_reqs: int, size: int) -> None:
        out = torch.zeros(size, dtype=torch.int32)
        admit_and_compact(confidence, rows, line, line, 2, out, padded_reqs=padded_reqs, num_bonus_tokens=1)

    for confidence, rows, padded_reqs, size in (
        (torch.rand(2, 3).T, line, 3, 11),
        (torch.rand(3, 2), torch.ones(6, dtype=torch.int32)[::2], 3, 11),
        (torch.rand(3, 2), line, 2, 9),
        (torch.rand(3, 2), line, 3, 12),
    ):
        with pytest.raises(ConfigError, match="3 requests padded to"):
            call(confidence, rows, padded_reqs=padded_reqs, size=size)
    assert is_fused(1024, 15)
    assert is_fused(2048, 7)
    assert not is_fused(2048, 15)
    assert not is_fused(4096, 1)
    assert not is_fused(0, 7)
    assert not is_fused(8, 0)
