from __future__ import annotations

from typing import Any

import pytest

from specplan.errors import ConfigError
from specplan.planning.prices import StepSize
from specplan.simulation.scheduler import ClosedLoop, ScheduledStep, num_to_finish


def loop(**changes: Any) -> ClosedLoop:
    arguments: dict[str, Any] = {
        "prompt_len": [5, 2, 9],
        "output_len": [3, 1, 4],
        "order": [0, 1, 2],
        "concurrency": 2,
        "num_drafts": 1,
        "max_num_batched_tokens": 8,
    }
    return ClosedLoop(**(arguments | changes))


def run(step: ScheduledStep) -> None:
    """Run a step in which no draft is accepted."""
    for request in step.verifying:
        request.emitted_len += 1
    for request, chunk in step.prefilling:
        request.prefilled_len += chunk
    for request in step.completing:
        request.emitted_len = 1


def chunks(step: ScheduledStep) -> list[tuple[int, int]]:
    return [(request.request, chunk) for request, chunk in step.prefilling]


def test_prefill_is_chunked_and_first_come_first_served() -> None:
    closed = loop(concurrency=3)
    first = closed.next_step()
    assert chunks(first) == [(0, 5), (1, 2), (2, 1)]
    assert [request.request for request in first.completing] == [0, 1]
    assert first.size == StepSize(num_reqs=3, num_verifying=0, num_sampling=2, num_prompt_tokens=8, context_len=0)
    run(first)

    # Request 1 wanted one token and has it; its place is refilled, in cyclic order.
    second = closed.next_step()
    assert [request.request for request in closed.running] == [0, 2, 0]
    assert [request.request for request in second.verifying] == [0]
    assert chunks(second) == [(2, 6)]  # 8 tokens less 1 + 1 reserved
    # The token emitted is this step's query, not yet in the cache; the other request's chunk of 1 does not count.
    assert second.size == StepSize(num_reqs=2, num_verifying=1, num_sampling=1, num_prompt_tokens=6, context_len=5)
    run(second)

    third = closed.next_step()
    assert chunks(third) == [(2, 2), (0, 4)]
    assert [request.request for request in third.completing] == [2]
    assert closed.num_admitted == 4


def test_an_empty_prompt_counts_one_token() -> None:
    step = loop(prompt_len=[0, 0, 0]).next_step()
    assert chunks(step) == [(0, 1), (1, 1)]
    assert step.size.num_sampling == 2


def test_verifying_requests_may_leave_no_room_for_prefill() -> None:
    closed = loop(concurrency=2, max_num_batched_tokens=4, prompt_len=[2, 3, 1], output_len=[9, 9, 9])
    first = closed.next_step()
    assert chunks(first) == [(0, 2), (1, 2)]
    run(first)
    second = closed.next_step()
    assert chunks(second) == [(1, 1)]
    run(second)
    third = closed.next_step()
    assert third.prefilling == ()
    assert third.size.num_non_draft_tokens == 2


def test_the_order_is_followed_and_repeated() -> None:
    closed = loop(order=[2, 2, 0], concurrency=4)
    closed.next_step()
    assert [request.request for request in closed.running] == [2, 2, 0, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": 3, "num_drafts": 2}, "3 requests with 2 drafts each reserve 9 tokens a step"),
    ],
)
def test_a_loop_that_cannot_run_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loop(**changes)


def test_how_many_requests_finish() -> None:
    assert num_to_finish(100, 4) == 100
    assert num_to_finish(100, 64) == 512
