"""What many tests need to fill files with, and none of them is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specplan.files import Environment, ModelInfo, Profile, Sample, Validation
from specplan.files.validation import CaseValidation

if TYPE_CHECKING:
    from specplan.measure import ValidationPlan

CPU_ENVIRONMENT = Environment(
    device="a CPU",
    device_type="cpu",
    device_uuid=None,
    sm_count=None,
    num_threads=2,
    driver=None,
    cuda=None,
    torch="2.13.0",
    python="3.11.0",
    platform="Linux",
    dtype="float32",
    graph_kind="static",
    timing_scope="step",
)
TARGET = ModelInfo(name="target", num_params=100, config_sha256="00")
DRAFT = ModelInfo(name="draft", num_params=10, config_sha256="11")


def make_validation(*cases: CaseValidation, **changes: Any) -> Validation:
    fields: dict[str, Any] = {
        "specplan_version": "0.1.0",
        "created": "2026-01-01T00:00:00+00:00",
        "environment": CPU_ENVIRONMENT,
        "target": TARGET,
        "draft": DRAFT,
        "source": "prompts.jsonl",
        "num_requests": 3,
        "num_speculative_tokens": 7,
        "lag": 1,
        "max_num_batched_tokens": 1024,
        "max_output_tokens": 64,
        "num_rounds": 5,
        "imposed": None,
        "cases": list(cases),
    }
    return Validation(**fields | changes)


def make_validation_plan(**changes: Any) -> ValidationPlan:
    """Of steps as small as they can be. Imported here, because most tests need no torch."""
    from specplan.measure import ValidationPlan
    from specplan.planning import parse_policy

    fields: dict[str, Any] = {
        "policies": tuple(map(parse_policy, ("none", "fixed:1", "adaptive"))),
        "concurrencies": (1, 2),
        "num_speculative_tokens": 2,
        "num_rounds": 2,
        "max_output_tokens": 6,
        "max_num_batched_tokens": 32,
    }
    return ValidationPlan(**(fields | changes))


def make_profile_of_every_region(*, scale: float = 1.0, spread: float = 0.0, **changes: Any) -> Profile:
    """Two points of each kind that is priced, 21 repetitions each: `scale` times 1, 2, 3 ... ms, evenly `spread`.

    Spread 0.1: from 10% below the median to 10% above it.
    """
    shapes: list[dict[str, Any]] = [
        {"model": "verify", "mode": "graph", "num_reqs": 1, "num_tokens": 4},
        {"model": "verify", "mode": "graph", "num_reqs": 2, "num_tokens": 8},
        {"model": "verify", "mode": "eager", "num_reqs": 2, "num_tokens": 16},
        {"model": "verify", "mode": "eager", "num_reqs": 2, "num_tokens": 24},
        *(
            {"model": "verify", "mode": "eager", "num_reqs": 2, "num_tokens": 1 + prompts, "num_prefilling": 1}
            | {"num_prompt_tokens": prompts}
            for prompts in (8, 16)
        ),
        *({"model": "draft", "mode": "graph", "num_reqs": n, "num_tokens": 2 * n, "k": 3} for n in (1, 2)),
        *({"model": "host", "mode": "eager", "num_reqs": n, "num_tokens": 4 * n, "k": 3} for n in (1, 2)),
        *({"model": "budget", "mode": "eager", "num_reqs": n, "num_tokens": 4 * n} for n in (1, 2)),
        *({"model": "draft-prefill", "mode": "eager", "num_reqs": 1, "num_tokens": size} for size in (8, 16)),
    ]
    samples = [
        Sample(
            **{"k": None, "layout": "multi-query", "stop_reason": "converged", "warmup_ms": []} | shape,
            executed_num_reqs=shape["num_reqs"],
            executed_num_tokens=shape["num_tokens"],
            context_len=128,
            repetitions_ms=[scale * ms * (1 + spread * step / 10) for step in range(-10, 11)],
        )
        for ms, shape in enumerate(shapes, start=1)
    ]
    fields: dict[str, Any] = {
        "specplan_version": "0.1.0",
        "created": "2026-01-01T00:00:00Z",
        "source": "measured",
        "environment": CPU_ENVIRONMENT,
        "target": TARGET,
        "draft": DRAFT,
        "num_speculative_tokens": 11,  # so that two requests reach the smooth sizes
        "max_num_seqs": 2,
        "max_num_batched_tokens": 24,
        "capture_sizes": [4, 8],
        "complete": True,
        "samples": samples,
    }
    return Profile(**fields | changes)
