"""What cost tables say of a served case: of the whole replay, and of the steps that the engine took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specplan.engine import EngineStep, ServingCase
from specplan.files import CostTables, Profile, Trace
from specplan.files.validation import Part, PartError, SizeError
from specplan.planning.prices import StepPrices, VerifyPrices
from specplan.simulation.replay import ReplayCase, StepRecord, Workload, replay_steps

__all__ = [
    "HOST_PHASES",
    "HeadTimes",
    "Prediction",
    "RoundPrices",
    "TimedStep",
    "part_errors",
    "replay_case",
    "size_errors",
    "step_errors",
    "step_prices",
]

HOST_PHASES: Final = ("schedule", "plan", "layout", "commit", "record")
PHASES_OF: Final[dict[Part, tuple[str, ...]]] = {
    "verify": ("verify",),
    "prefill": ("verify",),
    "head": ("head",),
    "draft": ("draft",),
    "draft-prefill": ("draft-prefill",),
    "host": HOST_PHASES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A step of the engine, and what it took. A calibration step tells what the host takes, and is not compared."""

    place: int  # in the case's loop
    step: EngineStep
    wall_ms: float
    phases_ms: dict[str, float]
    round_number: int
    is_calibration: bool

    def sum_ms(self, phases: Sequence[str]) -> float:
        return sum(self.phases_ms.get(phase, 0.0) for phase in phases)

    def part_ms(self, part: Part, phase: str) -> float:
        """What a phase took of a part: the target's passes count as `prefill` where they run prompt tokens."""
        other = "verify" if self.step.size.num_prompt_tokens else "prefill"
        return 0.0 if part == other else self.phases_ms.get(phase, 0.0)


def replay_case(trace: Trace, case: ServingCase, planner: CostTables) -> list[StepRecord]:
    """The case as the simulator replays it, with confidences as recorded: nothing is calibrated in the engine.

    What is decided hangs on the planner's tables alone, not on what its steps are charged.
    """
    prices = step_prices(case, planner)
    replay = ReplayCase.of_policy(
        case.policy,
        workload=Workload.from_trace(trace),
        concurrency=case.concurrency,
        max_num_batched_tokens=case.max_num_batched_tokens,
        num_speculative_tokens=case.num_speculative_tokens,
        confidence=trace.confidence,
        lag=case.lag,
        prices=prices,
        planner_prices=prices,
    )
    return list(replay_steps(replay, replay.closed_loop(np.arange(trace.num_requests, dtype=np.int64))))


