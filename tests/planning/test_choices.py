"""Budgets that rest on what was not measured, and lists of capture sizes that are not what an engine takes them for."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from specplan.costs import build_cost_tables
from specplan.files import CostTables
from specplan.planning.capture_sizes import judge_capture_sizes
from specplan.planning.choices import judge_choices


def tables(verify: list[tuple[int, float]], *, k: int = 7, num_reqs: int = 8) -> CostTables:
    built = build_cost_tables(
        [(num_reqs, 0.5)], verify, max_num_reqs=num_reqs, max_num_tokens=num_reqs * (1 + k), capture_limit=64
    )
    return msgspec.structs.replace(built, num_speculative_tokens=k)


def test_a_choice_past_what_was_measured_is_named() -> None:
    """Two points whose cost hardly rises: with sure drafts a budget takes all 64 tokens, and 16 were measured."""
    (finding,) = judge_choices(tables([(8, 4.0), (16, 4.1)]))
    assert (finding.code, finding.severity, finding.place) == ("choice-extrapolated", "warning", "verify, 8 requests")
    assert "with 8 requests and confidences of 1.0, a step of 64 tokens" in finding.message
    assert finding.hint.endswith("--max-num-batched-tokens 128")


def test_choices_within_it_are_not() -> None:
    assert list(judge_choices(tables([(8, 4.0), (16, 4.1), (32, 4.2), (64, 4.4)]))) == []
    assert list(judge_choices(tables([(8, 4.0), (16, 90.0)]))) == []  # too dear to go there
    unknown = build_cost_tables(None, [(8, 4.0), (16, 4.1)], max_num_reqs=8, max_num_tokens=64)
    assert list(judge_choices(unknown)) == []  # of which K nobody knows


def with_draft_ks(built: CostTables, ks: list[int]) -> CostTables:
    rows = len(ks), built.max_num_reqs + 1
    return msgspec.structs.replace(
        built, draft_ks=ks, draft_table_ms=np.full(rows, 0.5), draft_source=np.zeros(rows, dtype=np.uint8)
    )


def test_a_k_that_drafting_was_not_timed_at_is_a_finding_and_the_rest_is_judged() -> None:
    found = list(judge_choices(with_draft_ks(tables([(8, 4.0), (16, 4.1)]), [3])))
    assert [finding.code for finding in found] == ["draft-k-not-measured", "choice-extrapolated"]
    assert found[0].message.startswith("these costs are for K = 7, and drafting was timed at k = 3: ")
    assert "a step of 32 tokens" in found[1].message  # 8 requests with 3 drafts each
    (low,) = judge_choices(with_draft_ks(tables([(8, 4.0), (64, 90.0)]), [0, 1]))
    assert "k from 0 to 1" in low.message
    assert [finding.code for finding in judge_choices(with_draft_ks(tables([(8, 4.0), (16, 4.1)]), [0]))] == [
        "draft-k-not-measured"
    ]
    assert not list(judge_choices(with_draft_ks(tables([(8, 4.0), (16, 90.0)]), [0, 7])))


@pytest.mark.parametrize(("curve", "budget"), [([(8, 4.0)], 56), ([(8, 4.0), (16, 7.0), (32, 13.0), (64, 25.0)], 0)])
def test_one_point_makes_everything_look_free(curve: list[tuple[int, float]], budget: int) -> None:
    """8 requests, K = 7, confidences of 0.6."""
    from specplan.planning import choose_draft_budget

    row = np.full(65, 4.0)
    if len(curve) > 1:
        row = tables(curve).verify_row(8, 0)
    choice = choose_draft_budget(
        np.full((8, 7), 0.6), [7] * 8, num_sampling=8, num_non_draft_tokens=8, draft_ms=0.0, verify_ms=row
    )
    assert choice.draft_budget == budget


def test_a_list_in_disorder_ends_before_its_largest() -> None:
    """vLLM takes the last for the limit: [64, 32, 16, 8] makes it 8."""
    found = {f.code: f for f in judge_capture_sizes([64, 32, 16, 8], max_num_seqs=8, num_speculative_tokens=7)}
    assert "up to 8 tokens, not 64" in found["capture-sizes-unsorted"].message
    assert found["capture-sizes-unsorted"].hint.endswith("8,16,32,64")
    again = judge_capture_sizes([8, 8, 16], max_num_seqs=1, num_speculative_tokens=7)
    assert [finding.code for finding in again] == ["capture-sizes-unsorted"]


def test_a_missing_size_is_named_with_the_tokens_it_pads() -> None:
    found = list(judge_capture_sizes([1, 2, 4, 8, 16, 24, 32, 40], max_num_seqs=6, num_speculative_tokens=6))
    assert [finding.code for finding in found] == ["capture-size-missing"]
    assert "5 of 5 batches with all their drafts, n x 7 tokens" in found[0].message
    assert "7 tokens, runs at 8, 14% more" in found[0].message or "14 tokens, runs at 16, 14% more" in found[0].message
    assert list(judge_capture_sizes([7, 14, 21], max_num_seqs=3, num_speculative_tokens=6)) == []


def test_enormous_limits_answer_at_once() -> None:
    assert list(judge_capture_sizes([8], max_num_seqs=10**15, num_speculative_tokens=10**9)) == []
