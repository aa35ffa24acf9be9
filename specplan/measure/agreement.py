"""Whether the engine did what the simulator said and what the target says alone; and if not, how near it was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specplan.engine import EngineStep
from specplan.files import Trace
from specplan.files.validation import Decisions, Divergence, LosslessCheck
from specplan.models import Decoder, DenseAttention
from specplan.simulation.replay import StepRecord

__all__ = ["check_lossless", "compare_decisions"]

TIE = 1e-4  # two logits that differ by less are one in float32


def compare_decisions(
    steps: Sequence[EngineStep],
    planned: Sequence[StepRecord],
    trace: Trace,
    target: Decoder,
    prompts: Sequence[Sequence[int]],
    alone: Sequence[Sequence[int]] | None,  # per prompt, what the target says alone, K past the longest output
) -> Decisions:
    """Step by step: which requests, and of each what was admitted and accepted."""
    pairs = list(zip(steps, planned, strict=False))
    is_equal = [decision(step) == decision(record) for step, record in pairs]
    first = next((index for index, equal in enumerate(is_equal) if not equal), None)
    return Decisions(
        num_steps=max(len(steps), len(planned)),
        num_equal=sum(is_equal),
        first_divergence=None if first is None else explain(first, *pairs[first], trace, target, prompts, alone),
    )


def decision(step: EngineStep | StepRecord) -> tuple[object, ...]:
    return step.requests, step.size.num_reqs, step.num_tokens, step.admitted, step.accepted


def explain(
    index: int,
    step: EngineStep,
    record: StepRecord,
    trace: Trace,
    target: Decoder,
    prompts: Sequence[Sequence[int]],
    alone: Sequence[Sequence[int]] | None,
) -> Divergence:
    """How near the first decision that differs was.

    A budget turns on confidences, so their differences count where admission differs. Acceptance turns on logits, so
    their leads count where of the same drafts other ones were accepted, or another token came before: over the tokens
    that this step and the one before it judged.
    """
    rows = list(zip(outcomes(step), outcomes(record), strict=False))
    differs = [row for row, (left, right) in enumerate(rows) if left != right]
    is_same_batch = step.requests == record.requests
    differences, gaps = [], []
    if is_same_batch and step.admitted != record.admitted:
        pieces = zip(step.requests, step.emitted, step.confidence, strict=True)
        found = (confidence_difference(trace, request, emitted, confidence) for request, emitted, confidence in pieces)
        differences = [difference for difference in found if difference is not None]
    elif alone is not None:
        for row in differs:
            request, emitted = step.requests[row], step.emitted[row]
            judged = 1 + len(step.confidence[row])
            gaps.append(smallest_gap(target, prompts[request], alone[request], emitted, judged))
    first = differs[0] if differs else None
    return Divergence(
        step=index,
        request=None if first is None or not is_same_batch else step.requests[first],
        engine=describe(step, first),
        simulator=describe(record, first),
        max_confidence_difference=max(differences, default=None),
        min_logit_gap=min(gaps, default=None),
    )


def outcomes(step: EngineStep | StepRecord) -> list[tuple[int, int, int]]:
    return list(zip(step.requests, step.admitted, step.accepted, strict=True))


def describe(step: EngineStep | StepRecord, row: int | None) -> str:
    if row is None or row >= len(step.requests):
        return f"{len(step.requests)} requests verify, {step.num_tokens} tokens"
    return f"request {step.requests[row]}: {step.admitted[row]} admitted, {step.accepted[row]} accepted"


def confidence_difference(trace: Trace, request: int, emitted: int, confidence: Sequence[float]) -> float | None:
    """The largest, of the drafts after `emitted` tokens; None where the trace ends before, or holds none."""
    row = int(trace.first_row[request]) + emitted - 1
    if trace.confidence is None or not confidence or row >= trace.row_start[request + 1]:
        return None
    recorded = trace.confidence[row, : len(confidence)]
    return float(np.abs(recorded - np.array(confidence, dtype=np.float32)).max())


def smallest_gap(target: Decoder, prompt: Sequence[int], output: Sequence[int], emitted: int, num_judged: int) -> float:
    """The least lead of the first over the second logit, after the tokens that a step and the one before it judged."""
    logits = dense_logits(target, [*prompt, *output[: emitted + num_judged - 1]])
    first = len(prompt) + max(emitted - num_judged, 0) - 1
    top = np.sort(logits[first:], axis=1)[:, -2:]
    return float((top[:, 1] - top[:, 0]).min())


def check_lossless(
    outputs: Sequence[tuple[int, Sequence[int]]],  # (prompt, output), each as often as it was served
    target: Decoder,
    prompts: Sequence[Sequence[int]],
    alone: Sequence[Sequence[int]],
) -> LosslessCheck:
    """Each output against the target's own; where they part, whether its two logits are one."""
    num_ties = num_wrong = 0
    for request, output in outputs:
        expected = alone[request][: len(output)]
        place = next((i for i, (a, b) in enumerate(zip(output, expected, strict=True)) if a != b), None)
        if place is None:
            continue
        logits = dense_logits(target, [*prompts[request], *expected[:place]])[-1]
        is_tie = abs(float(logits[output[place]] - logits[expected[place]])) < TIE
        num_ties += is_tie
        num_wrong += not is_tie
    return LosslessCheck(num_outputs=len(outputs), num_ties=num_ties, num_wrong=num_wrong)


@torch.inference_mode()
def dense_logits(target: Decoder, tokens: Sequence[int]) -> NDArray[np.float64]:  # [num_tokens, vocab_size]
    device = target.lm_head.weight.device
    ids = torch.tensor(tokens, device=device)
    hidden = target(ids, torch.arange(len(tokens), device=device), DenseAttention(1))
    logits: NDArray[np.float64] = target.logits(hidden).double().cpu().numpy()
    return logits
