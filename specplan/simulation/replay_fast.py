"""The compiled replay: the loop of replay.py without its objects. Equal to it in every counter, and in time to the bit.

Imported only where something is simulated, because numba takes a second to import.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specplan.planning.ema import ALPHA, LESS_BELOW, MORE_ABOVE, fewest_drafts
from specplan.planning.prices import StepPrices
from specplan.simulation.replay import ReplayCase, ReplayTotals
from specplan.simulation.scheduler import num_to_finish

__all__ = ["replay_fast"]


def compiled(function: Any) -> Any:
    """numba's njit without the GIL; the machine code is kept where there is a place to write it."""
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no folder for it, as in a read-only container
        return njit(nogil=True)(function)


def replay_fast(case: ReplayCase, order: NDArray[np.int64]) -> ReplayTotals:
    """What `replay` returns, some hundred times sooner. Runs without the GIL."""
    workload, prices, planner = case.workload, case.prices, case.planner_prices
    half_widths = prices if case.half_widths is None else case.half_widths
    fewest = fewest_drafts(case.num_drafts) if case.is_ema else case.num_drafts
    counts, time_ms, ci_ms, by_region_ms, draft_ms, tpot_ms_sum = _replay(
        order,
        num_to_finish(workload.num_requests, case.concurrency),
        workload.accepted_len,
        workload.first_row,
        np.maximum(workload.prompt_len, 1),
        workload.output_len,
        case.survival,
        case.confidence is not None,
        case.num_drafts,
        (fewest, ALPHA, LESS_BELOW, MORE_ABOVE),
        case.lag,
        case.concurrency,
        case.max_num_batched_tokens,
        _target_arrays(prices),
        prices.verify.extrapolated,
        (prices.draft_ms, prices.overhead_ms, prices.draft_prefill_ms),
        case.half_widths is not None,
        _target_arrays(half_widths),
        (half_widths.draft_ms, half_widths.overhead_ms, half_widths.draft_prefill_ms),
        _target_arrays(planner),
        (planner.draft_ms, planner.overhead_ms, planner.draft_prefill_ms),
    )
    steps, verify_steps, finished, outputs, verifying, verify_outputs, admitted, accepted, guessed, num_tpot = counts
    return ReplayTotals(
        num_steps=steps,
        num_verify_steps=verify_steps,
        num_finished=finished,
        num_output_tokens=outputs,
        num_verifying=verifying,
        num_verify_outputs=verify_outputs,
        num_admitted=admitted,
        num_accepted=accepted,
        num_extrapolated=guessed,
        time_ms=time_ms,
        ci_ms=ci_ms,
        captured_ms=float(by_region_ms[0]),
        smooth_ms=float(by_region_ms[1]),
        mixed_ms=float(by_region_ms[2]),
        draft_ms=draft_ms,
        tpot_ms_sum=tpot_ms_sum,
        num_tpot=num_tpot,
    )


def _target_arrays(prices: StepPrices) -> tuple[NDArray[np.float64], NDArray[np.float64], Any, Any, Any]:
    """Of VerifyPrices, and what is past its axes; what a wide first pass of the drafter adds; then of MixedPrices their
    axes and costs, no costs where there are none."""
    verify, mixed = prices.verify, prices.mixed
    if mixed is None:
        grid = (*(np.zeros(1) for _ in range(4)), np.zeros((0, 1, 1, 1)))
    else:
        grid = (mixed.contexts, mixed.num_verifying, mixed.drafts, mixed.prompt_tokens, mixed.ms)
    feed_ms = np.zeros(0) if prices.feed_ms is None else prices.feed_ms
    beyond = (float(verify.context_ms), verify.furthest_context, verify.capture_limit)
    return verify.contexts, verify.verify_ms, beyond, (feed_ms, prices.feed_len), grid