def step_prices(case: ServingCase, tables: CostTables) -> StepPrices:
    verify = VerifyPrices.from_tables(
        tables,
        max_num_reqs=case.concurrency,
        max_num_tokens=case.max_num_batched_tokens,
        num_speculative_tokens=case.num_speculative_tokens,
    )
    return StepPrices.from_tables(
        verify, tables, policy=case.policy, num_speculative_tokens=case.num_speculative_tokens
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadTimes:
    """What the end of the target's pass takes, by the tokens that it judges: linear between those that were timed."""

    num_tokens: NDArray[np.int64]  # [P], ascending
    median_ms: NDArray[np.float64]  # [P]

    @classmethod
    def from_profile(cls, profile: Profile) -> HeadTimes:
        samples = [sample for sample in profile.samples if sample.model == "head"]
        samples.sort(key=lambda sample: sample.num_tokens)
        return cls(
            num_tokens=np.array([sample.num_tokens for sample in samples], dtype=np.int64),
            median_ms=np.array([np.median(sample.repetitions_ms) for sample in samples]),
        )

    def ms(self, num_tokens: int) -> float:
        return float(np.interp(num_tokens, self.num_tokens, self.median_ms))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundPrices:
    """What one round of profiling says that steps cost. `head`: what of the target's passes is their end."""

    prices: StepPrices
    head: HeadTimes

    def step_ms(self, step: EngineStep | StepRecord) -> float:
        """What a step should cost, of the replay or of the engine."""
        num_drafts = step.num_tokens - step.size.num_non_draft_tokens
        return self.prices.step_ms(step.size, num_drafts=num_drafts, k=step.k)

    def parts_ms(self, timed: TimedStep) -> dict[Part, float]:
        """What each part of an engine's step should cost; they sum to `step_ms`."""
        step, size = timed.step, timed.step.size
        num_drafts = step.num_tokens - size.num_non_draft_tokens
        target_ms = self.prices.target_ms(size, num_drafts)
        # The head runs over the last token of a prompt's chunk, and elsewhere over all, padding included.
        num_judged = size.num_reqs + num_drafts if size.num_prompt_tokens else step.executed_tokens
        head_ms = min(self.head.ms(num_judged), target_ms) if "head" in timed.phases_ms else 0.0
        return {
            "verify": 0.0 if size.num_prompt_tokens else target_ms - head_ms,
            "prefill": target_ms - head_ms if size.num_prompt_tokens else 0.0,
            "head": head_ms,
            "draft": self.prices.drafting_ms(size, step.k),
            "draft-prefill": float(self.prices.draft_prefill_ms[size.num_prompt_tokens]),
            "host": float(self.prices.overhead_ms[size.num_reqs]),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """One case's replay. A step is charged by the round that it was served in: a machine drifts under both alike."""

    records: Sequence[StepRecord]
    rounds: Sequence[RoundPrices]

    def tokens_per_s(self, steps: Sequence[TimedStep], by_round: int | None = None) -> float:
        """Over the steps at the places of these in the loop: those that were measured.

        Each is charged by its own round, or all by the one named. The replay may be a little shorter.
        """
        replayed = [(self.records[timed.place], timed) for timed in steps if timed.place < len(self.records)]
        num_tokens = sum(record.num_output_tokens for record, _ in replayed)
        total_ms = sum(
            self.rounds[timed.round_number if by_round is None else by_round].step_ms(record)
            for record, timed in replayed
        )
        return num_tokens / total_ms * 1e3

    def step_ms(self, timed: TimedStep) -> float:
        return self.rounds[timed.round_number].step_ms(timed.step)

    def parts_ms(self, timed: TimedStep) -> dict[Part, float]:
        return self.rounds[timed.round_number].parts_ms(timed)


def step_errors(prediction: Prediction, steps: Sequence[TimedStep]) -> NDArray[np.float64]:  # [num_steps]
    """predicted / measured - 1 of each step."""
    return np.array([prediction.step_ms(timed) / timed.wall_ms - 1 for timed in steps])


def part_errors(prediction: Prediction, steps: Sequence[TimedStep]) -> list[PartError]:
    """Each part, predicted and measured, as the mean over the steps."""
    predicted = [prediction.parts_ms(timed) for timed in steps]
    details = {
        part: {phase: float(np.mean([timed.part_ms(part, phase) for timed in steps])) for phase in phases}
        for part, phases in PHASES_OF.items()
    }
    return [
        PartError(
            part=part,
            predicted_ms=float(np.mean([each[part] for each in predicted])),
            measured_ms=sum(detail_ms.values()),
            measured_detail_ms=detail_ms,
        )
        for part, detail_ms in details.items()
    ]


def size_errors(prediction: Prediction, steps: Sequence[TimedStep]) -> list[SizeError]:
    """Medians by what ran, the commonest first."""
    groups: dict[tuple[int, int, bool], list[TimedStep]] = {}
    for timed in steps:
        step = timed.step
        groups.setdefault((step.size.num_reqs, step.executed_tokens, step.size.num_prompt_tokens > 0), []).append(timed)
    return [
        SizeError(
            num_reqs=num_reqs,
            executed_tokens=executed_tokens,
            has_prompt_tokens=has_prompt_tokens,
            num_steps=len(group),
            predicted_ms=float(np.median([prediction.step_ms(timed) for timed in group])),
            measured_ms=float(np.median([timed.wall_ms for timed in group])),
        )
        for (num_reqs, executed_tokens, has_prompt_tokens), group in sorted(
            groups.items(), key=lambda item: -len(item[1])
        )
    ]
