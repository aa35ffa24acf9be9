"""What a validation amounts to: whether its predictions hold, and where not, why. The file itself holds facts alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from specplan.files.validation import CaseValidation, Part, PartError, SizeError, Validation

__all__ = [
    "ENOUGH_ROUNDS",
    "FEWEST_ROUNDS",
    "TARGET_ERROR",
    "Contribution",
    "LevelVerdict",
    "Source",
    "contributions",
    "furthest_off_its_sizes",
    "judge_levels",
    "num_unexplained",
    "num_wrong",
    "sizes_by_error",
    "total_error_ms",
]

TARGET_ERROR: Final = 0.05
FEWEST_ROUNDS: Final = 2  # one alone has no spread
ENOUGH_ROUNDS: Final = 5

# A part of the step; or that the steps predicted are not those measured: other budgets or outcomes, or a share of them.
Source = Literal[Part, "steps taken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one source adds to the error of the predicted time per output token.

    The errors of a case sum to measured / predicted tokens/s - 1. A share is of the sum of their sizes, so that errors
    of opposite sign do not hide each other.
    """

    source: Source
    part: PartError | None  # null for "steps taken"
    error: float  # signed, of the measured time
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelVerdict:
    """All policies at one concurrency."""

    concurrency: int
    median_error: float  # of |error|
    bias: float  # the median error with its sign; above 0 the engine is slower than predicted
    gain_error: float  # of the gain of one policy over another, the largest: two errors of one sign cancel in it
    spread: float  # the median of the policies' own
    main_source: Source  # of the largest share of their errors
    main_share: float
    predicted_fastest: str  # of the policies that can be deployed, as is the next
    measured_fastest: str
    pick_loss: float  # tokens/s that running the first gives away, as a share of the second's

    @property
    def limit(self) -> float:
        """The target, or what the rounds themselves differ by where that is more."""
        return max(TARGET_ERROR, self.spread)

    @property
    def verdict(self) -> Literal["within", "outside"]:
        return "within" if self.median_error <= self.limit else "outside"


def judge_levels(validation: Validation) -> list[LevelVerdict]:
    """In ascending order of concurrency."""
    return [_judge(validation, concurrency) for concurrency in sorted({case.concurrency for case in validation.cases})]


def contributions(case: CaseValidation) -> list[Contribution]:
    """Of each part, and of the steps taken: what is left of the error of tokens/s once all step times are right."""
    measured_ms = sum(part.measured_ms for part in case.parts)
    found: list[tuple[Source, PartError | None, float]] = [
        (part.part, part, (part.predicted_ms - part.measured_ms) / measured_ms) for part in case.parts
    ]
    error_per_token = case.measured_tokens_per_s / case.predicted_tokens_per_s - 1
    found.append(("steps taken", None, error_per_token - sum(error for _, _, error in found)))
    total = sum(abs(error) for _, _, error in found)
    return [
        Contribution(source=source, part=part, error=error, share=abs(error) / total if total else 0.0)
        for source, part, error in found
    ]


def furthest_off_its_sizes(validation: Validation) -> CaseValidation | None:
    """The case whose sizes were predicted worst, relative to the time that they took; None where no sizes are known."""
    cases = [case for case in validation.cases if case.sizes]
    return max(cases, key=_size_error, default=None)


def sizes_by_error(case: CaseValidation) -> list[SizeError]:
    """The sizes that put the most time wrong come first."""
    return sorted(case.sizes, key=total_error_ms, reverse=True)


def total_error_ms(size: SizeError) -> float:
    return size.num_steps * abs(size.predicted_ms - size.measured_ms)


def num_wrong(validation: Validation) -> int:
    """Outputs that are not the target's own, and not by a tie of its logits."""
    return sum(case.lossless.num_wrong for case in validation.cases if case.lossless is not None)


def num_unexplained(validation: Validation) -> int:
    """Cases in which the engine first parted from the simulator for no reason that float32 gives."""
    divergences = [case.decisions.first_divergence for case in validation.cases]
    return sum(divergence is not None and divergence.cause == "unexplained" for divergence in divergences)


def _judge(validation: Validation, concurrency: int) -> LevelVerdict:
    cases = [case for case in validation.cases if case.concurrency == concurrency]
    errors: dict[Source, float] = defaultdict(float)
    for case in cases:
        for contribution in contributions(case):
            errors[contribution.source] += abs(contribution.error)
    main_source = max(errors, key=lambda source: errors[source])
    total = sum(errors.values())
    named = [
        case for case in cases if case.policy != "oracle"
    ] or cases  # no plan names a policy that cannot be deployed
    predicted = max(named, key=lambda case: case.predicted_tokens_per_s)
    measured = max(named, key=lambda case: case.measured_tokens_per_s)
    return LevelVerdict(
        concurrency=concurrency,
        median_error=validation.median_error(concurrency),
        bias=float(np.median([case.error for case in cases])),
        gain_error=_gain_error(cases),
        spread=float(np.median([case.spread for case in cases])),
        main_source=main_source,
        main_share=errors[main_source] / total if total else 0.0,
        predicted_fastest=predicted.policy,
        measured_fastest=measured.policy,
        pick_loss=1 - predicted.measured_tokens_per_s / measured.measured_tokens_per_s,
    )


def _gain_error(cases: list[CaseValidation]) -> float:
    """(1 + e_a) / (1 + e_b) - 1 is how far the ratio of two policies' tokens/s is off; alone a policy has its own e."""
    if len(cases) == 1:
        return abs(cases[0].error)
    return max(abs((1 + one.error) / (1 + other.error) - 1) for one in cases for other in cases)


def _size_error(case: CaseValidation) -> float:
    return sum(map(total_error_ms, case.sizes)) / sum(size.num_steps * size.measured_ms for size in case.sizes)