@compiled
def _replay(
    order: Any,  # [num_requests] int64
    num_to_finish: int,
    accepted_len: Any,  # [rows] int32
    first_row: Any,  # [num_requests] int64
    prompt_len: Any,  # [num_requests] int32, >= 1
    output_len: Any,  # [num_requests] int32
    survival: Any,  # [rows, k] float32
    plans_budget: bool,
    k: int,
    # The fewest drafts (k where they never move), ALPHA, LESS_BELOW, MORE_ABOVE. Arguments, because numba's cache does
    # not notice that a constant of another module has changed.
    ema: Any,
    lag: int,
    concurrency: int,
    max_tokens: int,
    target: Any,  # see _target_arrays
    extrapolated: Any,  # [C, max_num_reqs + 1, max_num_tokens + 1] bool
    others: Any,  # draft_ms, overhead_ms, draft_prefill_ms
    sums_half_widths: bool,
    half_target: Any,
    half_others: Any,
    planner_target: Any,
    planner_others: Any,
) -> Any:
    fewest, alpha, less_below, more_above = ema
    # The running requests, in admission order.
    request = np.empty(concurrency, dtype=np.int64)
    prompt_left = np.empty(concurrency, dtype=np.int64)
    chunk = np.empty(concurrency, dtype=np.int64)
    emitted = np.empty(concurrency, dtype=np.int64)
    first_token_ms = np.empty(concurrency, dtype=np.float64)
    visited = np.empty((concurrency, 3), dtype=np.int64)  # rows of the trace, latest first
    num_visited = np.empty(concurrency, dtype=np.int64)
    # The rows of one step that verify.
    row_of = np.empty(concurrency, dtype=np.int64)
    admitted = np.empty(concurrency, dtype=np.int64)
    lagged = np.empty((concurrency, k), dtype=np.float32)
    live = np.empty((concurrency, k), dtype=np.float32)
    ranked = np.empty((2, concurrency * k), dtype=np.float32)
    target_ms = np.empty(concurrency * k + 1)  # by drafts of the step

    num_running = num_taken = 0
    steps = verify_steps = finished = outputs = verifying_sum = verify_outputs = 0
    admitted_sum = accepted_sum = extrapolated_steps = num_tpot = 0
    now_ms = ci_ms = draft_sum_ms = tpot_ms_sum = ratio = 0.0
    by_region_ms = np.zeros(3)  # captured, smooth, mixed
    drafts = k  # at hand, per request
    has_ratio = False

    while finished < num_to_finish:
        while num_running < concurrency:
            r = order[num_taken % len(order)]
            request[num_running], prompt_left[num_running] = r, prompt_len[r]
            emitted[num_running], num_visited[num_running] = 0, 0
            num_taken += 1
            num_running += 1

        # Schedule: what verifies reserves 1 + k tokens each, prefill chunks share the rest.
        num_verifying = context_sum = 0
        for j in range(num_running):
            if prompt_left[j] == 0:
                row_of[num_verifying] = j
                num_verifying += 1
                context_sum += prompt_len[request[j]] + emitted[j] - 1
        tokens_left = max_tokens - num_verifying * (1 + k)
        num_reqs = num_sampling = num_tokens = num_verifying
        for j in range(num_running):
            chunk[j] = min(prompt_left[j], tokens_left)
            if chunk[j] > 0:
                tokens_left -= chunk[j]
                num_tokens += chunk[j]
                num_reqs += 1
                num_sampling += chunk[j] == prompt_left[j]
                if num_verifying == 0:
                    context_sum += prompt_len[request[j]] - prompt_left[j]
        context_len = context_sum / (num_verifying if num_verifying > 0 else num_reqs)
        prompt_tokens = num_tokens - num_verifying
        size = (num_reqs, num_verifying, prompt_tokens, context_len)

        for v in range(num_verifying):
            j = row_of[v]
            visited[j, 2], visited[j, 1] = visited[j, 1], visited[j, 0]
            visited[j, 0] = first_row[request[j]] + emitted[j] - 1
            num_visited[j] += 1
            admitted[v] = drafts
        budget = num_verifying * drafts
        if plans_budget and budget > 0:
            for v in range(num_verifying):
                j = row_of[v]
                live[v] = survival[visited[j, 0]]
                if num_visited[j] > lag:
                    lagged[v] = survival[visited[j, lag]]
                else:
                    lagged[v] = 1.0
            ranking = _rank(lagged[:num_verifying], ranked)
            _fill_target_ms(target_ms, planner_target, size, 0, len(ranking))
            draft_ms, fixed_ms = planner_others[0][k, num_sampling], _fixed_ms(planner_others, size)
            budget = _best_budget(ranking, num_sampling, target_ms, draft_ms, fixed_ms)
            if budget < num_verifying * k:
                if lag > 0:
                    ranking = _rank(live[:num_verifying], ranked)
                _admit(live[:num_verifying], ranking[:budget], admitted)
        num_tokens += budget

        step_accepted = 0
        for v in range(num_verifying):
            j = row_of[v]
            accepted = min(accepted_len[visited[j, 0]], admitted[v])
            yielded = min(accepted + 1, output_len[request[j]] - emitted[j])
            emitted[j] += yielded
            step_accepted += accepted
            verify_outputs += yielded
            outputs += yielded
        if fewest < k and budget > 0:
            observed = step_accepted / budget
            ratio = ratio + alpha * (observed - ratio) if has_ratio else observed
            has_ratio = True
            if ratio < less_below:
                drafts = max(drafts - 1, fewest)
            elif ratio > more_above:
                drafts = min(drafts + 1, k)

        now_ms += _step_ms(target_ms, target, others, size, drafts, budget, num_sampling)
        by_region_ms[_region(target, size, budget)] += target_ms[budget]
        draft_ms = others[0][drafts, num_sampling] if num_sampling > 0 else 0.0
        draft_sum_ms += draft_ms + others[2][prompt_tokens]
        if sums_half_widths:
            ci_ms += _step_ms(target_ms, half_target, half_others, size, drafts, budget, num_sampling)
        extrapolated_steps += _is_extrapolated(target, extrapolated, size, budget)
        steps += 1
        verify_steps += num_verifying > 0
        verifying_sum += num_verifying
        admitted_sum += budget
        accepted_sum += step_accepted
        kept = 0
        for j in range(num_running):
            if chunk[j] > 0:
                prompt_left[j] -= chunk[j]
                if prompt_left[j] == 0:
                    emitted[j] = 1
                    outputs += 1
                    first_token_ms[j] = now_ms
            gaps = output_len[request[j]] - 1
            if emitted[j] == gaps + 1:
                finished += 1
                if gaps > 0:
                    tpot_ms_sum += (now_ms - first_token_ms[j]) / gaps
                    num_tpot += 1
                continue
            request[kept], prompt_left[kept], emitted[kept] = request[j], prompt_left[j], emitted[j]
            first_token_ms[kept], num_visited[kept] = first_token_ms[j], num_visited[j]
            visited[kept] = visited[j]
            kept += 1
        num_running = kept

    counts = (
        steps,
        verify_steps,
        finished,
        outputs,
        verifying_sum,
        verify_outputs,
        admitted_sum,
        accepted_sum,
        extrapolated_steps,
        num_tpot,
    )
    return counts, now_ms, ci_ms, by_region_ms, draft_sum_ms, tpot_ms_sum


