"""The verifier, a step at a time: alone, beside the simulator, and under tensor parallel."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from specplan.costs import build_cost_tables
from specplan.device import AdaptiveVerifier, VerifyBatch
from specplan.device.identity import identify_device
from specplan.errors import ConfigError, CoverageError
from specplan.files import CostTables
from specplan.measure.environment import describe_environment
from specplan.planning import Policy
from specplan.planning.prices import StepPrices, StepSize, VerifyPrices
from specplan.simulation.replay import ReplayCase, Workload, replay_steps
from specplan.simulation.scheduler import ClosedLoop, RunningRequest

CPU = torch.device("cpu")


def make_tables(*, max_num_reqs: int = 8, max_num_tokens: int = 128) -> CostTables:
    return build_cost_tables(
        [(1, 0.3), (max_num_reqs, 0.9)],
        [(1, 1.0), (4, 1.1), (8, 1.5), (16, 2.2), (32, 4.0), (48, 9.0), (128, 25.0)],
        max_num_reqs=max_num_reqs,
        max_num_tokens=max_num_tokens,
        capture_limit=32,
        overhead_ms=0.05,
    )


def make_verifier(**changes: Any) -> AdaptiveVerifier:
    settings: dict[str, Any] = {"max_num_seqs": 4, "num_speculative_tokens": 2, "device": CPU, "tables": make_tables()}
    return AdaptiveVerifier(**(settings | changes))


def make_batch(scheduled: list[int], *, prefill: int = 0) -> VerifyBatch:
    """Verifying rows, and one in the middle of its prompt behind them if `prefill` tokens are given."""
    rows = len(scheduled)
    return VerifyBatch(
        slots=np.arange(rows + bool(prefill)),
        scheduled=np.array(scheduled + [0] * bool(prefill), dtype=np.int64),
        num_non_draft_tokens=np.array([1] * rows + [prefill] * bool(prefill), dtype=np.int64),
        is_prefill=np.array([False] * rows + [True] * bool(prefill), dtype=bool),
        is_sampling=np.array([True] * rows + [False] * bool(prefill), dtype=bool),
        context_lens=np.array([10] * rows + [0] * bool(prefill), dtype=np.int64),
    )


def test_a_step_from_confidences_to_the_trimmed_batch() -> None:
    """The confident row gets the drafts, the budget stops where marginal drafts stop paying."""
    tables = build_cost_tables(
        [(1, 1e-9), (4, 1e-9)],
        [(2, 1.0), (3, 1.0), (4, 100.0), (8, 100.0)],
        max_num_reqs=4,
        max_num_tokens=8,
        capture_limit=8,
    )
    verifier = make_verifier(tables=tables, max_num_seqs=2, lag=0)
    batch = make_batch([2, 2])
    for slot in (0, 1):
        verifier.add_request(slot)
    verifier.record_confidences(batch, torch.tensor([[0.1, 0.1], [0.9, 0.9]]))
    budget = verifier.choose_budget(batch)
    assert budget == 1
    trimmed = verifier.reallocate(batch, budget, padded_reqs=4)
    assert trimmed.admitted.tolist() == [0, 1]
    assert trimmed.cu_num_logits.tolist() == [0, 1, 3, 3, 3]
    assert trimmed.query_start_loc.tolist() == [0, 1, 3, 3, 3]
    counts = verifier.compact(batch, budget)
    assert counts.total_tokens == int(trimmed.query_start_loc[-1])
    assert counts.num_drafts.tolist() == [1, 0]  # the host does not know which


def test_a_sampler_that_takes_few_logits_bounds_the_budget() -> None:
    """Three requests, drafts [2, 2, 0], the third a 40-token prefill; each has a bonus token's logit."""
    batch = make_batch([2, 2], prefill=40)
    for max_total_logits, expected in ((2, 0), (3, 0), (4, 1), (5, 2), (100, 4)):
        verifier = make_verifier(tables=None, max_total_logits=max_total_logits)
        assert verifier.choose_budget(batch) == expected
    verifier = make_verifier(max_total_logits=2)
    budget = verifier.choose_budget(batch)
    assert budget == 0
    counts = verifier.compact(batch, budget)
    assert counts.cu_num_logits().tolist() == [0, 1, 2, 3]
    assert counts.num_tokens.tolist() == [1, 1, 40]
    trimmed = verifier.reallocate(batch, budget)
    assert trimmed.cu_num_logits.tolist() == [0, 1, 2, 3]
    assert trimmed.query_start_loc.tolist() == [0, 1, 2, 42]


