from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from specplan.planning import choose_draft_budget, survival_probability
from specplan.simulation.replay import ReplayTotals, StepRecord, replay, replay_steps

POLICIES = ("none", "fixed:0", "fixed:2", "fixed:4", "ema", "adaptive", "oracle")
K = 4


def random_requests(rng: np.random.Generator, num_requests: int) -> list[Any]:
    return [rng.integers(0, K + 1, rng.integers(0, 12)) for _ in range(num_requests)]


def walk(accepted_lens: list[Any], k: int) -> tuple[int, int]:
    """Steps and verified drafts' worth of output of an independent walk p -> p + 1 + min(k, accepted_len[p])."""
    steps = outputs = 0
    for accepted in accepted_lens:
        position, output_len = 1, len(accepted) + 1
        while position < output_len:
            following = min(position + 1 + min(k, int(accepted[position - 1])), output_len)
            outputs += following - position
            steps += 1
            position = following
    return steps, outputs


@pytest.mark.parametrize("k", [0, 1, 2, 4])
def test_fixed_equals_an_independent_walk(make_case: Any, make_prices: Any, k: int) -> None:
    rng = np.random.default_rng(k)
    for _ in range(20):
        requests = [*random_requests(rng, 9), [1]]
        case = make_case(f"fixed:{k}", accepted_lens=requests, prices=make_prices(np.ones(40), max_num_reqs=1), k=K)
        totals = replay(case, np.arange(len(requests)))
        steps, outputs = walk(requests, k)
        assert (totals.num_verifying, totals.num_verify_outputs) == (steps, outputs)
        assert totals.num_admitted == k * steps
        assert totals.num_steps == steps + len(requests)
        assert totals.time_ms == totals.num_steps


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_output_tokens_are_conserved(make_case: Any, make_prices: Any, policy: str, concurrency: int) -> None:
    rng = np.random.default_rng(concurrency)
    requests = [*random_requests(rng, 19), [2]]
    case = make_case(
        policy,
        accepted_lens=requests,
        prices=make_prices(1 + np.ceil(np.arange(101) / 8), max_num_reqs=16, draft_ms=0.5),
        confidence=rng.random((sum(map(len, requests)), K)).astype(np.float32),
        prompt_len=[int(length) for length in rng.integers(0, 60, 20)],
        concurrency=concurrency,
        k=K,
    )
    loop = case.closed_loop(np.arange(20))
    steps = list(replay_steps(case, loop))
    finished = sum(len(step.finished_tpot_ms) for step in steps)
    assert finished >= max(20, 8 * concurrency) > finished - concurrency

    admitted = [loop.order[i % 20] for i in range(loop.num_admitted)]
    missing = sum(request.output_len - request.emitted_len for request in loop.running)
    total = sum(len(requests[request]) + 1 for request in admitted) - missing
    assert sum(step.num_output_tokens for step in steps) == total

    for step in steps:
        assert step.num_verifying <= step.size.num_sampling <= step.size.num_reqs <= concurrency
        assert step.num_verifying <= step.num_verify_outputs <= step.num_verifying + step.num_accepted
        assert step.num_accepted <= step.draft_budget <= K * step.num_verifying
        assert step.num_tokens <= case.max_num_batched_tokens


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("policy", ["none", "fixed:0", "fixed:1", "fixed:2", "fixed:4", "oracle"])
def test_equal_rows_follow_the_closed_form(make_case: Any, make_prices: Any, policy: str, concurrency: int) -> None:
    """Every request moves in step with the others: one prefill step, then equal verify steps, then the next round."""
    accepted, output_len, prompt_len, num_requests = 2, 12, 3, 8
    # An eighth of a ms per token: exact in binary, and cheap enough that the oracle admits whatever is accepted.
    verify_ms = 8 + np.arange(60) / 8
    case = make_case(
        policy,
        accepted_lens=[[accepted] * (output_len - 1)] * num_requests,
        prices=make_prices(verify_ms, max_num_reqs=4, draft_ms=0 if policy == "none" else 0.5, overhead_ms=0.25),
        prompt_len=prompt_len,
        concurrency=concurrency,
        k=K,
    )
    admitted = {"none": 0, "oracle": accepted}.get(policy, int(policy[-1]) if policy[-1].isdigit() else 0)
    gained = min(admitted, accepted) + 1
    rounds = max(num_requests, 8 * concurrency) // concurrency
    verify_steps = math.ceil((output_len - 1) / gained)
    fixed_ms = (0 if policy == "none" else 0.5) + 0.25
    prefill_ms = verify_ms[concurrency * prompt_len] + fixed_ms
    step_ms = verify_ms[concurrency * (1 + admitted)] + fixed_ms
    requests = rounds * concurrency
    expected = ReplayTotals(
        num_steps=rounds * (1 + verify_steps),
        num_verify_steps=rounds * verify_steps,
        num_finished=requests,
        num_output_tokens=requests * output_len,
        num_verifying=requests * verify_steps,
        num_verify_outputs=requests * (output_len - 1),
        num_admitted=requests * verify_steps * admitted,
        num_accepted=requests * verify_steps * min(admitted, accepted),
        num_extrapolated=0,
        time_ms=rounds * (prefill_ms + verify_steps * step_ms),
        ci_ms=0.0,
        captured_ms=0.0,
        smooth_ms=rounds
        * (verify_ms[concurrency * prompt_len] + verify_steps * verify_ms[concurrency * (1 + admitted)]),
        mixed_ms=0.0,
        draft_ms=rounds * (1 + verify_steps) * (0 if policy == "none" else 0.5),
        tpot_ms_sum=pytest.approx(requests * verify_steps * step_ms / (output_len - 1)),  # type: ignore[arg-type]
        num_tpot=requests,
    )
    assert replay(case, np.arange(num_requests)) == expected


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_adaptive_on_equal_rows_follows_the_closed_form(
    make_case: Any, make_prices: Any, lag: int, concurrency: int
) -> None:
    """Certain of two drafts and of no third: all K are admitted while nothing is known, two a request after that."""
    accepted, output_len, num_requests, draft_ms = 2, 12, 8, 0.5
    verify_ms = 8 + np.arange(60) / 8
    certain = (np.arange(K) < accepted).astype(np.float32)
    case = make_case(
        "adaptive",
        accepted_lens=[[accepted] * (output_len - 1)] * num_requests,
        confidence=np.tile(certain, (num_requests * (output_len - 1), 1)),
        prices=make_prices(verify_ms, max_num_reqs=4, draft_ms=draft_ms),
        concurrency=concurrency,
        k=K,
        lag=lag,
    )
    verify_steps = math.ceil((output_len - 1) / (accepted + 1))
    rounds = max(num_requests, 8 * concurrency) // concurrency
    admitted = [K] * lag + [accepted] * (verify_steps - lag)
    round_ms = verify_ms[concurrency] + draft_ms + sum(verify_ms[concurrency * (1 + a)] + draft_ms for a in admitted)
    totals = replay(case, np.arange(num_requests))
    assert totals.time_ms == rounds * round_ms
    assert totals.num_steps == rounds * (1 + verify_steps)
    assert totals.num_admitted == rounds * concurrency * sum(admitted)
    assert totals.num_accepted == rounds * concurrency * verify_steps * accepted
    assert totals.num_output_tokens == rounds * concurrency * output_len


