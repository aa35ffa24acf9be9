"""Whether a profile repeats and predicts: some of its points measured again, and others between them, in a new process.

A process has its own memory layout, its own graphs and its own luck: what repeats within one may not repeat in the
next, and it is the next that serves.
"""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from threading import Thread
from time import monotonic

import torch

from specplan.errors import MeasurementError, SpecplanError
from specplan.measure.grid import MeasuredPoint, Mode, ProfilePlan, Region
from specplan.measure.steps import StepFactory
from specplan.measure.sweep import StoppingRule, SweepResult, sweep
from specplan.models import load_model

__all__ = ["Pair", "measure_anew", "verification_points"]

NUM_AGAIN = 12  # points of each kind that are measured again
NUM_HELD_OUT = 24  # of each kind that lie between them


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What another process must know to load the same models."""

    target: str
    draft: str
    device: str
    dtype: torch.dtype
    seed: int


def verification_points(plan: ProfilePlan, *, seed: int = 0) -> list[MeasuredPoint]:
    """Points to measure again, of every kind that is priced; then those held out, of which the plan has none."""
    dice = random.Random(seed)
    by_region: dict[Region, list[MeasuredPoint]] = {"captured": [], "smooth": [], "mixed": [], "draft": []}
    for point in plan.points():
        if (region := plan.region_of(point)) in by_region:
            by_region[region].append(point)
    again = [point for of in by_region.values() for point in dice.sample(of, min(NUM_AGAIN, len(of)))]
    planned = set(plan.points())
    held_out = dict.fromkeys(point for point in held_out_points(plan, dice) if point not in planned)
    return [*again, *held_out]


def held_out_points(plan: ProfilePlan, dice: random.Random) -> Iterator[MeasuredPoint]:
    """Any requests, tokens, drafts and prompt tokens that a step may have, at the contexts measured and half way.

    Up to the capture limit a size that is none of the captured ones runs padded.
    """
    first, last = plan.contexts[0], plan.contexts[-1]
    contexts = sorted({first, (first + last) // 2, last})
    limit, k = plan.capture_sizes[-1], plan.num_speculative_tokens
    for index in range(NUM_HELD_OUT):
        context_len = contexts[index % len(contexts)]
        num_reqs = dice.randint(1, plan.max_num_seqs)
        most = min(num_reqs * (1 + k), plan.max_num_batched_tokens)
        size = dice.randint(num_reqs, most)
        mode: Mode = "graph" if size <= limit else "eager"
        yield plan.verify_point(mode, num_reqs, size, context_len)
        if most > limit:
            yield plan.verify_point("eager", num_reqs, dice.randint(max(limit + 1, num_reqs), most), context_len)
        num_drafts = dice.randint(0, k)
        left = plan.max_num_batched_tokens - num_reqs * (1 + num_drafts)
        if left > 0:
            # As many of each order of magnitude: an even draw would hardly ever be of few.
            num_prompt_tokens = min(left, round(float(left) ** dice.random()))
            yield plan.mixed_point(num_reqs, num_drafts, num_prompt_tokens, context_len)


def measure_anew(
    pair: Pair,
    plan: ProfilePlan,
    rule: StoppingRule,
    *,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> SweepResult:
    """`verification_points` as far as there is time, by a process that is started for it. `rule` has a time budget.

    Raises MeasurementError if the process ended, or if none of the points could run.
    """
    assert rule.time_budget_s is not None
    gc.collect()
    if pair.device.startswith("cuda"):
        torch.cuda.empty_cache()  # what this process no longer uses, the new one needs
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(sender, pair, plan, rule), daemon=True)
    with interrupts_held():
        process.start()
    sender.close()  # the child's alone: without it, nothing more can come
    start_s = monotonic()
    try:
        while not wait([receiver], timeout=1.0):
            on_progress(min((monotonic() - start_s) / rule.time_budget_s, 0.99))
        answered: SweepResult | SpecplanError = receiver.recv()
    except EOFError as error:
        raise MeasurementError(
            "the process that was to measure anew ended before it had",
            "the profile is written without it; leave out --verify-error, or give the device more memory",
        ) from error
    finally:
        process.kill()  # it has answered, or nobody waits for it
        process.join()
        receiver.close()
    if isinstance(answered, SpecplanError):
        raise answered
    return answered


@contextmanager
def interrupts_held() -> Iterator[None]:
    """A process that is started meanwhile never hears of Ctrl-C, which a terminal sends to it too.

    It is for whoever started it to end it, and nothing is said twice. An interrupt that comes meanwhile comes after.
    """
    resource_tracker.ensure_running()  # starting it with the process would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def answer(sender: Connection, pair: Pair, plan: ProfilePlan, rule: StoppingRule) -> None:
    """The new process: sends what it measured, or why it could not."""
    Thread(target=end_with_parent, daemon=True).start()
    try:
        sender.send(measure_points(pair, plan, rule))
    except SpecplanError as error:
        sender.send(error)


def end_with_parent() -> None:
    """Whoever waits for this process may be killed, and could then end it no more."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@torch.inference_mode()
def measure_points(pair: Pair, plan: ProfilePlan, rule: StoppingRule) -> SweepResult:
    """What the new process does."""
    device = torch.device(pair.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    target = load_model(pair.target, "target", device=device, dtype=pair.dtype, seed=pair.seed)
    draft = load_model(pair.draft, "draft", device=device, dtype=pair.dtype, seed=pair.seed + 1)
    factory = StepFactory(target.decoder, draft.decoder, plan, seed=pair.seed + 1)
    points = verification_points(plan, seed=pair.seed)
    result = sweep(factory, points, rule, seed=pair.seed + 1, may_be_empty=True)
    if len(result.failures) == len(points):
        raise MeasurementError(
            f"none of the {len(points)} points could be measured anew: {result.failures[0].message}",
            "the profile is written without it; leave out --verify-error, or give the device more memory",
        )
    return result