def test_a_full_chunk_of_confident_drafts_is_bounded_too() -> None:
    tables = build_cost_tables([(1, 0.1), (4, 0.1)], [(1, 1.0), (64, 1.0)], max_num_reqs=4, max_num_tokens=64)
    verifier = make_verifier(tables=tables, max_num_seqs=2, max_total_logits=3, lag=0)
    batch = make_batch([2, 2])
    verifier.record_confidences(batch, torch.full((2, 2), 0.9))
    assert verifier.choose_budget(batch) == 1


def test_without_tables_k_is_fixed_and_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        verifier = make_verifier(tables=None)
    assert not verifier.is_adaptive
    assert "no cost tables: every offered draft is verified, up to K = 2" in caplog.text
    batch = make_batch([2, 1, 0])
    verifier.record_confidences(batch, torch.zeros(3, 2))
    assert verifier.choose_budget(batch) == 3
    assert verifier.reallocate(batch, 3).admitted.tolist() == [2, 1, 0]
    assert make_verifier().is_adaptive


class TestTablesFromElsewhere:
    """A warning, once, of what is another; of what nobody knows no more than a line for who asks."""

    @staticmethod
    def told(caplog: pytest.LogCaptureFixture, **changes: Any) -> list[tuple[str, str]]:
        here = describe_environment(CPU, torch.float32)
        environment = msgspec.structs.replace(here, **changes)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            make_verifier(tables=msgspec.structs.replace(make_tables(), environment=environment))
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    def test_those_of_this_device_say_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        assert self.told(caplog) == []
        assert self.told(caplog, torch="2.0.0", device_uuid="0b1c") == []

    def test_those_of_another_warn(self, caplog: pytest.LogCaptureFixture) -> None:
        here = identify_device(CPU).device
        assert self.told(caplog, device="NVIDIA H100", num_threads=None, sm_count=132, tensor_parallel_size=8) == [
            (
                "WARNING",
                f"cost tables that were measured elsewhere: device: NVIDIA H100 in the tables, {here} in this process; "
                "processors: 132 SMs in the tables, 1 thread in this process; tensor parallel size: 8 in the tables, "
                "1 in this process",
            )
        ]

    def test_those_that_do_not_say_are_not_taken_for_right(self, caplog: pytest.LogCaptureFixture) -> None:
        assert self.told(caplog, device=None, tensor_parallel_size=None) == [
            ("INFO", "cost tables of which nobody knows whether they hold here: device, tensor_parallel_size")
        ]
        with caplog.at_level(logging.INFO):
            make_verifier()
        assert "device, processors, tensor_parallel_size" in caplog.text


def test_steps_without_drafts_and_without_requests_are_routine() -> None:
    verifier = make_verifier()
    for batch in (make_batch([0, 0]), make_batch([], prefill=12), make_batch([])):
        budget = verifier.choose_budget(batch)
        assert budget == 0
        trimmed = verifier.reallocate(batch, budget, padded_reqs=4)
        assert trimmed.admitted.tolist() == [0] * batch.num_reqs
        tokens = int(batch.num_non_draft_tokens.sum())
        assert int(trimmed.query_start_loc[-1]) == verifier.compact(batch, budget).total_tokens == tokens
        verifier.record_confidences(batch, torch.zeros(batch.num_reqs, 2))