@compiled
def _step_ms(row: Any, target: Any, others: Any, size: Any, drafts: int, budget: int, num_sampling: int) -> Any:
    """StepPrices.step_ms; `row` is where the target's pass is worked out."""
    _fill_target_ms(row, target, size, budget, budget)
    draft_ms = others[0][drafts, num_sampling] if num_sampling > 0 else 0.0
    return draft_ms + row[budget] + _fixed_ms(others, size)


@compiled
def _rank(survival: Any, ranked: Any) -> Any:
    """All of `survival` [num_reqs, k] in descending order, by merging its rows, which descend already."""
    num_slots = survival.size
    source, into = ranked[0], ranked[1]
    source[:num_slots] = survival.ravel()
    width = survival.shape[1]
    while width < num_slots:
        for start in range(0, num_slots, 2 * width):
            left, left_end = start, min(start + width, num_slots)
            right, right_end = left_end, min(start + 2 * width, num_slots)
            for slot in range(start, right_end):
                if right == right_end or (left < left_end and source[left] >= source[right]):
                    into[slot] = source[left]
                    left += 1
                else:
                    into[slot] = source[right]
                    right += 1
        source, into = into, source
        width *= 2
    return source[:num_slots]


@compiled
def _best_budget(
    ranking: Any,
    num_sampling: int,
    target_ms: Any,
    draft_ms: float,
    fixed_ms: float,
) -> Any:
    """choose_draft_budget over survivals in descending order, every one of them eligible."""
    best, best_ratio, survival_sum = 0, -1.0, 0.0
    for budget in range(len(ranking) + 1):
        if budget > 0:
            survival_sum += np.float64(ranking[budget - 1])
        ratio = (num_sampling + survival_sum) / (draft_ms + target_ms[budget] + fixed_ms)
        if ratio > best_ratio:
            best, best_ratio = budget, ratio
    return best if best_ratio > 0.0 else len(ranking)  # none has a cost


@compiled
def _fill_target_ms(row: Any, target: Any, size: Any, first: int, last: int) -> None:
    """StepPrices.target_row with `first` to `last` drafts in all, at these places of `row`."""
    contexts, verify_ms, beyond, (feed_ms, feed_len), (mixed_contexts, verifying, drafts, prompts, mixed_ms) = target
    num_reqs, num_verifying, prompt_tokens, context_len = size
    is_mixed = prompt_tokens > 0 and len(mixed_ms) > 0
    longest = mixed_contexts[-1] if is_mixed else contexts[-1]
    beyond_ms = beyond[0] * (num_verifying * max(context_len - longest, 0.0))
    if is_mixed:
        by_drafts = _by_drafts(mixed_contexts, verifying, prompts, mixed_ms, size)
        for budget in range(first, last + 1):
            each = budget / max(num_verifying, 1)
            low = min(max(np.searchsorted(drafts, each) - 1, 0), max(len(drafts) - 2, 0))
            high = min(low + 1, len(drafts) - 1)
            span = drafts[high] - drafts[low] if high > low else 1.0
            weight = min(max((each - drafts[low]) / span, 0.0), 1.0)
            row[budget] = (1.0 - weight) * by_drafts[low] + weight * by_drafts[high] + beyond_ms
    else:
        low, high, weight = _place_on(contexts, context_len)
        for budget in range(first, last + 1):
            num_tokens = num_verifying + prompt_tokens + budget
            below, above = verify_ms[low, num_reqs, num_tokens], verify_ms[high, num_reqs, num_tokens]
            if weight == 0.0 or weight == 1.0:  # a size without a cost is infinite, and 0 times that is no number
                row[budget] = (above if weight == 1.0 else below) + beyond_ms
            else:
                row[budget] = (1.0 - weight) * below + weight * above + beyond_ms
    if len(feed_ms) > 0:
        for budget in range(first, last + 1):
            row[budget] += feed_ms[num_verifying] * max(num_verifying + budget - feed_len * num_verifying, 0)


