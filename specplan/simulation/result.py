"""What a simulation found, as data."""

from __future__ import annotations

from typing import Literal

import msgspec

from specplan import __version__
from specplan.files.tables import Semantics
from specplan.planning import CalibrationReport, Losslessness
from specplan.planning.prices import DrafterInput

__all__ = ["CalibrationMode", "Gain", "PolicyResult", "Recommendation", "SimulationResult", "TablesUsed", "Verdict"]

CalibrationMode = Literal["cross-fit", "off"]
Verdict = Literal["better", "worse", "too close to call", "undecided"]


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens per second of one policy over another's, minus 1.

    The interval covers which requests were drawn (95%, paired bootstrap) and is widened by what is known of the costs:
    the tables' errors, region by region as the time goes (for a policy with a budget that of ragged steps too), or the
    intervals of the cells that the steps were charged, whichever is wider. It is null where nothing was resampled, as
    in a trace of few requests: then nothing is decided.
    """

    estimate: float
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> Verdict:
        if self.interval is None:
            return "undecided"
        if self.interval[0] > 0:
            return "better"
        if self.interval[1] < 0:
            return "worse"
        return "too close to call"


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True):
    """One policy at one concurrency. A figure is null where nothing happened that it could be taken over."""

    policy: str
    concurrency: int
    losslessness: Losslessness
    output_tokens_per_s: float
    tpot_ms: float | None  # mean over finished requests of more than one output token
    mean_accepted_len_plus_1: float | None  # output tokens per verifying request and step
    mean_budget: float | None  # admitted drafts per step that verifies anything
    wasted_share: float | None  # of verified drafts, those not accepted
    gain_over_none: Gain
    verdict: Verdict | None  # of the gain; null for `none` itself
    num_steps: int
    num_requests: int  # finished
    extrapolated_share: float  # of steps, those whose verify cost lies outside what was measured
    cost_error: (
        float | None
    )  # how well the time charged is known, as a share of it; null where nobody knows; see `Gain`
    unknown_share: float  # of the time charged, that of costs whose error nobody knows


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """What to deploy at one concurrency: the simplest policy whose distance to the fastest is within noise."""

    concurrency: int
    policy: str
    fastest: str  # of the deployable ones; another than `policy` where its lead is too close to call
    tied_with: list[str]  # whose distance to the fastest is too close to call, in the order of simplicity
    runner_up: str | None  # the second fastest
    lead_over_runner_up: Gain | None


class TablesUsed(msgspec.Struct, frozen=True, kw_only=True):
    """Which cost tables a simulation used; `warnings` are their own, in short."""

    digest: str  # of the tables
    source: str
    device: str | None
    target: str | None
    draft: str | None
    warnings: list[str]
    held_out_error: float | None  # the worst MAPE known of the captured region, a fraction
    is_draft_free: bool  # drafting costs nothing
    is_incomplete: bool  # points or capture sizes are missing from the profile
    semantics: Semantics = "padded"  # what verify passes of sizes that were not measured are taken to cost


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Every policy at every concurrency, what to deploy, and what it was computed from."""

    schema: str = "specplan.simulation/1"
    specplan_version: str = __version__
    tables: TablesUsed
    planner_tables: TablesUsed
    mismatches: list[str]  # between the models that were recorded and those whose steps are priced
    planner_mismatches: list[str]  # between what a budget believes the costs are of and what is charged
    unknown: list[str]  # what nobody knows to match
    trace_source: str
    target: str
    draft: str
    sampling: Literal["greedy", "sampled"]
    is_approximate: bool  # a sampled trace: the replay is exact only under noise shared per position
    num_requests: int  # of the trace
    num_speculative_tokens: int
    lag: int
    drafter_input: DrafterInput = "last"
    max_num_batched_tokens: int
    seed: int
    num_resamples: int
    calibration: CalibrationMode | None  # null where no policy read a confidence
    calibration_report: CalibrationReport | None
    policies: list[PolicyResult]
    recommendations: list[Recommendation]

    def to_json(self) -> bytes:
        """The same inputs give the same bytes."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"