def test_offers_that_grammar_cut_are_not_exceeded() -> None:
    tables = build_cost_tables([(1, 0.1), (4, 0.1)], [(1, 1.0), (64, 1.0)], max_num_reqs=4, max_num_tokens=64)
    verifier = make_verifier(tables=tables, lag=0)
    batch = make_batch([2, 0, 1])
    verifier.record_confidences(batch, torch.full((3, 2), 0.9))
    budget = verifier.choose_budget(batch)
    assert budget == 3
    assert verifier.reallocate(batch, budget).admitted.tolist() == [2, 0, 1]


def test_min_gain_keeps_the_full_budget_for_little() -> None:
    tables = build_cost_tables(
        [(1, 1e-9), (4, 1e-9)], [(1, 1.0), (3, 1.0), (4, 1.01)], max_num_reqs=4, max_num_tokens=4
    )
    batch = make_batch([2])
    for min_gain, expected in ((0.0, 1), (0.9, 2)):
        verifier = make_verifier(
            tables=tables, max_num_seqs=1, lag=0, min_gain=min_gain, max_num_batched_tokens=4, num_speculative_tokens=2
        )
        verifier.record_confidences(batch, torch.tensor([[0.9, 0.0]]))
        assert verifier.choose_budget(batch) == expected


def test_prompt_tokens_are_those_of_rows_in_prefill_and_contexts_those_of_the_others() -> None:
    """A row that offers no drafts may verify, and a prompt may end in a chunk of one token."""
    batch = VerifyBatch(
        slots=np.arange(4),
        scheduled=np.array([2, 0, 0, 0]),
        num_non_draft_tokens=np.array([1, 1, 1, 7]),
        is_prefill=np.array([False, False, True, True]),
        is_sampling=np.array([True, True, True, False]),
        context_lens=np.array([20, 30, 900, 7]),
    )
    assert batch.size == StepSize(num_reqs=4, num_verifying=2, num_sampling=3, num_prompt_tokens=8, context_len=25)
    assert make_batch([2, 2]).size.num_prompt_tokens == 0
    prompt = make_batch([], prefill=5).size
    assert (prompt.num_reqs, prompt.num_verifying, prompt.num_prompt_tokens) == (1, 0, 5)


def test_the_budget_weighs_the_hosts_work_and_the_drafters_prefill() -> None:
    """A draft of survival 1/4 takes the verify pass from 1 ms to 1.4: it pays where 0.15 < what else there is / 4."""
    bare = build_cost_tables(None, [(1, 1.0), (2, 1.4), (9, 1.4)], max_num_reqs=2, max_num_tokens=9, capture_limit=9)
    prefilled = [(1, 1.0), (6, 1.0), (7, 1.4), (9, 1.4)]
    for overhead_ms, prefill_ms, scheduled, prefill, budget in (
        ([0.0, 0.5, 9.0], 9.0, [1], 0, 0),
        ([0.0, 1.0, 0.0], 0.0, [1], 0, 1),
        ([9.0, 9.0, 0.1], 0.4, [1], 5, 0),  # of the two requests one is in prefill
        ([0.0, 0.0, 0.1], 0.6, [1], 5, 1),
    ):
        tables = bare
        if prefill:
            tables = build_cost_tables(None, prefilled, max_num_reqs=2, max_num_tokens=9, capture_limit=9)
        tables = msgspec.structs.replace(
            tables,
            overhead_ms=np.array(overhead_ms),
            draft_prefill_ms=np.array([0.0, *[9.0] * 4, prefill_ms, *[9.0] * 4]),
        )
        verifier = make_verifier(
            tables=tables, max_num_seqs=2, num_speculative_tokens=1, max_num_batched_tokens=9, lag=0
        )
        batch = make_batch(scheduled, prefill=prefill)
        verifier.record_confidences(batch, torch.full((batch.num_reqs, 1), 0.25))
        assert verifier.choose_budget(batch) == budget