def test_the_budget_reads_the_lagged_row_and_the_ranking_the_live_one(make_case: Any, make_prices: Any) -> None:
    """One request whose confidence alternates: at lag 1 each step gets the budget that the step before deserved."""
    certain = np.array([[0.0, 0.0], [1.0, 1.0]] * 4, dtype=np.float32)
    verify_ms = 8 + np.arange(20) / 8
    arguments = {
        "accepted_lens": [[0] * 8] * 8,
        "confidence": np.tile(certain, (8, 1)),
        "prices": make_prices(verify_ms, max_num_reqs=1),
        "k": 2,
    }
    budgets = {}
    for lag in (0, 1, 2):
        case = make_case("adaptive", lag=lag, **arguments)
        steps = list(replay_steps(case, case.closed_loop(np.arange(8))))
        assert [step.num_tokens for step in steps[1:9]] == [1 + step.draft_budget for step in steps[1:9]]
        budgets[lag] = [step.draft_budget for step in steps[1:9]]
    assert budgets == {0: [0, 2] * 4, 1: [2, 0, 2, 0, 2, 0, 2, 0], 2: [2, 2, 0, 2, 0, 2, 0, 2]}


def test_planner_prices_decide_and_prices_charge(make_case: Any, make_prices: Any) -> None:
    flat, steep = (make_prices(cost, max_num_reqs=1) for cost in (np.ones(20), 1.0 + 100 * np.arange(20)))
    arguments = {
        "accepted_lens": [[1] * 6] * 8,
        "confidence": np.full((48, 2), 0.5, dtype=np.float32),
        "k": 2,
        "lag": 0,
    }
    eager = replay(make_case("adaptive", prices=steep, planner_prices=flat, **arguments), np.arange(8))
    shy = replay(make_case("adaptive", prices=flat, planner_prices=steep, **arguments), np.arange(8))
    assert eager.num_admitted == 2 * eager.num_verifying
    assert eager.time_ms == eager.num_verifying * 301 + 8 * 101
    assert shy.num_admitted == 0
    assert shy.time_ms == shy.num_steps


