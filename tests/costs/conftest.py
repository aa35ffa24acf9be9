"""Profiles of a made-up device whose costs are a formula, so that tests know what the tables should say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from builders import CPU_ENVIRONMENT, DRAFT, TARGET

from specplan.files import Profile, Sample

CAPTURE_SIZES = [1, 2, 4, 8, 16]
TAIL = [24, 32, 48]
NUM_REQS = [1, 2, 4]
K = 3


def verify_ms(num_reqs: int, num_tokens: int, context_len: int) -> float:
    """Linear in each, and dearer above the capture limit of 16."""
    return 1.0 + 0.125 * num_tokens + 0.25 * num_reqs + context_len / 256 + (4.0 if num_tokens > 16 else 0.0)


def draft_ms(num_reqs: int, k: int) -> float:
    return 0.25 + 0.5 * k + 0.125 * num_reqs


def make_sample(
    model: str,
    mode: str,
    num_reqs: int,
    num_tokens: int,
    k: int | None,
    context_len: int,
    repetitions: Sequence[float],
    layout: str = "multi-query",
    **changes: Any,
) -> Sample:
    fields: dict[str, Any] = {"model": model, "mode": mode, "layout": layout, "stop_reason": "converged", **changes}
    return Sample(
        **fields,
        num_reqs=num_reqs,
        num_tokens=num_tokens,
        executed_num_reqs=num_reqs,
        executed_num_tokens=num_tokens,
        k=k,
        context_len=context_len,
        warmup_ms=[99.0],
        repetitions_ms=list(repetitions),
    )


def make_samples(contexts: Sequence[int], repetitions: Callable[[float], Sequence[float]]) -> Iterable[Sample]:
    for context in contexts:
        for n in NUM_REQS:
            for t in CAPTURE_SIZES:
                if n <= t <= n * (1 + K):
                    ms = verify_ms(n, t, context)
                    yield make_sample("verify", "graph", n, t, None, context, repetitions(ms))
                    yield make_sample("verify", "eager", n, t, None, context, repetitions(ms + 4.0))
        for t in TAIL:
            ms = verify_ms(NUM_REQS[-1], t, context)
            yield make_sample("verify", "eager", NUM_REQS[-1], t, None, context, repetitions(ms))
    for n in NUM_REQS:
        for k in range(K + 1):
            yield make_sample("draft", "graph", n, n, k, contexts[0], repetitions(draft_ms(n, k)))
            yield make_sample("draft", "eager", n, n, k, contexts[0], repetitions(draft_ms(n, k) + 9.0))


def make_profile(
    *,
    contexts: Sequence[int] = (128,),
    repetitions: Callable[[float], Sequence[float]] = lambda ms: [ms] * 20,
    keep: Callable[[Sample], bool] = lambda sample: True,
    extra: Iterable[Sample] = (),
    **changes: Any,
) -> Profile:
    fields: dict[str, Any] = {
        "specplan_version": "0.1.0",
        "created": "2026-01-01T00:00:00Z",
        "source": "measured",
        "environment": CPU_ENVIRONMENT,
        "target": TARGET,
        "draft": DRAFT,
        "num_speculative_tokens": K,
        "max_num_seqs": NUM_REQS[-1],
        "max_num_batched_tokens": TAIL[-1],
        "capture_sizes": CAPTURE_SIZES,
        "complete": True,
        "samples": [*filter(keep, make_samples(contexts, repetitions)), *extra],
    }
    return Profile(**{**fields, **changes})


@pytest.fixture(name="make_profile")
def make_profile_fixture() -> Callable[..., Profile]:
    return make_profile


@pytest.fixture(name="make_sample")
def make_sample_fixture() -> Callable[..., Sample]:
    return make_sample
