"""The serving step on CUDA is the one on a CPU, to the bit: masks, admission, confidences, the verifier."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from specplan.costs import build_cost_tables
from specplan.device import (
    AcceptanceMask,
    AdaptiveVerifier,
    ConfidenceBuffer,
    ScvMode,
    VerifyBatch,
    accepted_counts,
    accepted_prefix_mask,
    admit_drafts,
    compact_batch,
)
from specplan.device.graphs import Grapher
from specplan.device.scv import GraphMask
from specplan.errors import MeasurementError
from specplan.planning import admit_by_survival, survival_probability

pytestmark = pytest.mark.gpu

VALUES = np.array([1, 0, -0.0, 0.5, 0.25, 0.9, 0.3, 1 / 3, 1e-20, 1.5e-38, 1e-45, np.nan, np.inf, -0.5, 2], np.float32)
BUSY_CYCLES = 2_000_000  # about a millisecond: the host is several steps ahead of what waits for it


def random_masks(rng: np.random.Generator, count: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for _ in range(count):
        num_reqs, k = int(rng.integers(1, 70)), int(rng.integers(1, 9))
        num_drafts = rng.integers(0, k + 1, num_reqs)
        yield (
            torch.from_numpy(rng.integers(-1, 2, num_drafts.sum())),
            torch.from_numpy(rng.integers(-1, 2, (num_reqs, k + 1))),
            torch.from_numpy(num_drafts),
        )


def test_every_mode_of_the_mask_equals_the_cpu(cuda: torch.device) -> None:
    masks = [AcceptanceMask(mode) for mode in ScvMode]
    for batch in random_masks(np.random.default_rng(0), 300):
        expected = accepted_prefix_mask(*batch)
        there = tuple(part.to(cuda) for part in batch)
        for mask in masks:
            got = mask(*there)
            assert torch.equal(got.cpu(), expected), mask.mode
        assert torch.equal(accepted_counts(got, there[2]).cpu(), accepted_counts(expected, batch[2]))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_vectorised_mask_waits_for_nothing(cuda: torch.device) -> None:
    batches = [tuple(part.to(cuda) for part in batch) for batch in random_masks(np.random.default_rng(1), 3)]
    graph = AcceptanceMask("graph")
    for batch in batches:
        graph(*batch)  # captured before it is watched
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            AcceptanceMask("adaptive")(*batch)
            graph(*batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_failed_capture_harms_no_other(cuda: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    """One capture asks the host for a value, which ends it for real; before and after it others replay.

    Nor does it harm what is not a graph: random numbers are drawn, and memory is given back, as before.
    """
    grapher = Grapher(cuda)
    number = 0

    def capture(run):  # type: ignore[no-untyped-def]
        nonlocal number
        number += 1
        return grapher.capture((lambda: run().nonzero()) if number == 2 else run)

    mask = GraphMask(capture=capture)
    stream = torch.cuda.current_stream()
    batches = []
    for k in (1, 2, 4, 8):
        tokens = torch.arange(2 * k, device=cuda)
        batches.append((tokens, tokens.view(2, k), torch.full((2,), k, device=cuda)))
    with caplog.at_level(logging.WARNING):
        for batch in (*batches, *batches):
            assert mask(*batch).all()
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    assert (len(mask.replays), len(mask.failed), number) == (3, 1, 4)
    messages = [record.getMessage() for record in caplog.records if "without a graph" in record.getMessage()]
    assert len(messages) == 1
    assert "previous error" not in messages[0]  # the first error, not that the capture was invalid
    with pytest.raises(MeasurementError, match="capture failed"):
        grapher.capture(lambda: torch.ones(4, device=cuda).nonzero())
    assert torch.rand(8, device=cuda).max() > 0
    torch.cuda.empty_cache()
    for batch in batches:
        assert mask(*batch).all()
    assert grapher.capture(lambda: torch.ones(4, device=cuda))().tolist() == [1, 1, 1, 1]


def test_a_pool_can_be_captured_into_after_its_graphs_are_gone(cuda: torch.device) -> None:
    grapher = Grapher(cuda)
    for size in (4, 8, 16):
        replay = grapher.capture(lambda size=size: torch.ones(size, device=cuda))
        assert replay().sum() == size
        del replay
        gc.collect()


def test_fused_admission_equals_numpy(cuda: torch.device) -> None:
    """A hundred thousand steps; each writes into its own place, and the host looks at the end."""
    from specplan.device.admission_kernel import admit_and_compact

    rng = np.random.default_rng(3)
    count, most = 100_000, 9
    outs = torch.zeros(count, 3 * (most + 1), dtype=torch.int32, device=cuda)
    expected = np.zeros((count, most), dtype=np.int32)
    sizes = []
    for number in range(count):
        num_reqs, k = int(rng.integers(1, most + 1)), int(rng.integers(1, 8))
        confidence = rng.choice(VALUES, (num_reqs, k))
        scheduled = rng.integers(0, k + 1, num_reqs).astype(np.int32)
        budget = int(rng.integers(0, num_reqs * k + 2))
        survival = survival_probability(confidence, scheduled)
        expected[number, :num_reqs] = admit_by_survival(survival, scheduled, budget)
        sizes.append(num_reqs)
        rows = torch.from_numpy(np.stack([np.arange(num_reqs, dtype=np.int32), scheduled])).to(cuda)
        admit_and_compact(
            torch.from_numpy(confidence).to(cuda),
            rows[0],
            rows[1],
            rows[0] + 1,
            budget,
            outs[number, : num_reqs + 2 * (num_reqs + 1)],
            padded_reqs=num_reqs,
            num_bonus_tokens=1,
        )
    got = outs.cpu()
    for number, num_reqs in enumerate(sizes):
        admitted = torch.from_numpy(expected[number, :num_reqs])
        offsets = compact_batch(admitted, torch.arange(1, num_reqs + 1, dtype=torch.int32))
        assert torch.equal(got[number, : 3 * num_reqs + 2], torch.cat((admitted, *offsets))), number


@pytest.mark.parametrize(("num_reqs", "k"), [(8, 3), (64, 7), (256, 7), (1024, 15), (2048, 7)])
def test_every_admission_on_cuda_equals_numpy_at_serving_sizes(cuda: torch.device, num_reqs: int, k: int) -> None:
    from specplan.device.admission_kernel import admit_and_compact

    rng = np.random.default_rng(num_reqs)
    for number in range(40):
        dense = rng.random((num_reqs, k), dtype=np.float32)
        confidence = rng.choice(VALUES, (num_reqs, k)) if number % 2 else dense
        scheduled = rng.integers(0, k + 1, num_reqs).astype(np.int32)
        budget = int(rng.integers(0, num_reqs * k + 2))
        expected = admit_by_survival(survival_probability(confidence, scheduled), scheduled, budget)
        there = torch.from_numpy(confidence).to(cuda)
        rows = torch.arange(num_reqs, dtype=torch.int32, device=cuda)
        offered = torch.from_numpy(scheduled).to(cuda)
        separate = admit_drafts(there, rows, offered, torch.tensor(budget, device=cuda))
        out = torch.zeros(3 * num_reqs + 2, dtype=torch.int32, device=cuda)
        admit_and_compact(there, rows, offered, rows + 1, budget, out, padded_reqs=num_reqs, num_bonus_tokens=1)
        assert np.array_equal(separate.cpu().numpy(), expected)
        assert np.array_equal(out[:num_reqs].cpu().numpy(), expected)


def test_a_captured_admission_reads_the_budget_of_now(cuda: torch.device) -> None:
    from specplan.device.admission_kernel import admit_and_compact

    confidence = torch.rand(16, 4, device=cuda)
    rows = torch.arange(16, dtype=torch.int32, device=cuda)
    offered = torch.full((16,), 4, dtype=torch.int32, device=cuda)
    budget = torch.zeros(1, dtype=torch.int32, device=cuda)
    out = torch.zeros(16 + 2 * 17, dtype=torch.int32, device=cuda)

    def run() -> Tensor:
        admit_and_compact(confidence, rows, offered, rows, budget, out, padded_reqs=16, num_bonus_tokens=1)
        return out

    replay = Grapher(cuda).capture(run)
    for asked in (0, 1, 17, 64, 100):
        budget.fill_(asked)
        confidence.uniform_()
        replay()
        assert torch.equal(out[:16], admit_drafts(confidence, rows, offered, asked))


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_lagged_confidences_do_not_depend_on_what_has_landed(cuda: torch.device, lag: int) -> None:
    """Copies are kept waiting on their stream, so that they land late, and slots are reused under them."""
    rng = np.random.default_rng(lag)
    num_steps, slots = 60, np.arange(8)
    confidence = rng.random((num_steps, 8, 3), dtype=np.float32)
    there = torch.from_numpy(confidence).to(cuda)
    buffers = [
        ConfidenceBuffer(num_slots=8, num_speculative_tokens=3, lag=lag, device=device)
        for device in (torch.device("cpu"), cuda)
    ]
    expected, live = [], []
    for step in range(num_steps):
        for slot in rng.permutation(8)[: rng.integers(0, 3)]:
            for buffer in buffers:
                buffer.add(int(slot))
        is_sampling = rng.random(8) < 0.7
        with torch.cuda.stream(buffers[1]._copy_stream):
            torch.cuda._sleep(BUSY_CYCLES)
        buffers[0].record(slots, is_sampling, torch.from_numpy(confidence[step]))
        buffers[1].record(slots, is_sampling, there[step])
        if rng.random() < 0.7:  # a step without drafts asks for no budget
            late, got = (buffer.lagged(slots) for buffer in buffers)
            assert np.array_equal(late, got), step
        expected.append(buffers[0].live.clone())
        live.append(buffers[1].live.clone())
    assert torch.equal(torch.stack(expected), torch.stack(live).cpu())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_verifier_decides_as_on_a_cpu_and_does_not_wait(cuda: torch.device) -> None:
    tables = build_cost_tables(
        [(1, 0.3), (16, 0.9)],
        [(1, 1.0), (8, 1.5), (32, 4.0), (96, 12.0)],
        max_num_reqs=16,
        max_num_tokens=96,
        capture_limit=32,
    )
    verifiers = [
        AdaptiveVerifier(max_num_seqs=16, num_speculative_tokens=5, device=device, tables=tables)
        for device in (torch.device("cpu"), cuda)
    ]
    rng = np.random.default_rng(7)
    for step in range(40):
        num_reqs = int(rng.integers(1, 17))
        batch = VerifyBatch(
            slots=rng.permutation(16)[:num_reqs],
            scheduled=rng.integers(0, 6, num_reqs),
            num_non_draft_tokens=np.ones(num_reqs, dtype=int),
            is_prefill=np.zeros(num_reqs, dtype=bool),
            is_sampling=np.ones(num_reqs, dtype=bool),
            context_lens=rng.integers(0, 100, num_reqs),
        )
        confidence = torch.from_numpy(rng.random((num_reqs, 5), dtype=np.float32))
        there = confidence.to(cuda)
        budgets = [verifier.choose_budget(batch) for verifier in verifiers]
        assert budgets[0] == budgets[1], step
        expected = verifiers[0].reallocate(batch, budgets[0], padded_reqs=16)
        got = verifiers[1].reallocate(batch, budgets[0], padded_reqs=16)
        for name in ("admitted", "cu_num_logits", "query_start_loc"):
            assert torch.equal(getattr(expected, name), getattr(got, name).cpu()), (step, name)
        verifiers[0].record_confidences(batch, confidence)
        verifiers[1].record_confidences(batch, there)
    torch.cuda.set_sync_debug_mode("error")
    try:
        verifiers[1].reallocate(batch, budgets[1], padded_reqs=16)
        verifiers[1].record_confidences(batch, there)
    finally:
        torch.cuda.set_sync_debug_mode("default")