def test_a_mixed_step_counts_prefill_in_tokens_and_not_in_sampling(make_case: Any, make_prices: Any) -> None:
    case = make_case(
        "fixed:1",
        accepted_lens=[[0] * 5, [0] * 5] * 4,
        prices=make_prices(np.arange(1.0, 12.0), max_num_reqs=2),
        prompt_len=[2, 20] * 4,
        concurrency=2,
        k=1,
    )
    steps = list(replay_steps(case, case.closed_loop(np.arange(8))))
    assert [(s.size.num_reqs, s.size.num_sampling, s.num_verifying, s.num_tokens, s.cost_ms) for s in steps[:4]] == [
        (2, 1, 0, 10, 11.0),  # 2 prompt tokens, and 8 of the other's 20
        (2, 1, 1, 10, 11.0),  # 1 + 1, and 8 more
        (2, 2, 1, 6, 7.0),  # 1 + 1, and the last 4: both sample
        (2, 2, 2, 4, 5.0),
    ]


def test_a_step_pays_for_the_drafts_it_proposes(make_case: Any, make_prices: Any) -> None:
    """K = 3, nothing accepted for three tokens, everything after; drafting k costs 2 ** k, and the rest 8 ms a step."""
    case = make_case(
        "ema",
        accepted_lens=[[0, 0, 0, 3, *[3] * 18], *[[]] * 7],
        prices=make_prices(np.full(20, 8.0), max_num_reqs=1, draft_ms=[math.nan, 2.0, 4.0, 8.0]),
        k=3,
    )
    steps = list(replay_steps(case, case.closed_loop(np.arange(8))))
    assert [(step.draft_budget, step.cost_ms) for step in steps[:13]] == [
        (0, 8 + 8),  # the prompt: nothing is verified, three are drafted
        (3, 8 + 4),  # ratio 0
        (2, 8 + 2),  # 0
        (1, 8 + 2),  # 0: one is the fewest
        (1, 8 + 2),  # 0.2, and all that is verified is accepted from here on
        (1, 8 + 2),  # 0.36
        (1, 8 + 2),  # 0.488
        (1, 8 + 2),  # 0.5904
        (1, 8 + 2),  # 0.67232
        (1, 8 + 4),  # 0.737856
        (2, 8 + 8),  # 0.7902848
        (3, 8 + 8),
        (0, 8 + 8),  # another prompt: k stays
    ]


def test_a_step_pays_the_host_by_requests_and_the_drafter_by_prompt_tokens(make_case: Any, make_prices: Any) -> None:
    prices = make_prices(
        np.ones(5), max_num_reqs=2, overhead_ms=[math.nan, 0.25, 0.5], draft_prefill_ms=[0, 8, 16, 24, 32]
    )
    case = make_case("fixed:1", accepted_lens=[[0] * 3, [0]] * 4, prices=prices, prompt_len=[5, 8] * 4, concurrency=2)
    steps = list(replay_steps(case, case.closed_loop(np.arange(8))))
    assert [(step.size.num_reqs, step.num_verifying, step.num_tokens, step.cost_ms) for step in steps[:8]] == [
        (1, 0, 4, 1 + 0.25 + 32),  # 4 of 5 prompt tokens, and no room for the other request
        (2, 0, 4, 1 + 0.5 + 32),  # the last one, and 3 of 8
        (2, 1, 4, 1 + 0.5 + 16),  # 1 + 1, and 2 more
        (2, 1, 4, 1 + 0.5 + 16),
        (2, 1, 3, 1 + 0.5 + 8),  # the last one of the 8; the first request is done
        (2, 1, 4, 1 + 0.5 + 16),  # and so is the second; 2 of 5 of the third
        (2, 0, 4, 1 + 0.5 + 32),  # 3, and 1 of 8 of the fourth
        (2, 1, 4, 1 + 0.5 + 16),
    ]