@compiled
def _by_drafts(contexts: Any, verifying: Any, prompts: Any, mixed_ms: Any, size: Any) -> Any:
    """MixedPrices.by_drafts."""
    _, num_verifying, prompt_tokens, context_len = size
    by_drafts = np.zeros(mixed_ms.shape[2])
    low, high, weight = _place_on(prompts, prompt_tokens)
    beyond = 0.0
    if len(prompts) > 1:
        beyond = max(prompt_tokens - prompts[-1], 0.0) / (prompts[-1] - prompts[-2])
    low_c, high_c, weight_c = _place_on(contexts, context_len)
    low_v, high_v, weight_v = _place_on(verifying, num_verifying)
    for c, context_weight in ((low_c, 1.0 - weight_c), (high_c, weight_c)):
        for v, row_weight in ((low_v, 1.0 - weight_v), (high_v, weight_v)):
            for d in range(len(by_drafts)):
                by_size = mixed_ms[c, v, d]
                at_size = (1.0 - weight) * by_size[low] + weight * by_size[high]
                if beyond > 0:
                    at_size += max(by_size[-1] - by_size[-2], 0.0) * beyond
                by_drafts[d] += context_weight * row_weight * at_size
    return by_drafts


@compiled
def _region(target: Any, size: Any, budget: int) -> Any:
    """StepPrices.region_of, as its place among captured, smooth and mixed."""
    _, _, beyond, _, (_, _, _, _, mixed_ms) = target
    _, num_verifying, prompt_tokens, _ = size
    if prompt_tokens > 0 and len(mixed_ms) > 0:
        return 2
    return 0 if num_verifying + prompt_tokens + budget <= beyond[2] else 1


@compiled
def _is_extrapolated(target: Any, extrapolated: Any, size: Any, budget: int) -> Any:
    """StepPrices.is_extrapolated."""
    contexts, _, beyond, _, (_, verifying, drafts, prompts, mixed_ms) = target
    num_reqs, num_verifying, prompt_tokens, context_len = size
    if num_verifying > 0 and context_len > beyond[1]:
        return True
    if prompt_tokens > 0 and len(mixed_ms) > 0:
        inside = verifying[0] <= num_verifying <= verifying[-1] and prompts[0] <= prompt_tokens <= prompts[-1]
        return not (inside and num_verifying * drafts[0] <= budget <= num_verifying * drafts[-1])
    low, high, weight = _place_on(contexts, context_len)
    num_tokens = num_verifying + prompt_tokens + budget
    below, above = extrapolated[low, num_reqs, num_tokens], extrapolated[high, num_reqs, num_tokens]
    return (weight < 1 and below) or (weight > 0 and above)


@compiled
def _fixed_ms(others: Any, size: Any) -> Any:
    """StepPrices.fixed_ms."""
    _, overhead_ms, draft_prefill_ms = others
    num_reqs, _, prompt_tokens, _ = size
    return overhead_ms[num_reqs] + draft_prefill_ms[prompt_tokens]


@compiled
def _admit(survival: Any, best: Any, admitted: Any) -> None:
    """admit_by_survival where every slot is eligible: all above the last of the best, then its equals in order."""
    num_reqs, k = survival.shape
    admitted[:num_reqs] = 0
    left = len(best)
    if left == 0:
        return
    threshold = best[-1]
    for r in range(num_reqs):
        while admitted[r] < k and survival[r, admitted[r]] > threshold:
            admitted[r] += 1
            left -= 1
    for i in range(k):
        for r in range(num_reqs):
            if left > 0 and survival[r, i] == threshold:
                admitted[r] += 1
                left -= 1


@compiled
def _place_on(axis: Any, value: float) -> Any:
    high = np.searchsorted(axis, value)
    if high == 0:
        return 0, 0, 0.0
    if high == len(axis):
        return high - 1, high - 1, 0.0
    return high - 1, high, (value - axis[high - 1]) / (axis[high] - axis[high - 1])
