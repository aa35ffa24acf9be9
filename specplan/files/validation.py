"""A validation: what the simulator said, what the engine did, and where the two part."""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal

import numpy as np
from msgspec import Meta, Struct

from specplan.files._json import encode, read_json, write_json
from specplan.files.profile import Environment, ModelInfo

__all__ = [
    "VALIDATION_SCHEMA",
    "CaseValidation",
    "Decisions",
    "Divergence",
    "LosslessCheck",
    "PartError",
    "SizeError",
    "Validation",
]

# History of the schema:
#   1  first version
VALIDATION_SCHEMA: Final = "specplan.validation/1"

Part = Literal["verify", "prefill", "head", "draft", "draft-prefill", "host"]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]


class PartError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a step, as the mean over the measured steps, in milliseconds.

    `verify` is the target's pass in steps without prompt tokens, `prefill` in those with, and each counts 0 in the
    other steps. `head` is what ends them: the logits, the greedy tokens and the mask. Where a graph holds it with the
    rest of the pass, or on CUDA, where the two cannot be told apart, it counts there.

    `measured_detail_ms` splits the measured part further, by the phases that the engine tells.
    """

    part: Part
    predicted_ms: float
    measured_ms: float
    measured_detail_ms: dict[str, float]


class SizeError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps of one executed size: medians, in milliseconds."""

    num_reqs: Count
    executed_tokens: Count  # after padding
    has_prompt_tokens: bool
    num_steps: Count
    predicted_ms: float
    measured_ms: Positive

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


class Divergence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first step in which the engine did something else than the simulator, and how near the decision was.

    `max_confidence_difference` is over the drafts at hand in that step; `min_logit_gap` the smallest lead of the
    target's first token over its second, over the tokens that the step judged.
    """

    step: Count
    request: Count | None  # the first that differs; null where the steps hold other requests
    engine: str
    simulator: str
    max_confidence_difference: float | None
    min_logit_gap: float | None

    @property
    def cause(self) -> Literal["confidence", "logit tie", "unexplained"]:
        """A float32 tie in the logits, or confidences that differ in their last bits; anything else is a fault."""
        if self.min_logit_gap is not None and self.min_logit_gap < 1e-4:
            return "logit tie"
        if self.max_confidence_difference is not None and 0 < self.max_confidence_difference < 1e-5:
            return "confidence"
        return "unexplained"


class Decisions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Step by step: requests, budget, admitted and accepted drafts of each. After a divergence few can be equal."""

    num_steps: Count
    num_equal: Count
    first_divergence: Divergence | None


class LosslessCheck(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine's outputs against the target decoding alone. A tie: the two tokens' logits are within 1e-4."""

    num_outputs: Count
    num_ties: Count  # outputs whose first differing token is a tie
    num_wrong: Count  # outputs that differ, and not by a tie


class CaseValidation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy at one concurrency. Predicted and measured are of the same steps of its loop."""

    policy: str
    concurrency: int
    num_steps: Annotated[int, Meta(ge=1)]  # measured ones
    predicted_tokens_per_s: Positive  # by the simulator, on the recorded trace
    measured_tokens_per_s: Positive
    # The same steps predicted from each round's profile alone.
    round_predictions: Annotated[list[Positive], Meta(min_length=1)]
    round_measurements: Annotated[list[Positive], Meta(min_length=1)]  # measured in each round, over its own steps
    step_mape: float  # of step times, over the engine's own steps
    step_bias: float  # signed, likewise
    parts: list[PartError]
    sizes: list[SizeError]
    decisions: Decisions
    lossless: LosslessCheck | None  # null where outcomes were imposed

    @property
    def error(self) -> float:
        """Of tokens/s: predicted / measured - 1."""
        return self.predicted_tokens_per_s / self.measured_tokens_per_s - 1

    @property
    def spread(self) -> float:
        """How far the rounds of profiling lie apart: half the range of their predictions, over the median."""
        return half_range(self.round_predictions)

    @property
    def measured_spread(self) -> float:
        """Likewise of what was measured in each round, whose steps differ: drift, and the loop's own course."""
        return half_range(self.round_measurements)


class Validation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal["specplan.validation/1"] = VALIDATION_SCHEMA
    specplan_version: str
    created: str
    environment: Environment
    target: ModelInfo
    draft: ModelInfo
    source: str  # of the prompts
    num_requests: Count
    num_speculative_tokens: int
    lag: int
    max_num_batched_tokens: int
    max_output_tokens: int
    num_rounds: int
    imposed: str | None  # the trace whose outcomes were imposed
    cases: Annotated[list[CaseValidation], Meta(min_length=1)]

    def median_error(self, concurrency: int) -> float:
        """The median of |error| over the policies at one concurrency."""
        return float(np.median([abs(case.error) for case in self.cases if case.concurrency == concurrency]))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Validation:
        return read_json(path, cls, schema=VALIDATION_SCHEMA)

    def to_json(self) -> bytes:
        """The bytes that `write` writes."""
        return encode(self)

    def write(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self, schema=VALIDATION_SCHEMA)


def half_range(values: list[float]) -> float:
    return (max(values) - min(values)) / 2 / float(np.median(values))
