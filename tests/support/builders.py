"""What many tests need to fill files with, and none of them is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specplan.files import Environment, ModelInfo, Validation
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