def with_terms(tables: CostTables) -> CostTables:
    """The tables with a host and a drafter's prefill dear enough to move budgets."""
    return msgspec.structs.replace(
        tables,
        overhead_ms=0.3 + 0.7 * np.arange(tables.max_num_reqs + 1),
        draft_prefill_ms=np.sqrt(np.arange(tables.max_num_tokens + 1)),
    )


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("concurrency", [1, 3, 8])
@pytest.mark.parametrize("tables", [make_tables(), with_terms(make_tables())], ids=["bare", "with-terms"])
def test_the_step_that_runs_is_the_step_that_is_planned(tables: CostTables, lag: int, concurrency: int) -> None:
    """The verifier inside a loop of its own makes the simulator's decisions, step for step."""
    case, order = planned_case(tables, lag, concurrency)
    planned = list(replay_steps(case, case.closed_loop(order)))

    verifier = make_verifier(
        max_num_seqs=concurrency,
        num_speculative_tokens=case.num_drafts,
        max_num_batched_tokens=48,
        tables=tables,
        lag=lag,
    )
    loop = case.closed_loop(order)
    slots = Slots(verifier, concurrency)
    for step_number, record in enumerate(planned):
        budget, accepted = run_step(loop, verifier, slots, case)
        assert (budget, accepted) == (record.draft_budget, record.num_accepted), step_number


def test_the_terms_move_budgets() -> None:
    """Without this, equality above would say little of the terms."""
    for concurrency in (3, 8):
        bare, dear = (planned_case(tables, 1, concurrency) for tables in (make_tables(), with_terms(make_tables())))
        budgets = [
            [step.draft_budget for step in replay_steps(case, case.closed_loop(order))] for case, order in (bare, dear)
        ]
        assert budgets[0] != budgets[1]


def planned_case(tables: CostTables, lag: int, concurrency: int) -> tuple[ReplayCase, np.ndarray]:
    rng = np.random.default_rng(5)
    num_requests, output_len, k = 20, 12, 4
    confidence = rng.choice(np.array([0.2, 0.6, 0.9, 1.0], np.float32), (num_requests * output_len, k))
    accepted_len = rng.integers(0, k + 1, len(confidence)).astype(np.int32)
    prices = StepPrices.from_tables(
        VerifyPrices.from_tables(tables, max_num_reqs=8, max_num_tokens=128, num_speculative_tokens=k),
        tables,
        policy=Policy(kind="adaptive"),
        num_speculative_tokens=k,
    )
    case = ReplayCase(
        workload=Workload(
            accepted_len=accepted_len,
            first_row=np.arange(num_requests, dtype=np.int64) * output_len + 1,
            # A prompt of one token looks like a verifying row that offers no drafts.
            prompt_len=rng.choice([1, 1, 17, 58], num_requests).astype(np.int32),
            output_len=np.full(num_requests, output_len, dtype=np.int32),
        ),
        concurrency=concurrency,
        max_num_batched_tokens=48,
        num_drafts=k,
        confidence=confidence,
        lag=lag,
        prices=prices,
        planner_prices=prices,
    )
    return case, np.arange(num_requests, dtype=np.int64)


class Slots:
    """Hands slots of the verifier to requests, the last one freed first."""

    def __init__(self, verifier: AdaptiveVerifier, num_slots: int) -> None:
        self.verifier = verifier
        self.free = list(range(num_slots))
        self.taken: dict[RunningRequest, int] = {}

    def of(self, request: RunningRequest) -> int:
        if request not in self.taken:
            self.taken[request] = self.free.pop()
            self.verifier.add_request(self.taken[request])
        return self.taken[request]

    def release_finished(self) -> None:
        for request in [request for request in self.taken if request.is_finished]:
            self.free.append(self.taken.pop(request))