def test_a_budget_weighs_the_hosts_work(make_case: Any, make_prices: Any) -> None:
    """A draft of confidence 1/4 that takes a step from 1 ms to 1.4 pays where 0.15 < overhead / 4."""
    for overhead_ms, admitted in ((0.5, 0), (1.0, 1)):
        case = make_case(
            "adaptive",
            accepted_lens=[[0]] * 8,
            confidence=np.full((8, 1), 0.25, dtype=np.float32),
            prices=make_prices([1.0, 1.0, 1.4], max_num_reqs=1, overhead_ms=overhead_ms),
            k=1,
            lag=0,
        )
        assert [step.draft_budget for step in replay_steps(case, case.closed_loop(np.arange(8)))] == [0, admitted] * 8


def test_a_budget_weighs_the_drafters_prefill(make_case: Any, make_prices: Any) -> None:
    """A draft of confidence 1/10 beside 2 prompt tokens: 1 / (1.8 + p) < 1.1 / (2.2 + p) where 2.2 < p."""
    for prefill_ms, admitted in ((2.0, 0), (3.0, 1)):
        prices = make_prices(
            0.6 + 0.4 * np.arange(5), max_num_reqs=2, draft_prefill_ms=[0, 0, prefill_ms, prefill_ms, prefill_ms]
        )
        case = make_case(
            "adaptive",
            accepted_lens=[[0] * 9, [0] * 9] * 8,
            confidence=np.full((144, 1), 0.1, dtype=np.float32),
            prices=prices,
            prompt_len=[1, 50] * 8,
            concurrency=2,
            k=1,
            lag=0,
        )
        steps = list(replay_steps(case, case.closed_loop(np.arange(16))))
        assert [(step.num_verifying, step.draft_budget) for step in steps[1:5]] == [(1, admitted)] * 4


def test_ema_that_sees_every_draft_accepted_is_fixed_at_k(make_case: Any, make_prices: Any) -> None:
    arguments = {
        "accepted_lens": [[K] * length for length in (7, 0, 12, 3, 9)],
        "prices": make_prices(8 + np.arange(60) / 8, max_num_reqs=3, draft_ms=[0.0, 1.0, 2.0, 3.0, 4.0]),
        "prompt_len": [3, 9, 1, 40, 6],
        "concurrency": 3,
        "k": K,
    }
    order = np.arange(5)
    assert replay(make_case("ema", **arguments), order) == replay(make_case(f"fixed:{K}", **arguments), order)