def run_step(loop: ClosedLoop, verifier: AdaptiveVerifier, slots: Slots, case: ReplayCase) -> tuple[int, int]:
    step = loop.next_step()
    assert case.confidence is not None
    requests = [*step.verifying, *(request for request, _ in step.prefilling)]
    num_verifying = len(step.verifying)
    batch = VerifyBatch(
        slots=np.array([slots.of(request) for request in requests]),
        scheduled=np.array([case.num_drafts] * num_verifying + [0] * len(step.prefilling)),
        num_non_draft_tokens=np.array([1] * num_verifying + [chunk for _, chunk in step.prefilling]),
        is_prefill=np.array([False] * num_verifying + [True] * len(step.prefilling)),
        is_sampling=np.array([True] * num_verifying + [request in step.completing for request, _ in step.prefilling]),
        context_lens=np.array([request.context_len for request in requests]),
    )
    budget = verifier.choose_budget(batch)
    admitted = verifier.reallocate(batch, budget).admitted.tolist()
    assert sum(admitted) == budget
    num_accepted = 0
    for request, kept in zip(step.verifying, admitted, strict=False):
        row = case.workload.first_row[request.request] + request.emitted_len - 1
        accepted = min(int(case.workload.accepted_len[row]), kept)
        num_accepted += accepted
        request.emitted_len += min(accepted + 1, request.output_len - request.emitted_len)
    for request, chunk in step.prefilling:
        request.prefilled_len += chunk
    for request in step.completing:
        request.emitted_len = 1
    # The drafter says how sure it is of the drafts after each request's newest token.
    proposed = np.zeros((len(requests), case.num_drafts), dtype=np.float32)
    for row, request in enumerate(requests):
        if batch.is_sampling[row] and not request.is_finished:
            proposed[row] = case.confidence[case.workload.first_row[request.request] + request.emitted_len - 1]
    verifier.record_confidences(batch, torch.from_numpy(proposed))
    slots.release_finished()
    return budget, num_accepted


RANK = """
import json, os, sys
import numpy as np, torch, torch.distributed as dist
from specplan.costs import build_cost_tables
from specplan.device import AdaptiveVerifier, VerifyBatch
from specplan.errors import SpecplanError

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
# Ranks that would decide differently: other tables, and confidences that favour other rows.
steep = [(1, 1.0), (3, 1.0), (4, 1.2), (12, 9.0)]
flat = [(1, 1.0), (12, 1.0)]
tables = build_cost_tables([(1, 0.1), (4, 0.1)], steep if rank == 0 else flat, max_num_reqs=4, max_num_tokens=12)
verifier = AdaptiveVerifier(
    max_num_seqs=3,
    num_speculative_tokens=2,
    device=torch.device("cpu"),
    tables=tables,
    lag=0,
    cpu_group=dist.group.WORLD,
    device_group=dist.group.WORLD,
)
batch = VerifyBatch(
    slots=np.arange(3),
    scheduled=np.array([2, 2, 2]),
    num_non_draft_tokens=np.ones(3, dtype=int),
    is_prefill=np.zeros(3, dtype=bool),
    is_sampling=np.ones(3, dtype=bool),
    context_lens=np.zeros(3, dtype=int),
)
confidence = torch.tensor([[0.9, 0.8], [0.3, 0.3], [0.2, 0.1]])
verifier.record_confidences(batch, confidence if rank == 0 else confidence.flip(0))
budget = verifier.choose_budget(batch)
trimmed = verifier.reallocate(batch, budget, padded_reqs=4)
too_many = VerifyBatch(
    slots=np.arange(3),
    scheduled=np.array([2, 2, 3 if rank == 0 else 2]),
    num_non_draft_tokens=np.ones(3, dtype=int),
    is_prefill=np.zeros(3, dtype=bool),
    is_sampling=np.ones(3, dtype=bool),
    context_lens=np.zeros(3, dtype=int),
)
try:
    verifier.choose_budget(too_many)
    refused = None
except SpecplanError as error:
    refused = type(error).__name__
print(json.dumps([budget, *(part.tolist() for part in (
    trimmed.admitted, trimmed.cu_num_logits, trimmed.query_start_loc
)), refused]), flush=True)
dist.barrier()
os._exit(0)  # gloo's threads can abort an interpreter that takes them down in its own time
"""


def test_under_tensor_parallel_rank_0_decides_for_all(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "meeting-point")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    assert first[:-1] == second[:-1]
    assert first[:2] == [1, [1, 0, 0]]
    # Where rank 0 cannot choose, the others are not left waiting.
    assert [first[-1], second[-1]] == ["ConfigError", "InfeasibleError"]


def test_profiled_shapes_are_what_the_tables_need() -> None:
    """8 and 1024 captured: what does not fit the one runs at the other, and none brings over 64 x 8 tokens."""
    verifier = make_verifier(tables=None, max_num_seqs=64, num_speculative_tokens=7, max_num_batched_tokens=4096)
    shapes = verifier.profiled_shapes([8, 1024])
    assert {(shape.num_reqs, shape.num_tokens) for shape in shapes} == {
        *((n, 8) for n in (1, 2, 4, 8)),
        *((n, 8 * n) for n in (2, 4, 8, 16, 32, 64)),
    }
    past = {shape.num_tokens for shape in verifier.profiled_shapes([8, 64]) if shape.num_reqs == 64}
    assert past == {64, 65, 96, 128, 256, 512}
    with pytest.raises(ConfigError, match="ascending"):
        verifier.profiled_shapes([])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scheduled": np.array([1, 1])}, "3, 2, 3, 3, 3, 3 rows"),
        ({"scheduled": np.array([1, -1, 1])}, "row 1, verifying, offers -1 drafts"),
        ({"num_non_draft_tokens": np.array([1, 1, 0])}, "row 2, verifying, offers 1 drafts after 0 other tokens"),
        ({"num_non_draft_tokens": np.array([1, 2, 1])}, "row 1, verifying, offers 1 drafts after 2 other tokens"),
        ({"is_sampling": np.array([True, True, False])}, "row 2, verifying, .* does not sample"),
        ({"is_prefill": np.array([False, True, False])}, "row 1, in prefill, offers 1 drafts"),
        (
            {
                "is_prefill": np.ones(3, bool),
                "scheduled": np.zeros(3, int),
                "num_non_draft_tokens": np.array([9, 0, 1]),
            },
            "row 1, in prefill, offers 0 drafts after 0 other tokens",
        ),
    ],
)
def test_a_batch_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    rows: dict[str, Any] = {
        "slots": np.arange(3),
        "scheduled": np.ones(3, dtype=int),
        "num_non_draft_tokens": np.ones(3, dtype=int),
        "is_prefill": np.zeros(3, dtype=bool),
        "is_sampling": np.ones(3, dtype=bool),
        "context_lens": np.zeros(3, dtype=int),
    }
    with pytest.raises(ConfigError, match=words):
        VerifyBatch(**(rows | changes))


def test_a_step_larger_than_configured_is_refused() -> None:
    verifier = make_verifier()
    with pytest.raises(ConfigError, match=r"5 requests with up to 2 drafts .* configured for 4"):
        verifier.choose_budget(make_batch([2] * 5))
    with pytest.raises(ConfigError, match=r"up to 3 drafts .* configured for 4 requests and K = 2"):
        verifier.choose_budget(make_batch([3]))
    with pytest.raises(CoverageError, match="may run"):
        verifier.choose_budget(make_batch([2], prefill=100))
    with pytest.raises(CoverageError, match="this step may run 1000 prompt tokens"):
        verifier.choose_budget(make_batch([2], prefill=1000))
    with pytest.raises(CoverageError, match="reach 8 requests"):
        make_verifier(max_num_seqs=9)
    with pytest.raises(ConfigError, match="padded to 1"):
        verifier.reallocate(make_batch([1, 1]), 1, padded_reqs=1)