@pytest.mark.parametrize(("k", "fewest"), [(1, 1), (3, 1), (7, 1), (16, 4)])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_ema_that_sees_no_draft_accepted_ends_at_the_fewest(
    make_case: Any, make_prices: Any, k: int, fewest: int, concurrency: int
) -> None:
    arguments = {
        "accepted_lens": [[0] * 12] * 6,
        "prices": make_prices(8 + np.arange(60) / 8, max_num_reqs=3, draft_ms=np.arange(17.0)),
        "concurrency": concurrency,
        "k": k,
    }
    case = make_case("ema", **arguments)
    steps = list(replay_steps(case, case.closed_loop(np.arange(6))))
    per_request = [step.draft_budget // step.num_verifying for step in steps if step.num_verifying]
    assert per_request == [*range(k, fewest, -1), *[fewest] * (len(per_request) - (k - fewest))]

    ema = replay(case, np.arange(6))
    fixed_fewest, fixed_k = (replay(make_case(f"fixed:{n}", **arguments), np.arange(6)) for n in (fewest, k))
    assert ema.num_steps == fixed_fewest.num_steps == fixed_k.num_steps
    assert fixed_fewest.time_ms <= ema.time_ms <= fixed_k.time_ms
    assert (ema.time_ms == fixed_k.time_ms) == (k == 1)


def test_ema_reserves_tokens_for_all_k(make_case: Any, make_prices: Any) -> None:
    """What k may return to is kept free: at k = 1 of K = 3 a prompt gets what it would get beside three drafts."""
    case = make_case(
        "ema",
        accepted_lens=[[0] * 9, [0] * 9] * 8,
        prices=make_prices(np.ones(11), max_num_reqs=2, draft_ms=1.0),
        prompt_len=[1, 50] * 8,
        concurrency=2,
        k=3,
    )
    steps = list(replay_steps(case, case.closed_loop(np.arange(16))))
    assert [(step.num_verifying, step.draft_budget, step.num_tokens) for step in steps[:5]] == [
        (0, 0, 10),  # 1 prompt token, and 9 of the other's 50
        (1, 3, 10),  # 1 + 3, and 6 more
        (1, 2, 9),  # 1 + 2, and 6
        (1, 1, 8),
        (1, 1, 8),
    ]


def test_a_request_of_one_token_is_finished_by_its_prefill(make_case: Any, make_prices: Any) -> None:
    case = make_case("fixed:1", accepted_lens=[[], [0]] * 4, prices=make_prices(np.ones(20), max_num_reqs=1), k=1)
    totals = replay(case, np.arange(8))
    assert (totals.num_finished, totals.num_tpot) == (8, 4)
    assert totals.num_output_tokens == 4 * 1 + 4 * 2
    assert totals.tpot_ms_sum == 4


def test_a_step_of_the_oracle_accepts_at_least_as_many_as_a_step_of_adaptive(make_case: Any, make_prices: Any) -> None:
    """At the first verify step both stand in the same state, where seven drafts are free and an eighth is too dear."""
    rng = np.random.default_rng(7)
    for _ in range(50):
        requests = [rng.integers(0, K + 1, 3) for _ in range(32)]
        flat = make_prices(np.concatenate((np.ones(12), np.full(60, 99.0))), max_num_reqs=4)
        arguments = {"accepted_lens": requests, "prices": flat, "concurrency": 4, "k": K, "lag": 0}
        confidence = rng.uniform(0.1, 1, (96, K)).astype(np.float32)
        accepted = {}
        for policy in ("adaptive", "oracle"):
            case = make_case(policy, confidence=confidence, **arguments)
            steps = replay_steps(case, case.closed_loop(np.arange(32)))
            first: StepRecord = next(step for step in steps if step.num_verifying)
            accepted[policy] = first.num_accepted
            assert first.draft_budget <= 7
        assert accepted["oracle"] >= accepted["adaptive"]


def test_each_step_pays_its_own_budget(make_case: Any, make_prices: Any) -> None:
    """At lag 0 and concurrency 1 every step is choose_draft_budget of the row it stands on."""
    rng = np.random.default_rng(2)
    requests = [rng.integers(0, K + 1, 10) for _ in range(8)]
    confidence = rng.random((80, K)).astype(np.float32)
    prices = make_prices(1 + np.ceil(np.arange(12) / 2) * 0.4, max_num_reqs=1, draft_ms=0.3)
    case = make_case("adaptive", accepted_lens=requests, confidence=confidence, prices=prices, k=K, lag=0)
    steps = iter(replay_steps(case, case.closed_loop(np.arange(8))))
    for r, accepted in enumerate(requests):
        next(steps)  # prefill
        position = 1
        while position < 11:
            row = confidence[r * 10 + position - 1]
            choice = choose_draft_budget(
                row[None], [K], num_sampling=1, num_non_draft_tokens=1, draft_ms=0.3, verify_ms=prices.verify.row(1, 0)
            )
            step = next(steps)
            assert step.draft_budget == choice.draft_budget
            assert step.cost_ms == choice.cost_ms
            position += min(int(accepted[position - 1]), choice.draft_budget) + 1
    assert next(steps, None) is None


def test_survival_of_a_case_is_that_of_its_confidences(make_case: Any, make_prices: Any) -> None:
    confidence = np.random.default_rng(0).random((8, K)).astype(np.float32)
    prices = make_prices(np.ones(20), max_num_reqs=1)
    case = make_case("adaptive", accepted_lens=[[1]] * 8, confidence=confidence, prices=prices, k=K)
    assert np.array_equal(case.survival, survival_probability(confidence, np.full(8, K)))
