"""A simulation in words and cells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from specplan.planning import CalibrationReport
from specplan.simulation import FEWEST_REQUESTS, Gain, PolicyResult, Recommendation, SimulationResult

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["deploy_sentence", "simulation_rows", "simulation_table"]

_HEADERS = (
    "conc.",
    "policy",
    "output tokens/s",
    "TPOT ms",
    "accepted_len + 1",
    "budget per step",
    "wasted drafts",
    "gain over none",
    "95% interval",
    "verdict",
    "extrapolated",
)

_MENTIONED = 0.005  # a share of steps that rounds to nothing is in the table alone
_MOSTLY_GUESSED = 0.2  # a share of steps that makes the answer one about costs which nobody measured
_UNSURE = 0.1  # a held-out error of the costs beyond which a recommendation is worth little
_UNBROKEN = ("policy", "95% interval")
_LABELS = {
    "greedy-only": "on sampled output it can bias what is sampled",
    "anticipating": "it knows what will be accepted, so it is a bound on better rankings and cannot be deployed",
}


def simulation_rows(result: SimulationResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The headers, and one row of cells per concurrency and policy. `extrapolated` is there where anything was."""
    rows = [_cells(policy) for policy in result.policies]
    if any(policy.extrapolated_share for policy in result.policies):
        return _HEADERS, rows
    return _HEADERS[:-1], [row[:-1] for row in rows]


def simulation_table(result: SimulationResult) -> Table:
    """One row per concurrency and policy; the policies to deploy stand out."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    headers, rows = simulation_rows(result)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for header, column in zip(headers, zip(headers, *rows, strict=True), strict=True):
        justify: Literal["left", "right"] = "left" if header in ("policy", "verdict") else "right"
        longest_word = max(len(word) for cell in column for word in cell.split())
        table.add_column(header, justify=justify, min_width=longest_word, no_wrap=header in _UNBROKEN)
    chosen = {(recommendation.concurrency, recommendation.policy) for recommendation in result.recommendations}
    for place, (policy, cells) in enumerate(zip(result.policies, rows, strict=True), start=1):
        is_last = place == len(rows) or result.policies[place].concurrency != policy.concurrency
        is_chosen = (policy.concurrency, policy.policy) in chosen
        table.add_row(*cells, style="bold" if is_chosen else None, end_section=is_last)
    return table


def simulation_notes(result: SimulationResult) -> list[str]:
    """What the figures rest on, one remark a line."""
    replay = "an approximate replay of sampled output" if result.is_approximate else "greedy output"
    notes = [
        f"{result.num_requests} requests of {result.trace_source}, K = {result.num_speculative_tokens}, {replay}; "
        f"steps of up to {result.max_num_batched_tokens} tokens"
    ]
    if result.calibration is not None:
        notes.append(f"budgets from confidences at lag {result.lag}, {_calibration(result.calibration_report)}")
    if result.drafter_input == "step":
        notes.append("the drafter's first pass takes all tokens that the step verified")
    if any(policy.policy in ("adaptive", "oracle") for policy in result.policies):
        notes.append(
            f"adaptive and oracle always draft K = {result.num_speculative_tokens} and choose what to verify; "
            "a fixed:k that drafts fewer can pass both"
        )
    if any(policy.policy == "ema" for policy in result.policies):
        notes.append(
            f"ema begins at K = {result.num_speculative_tokens} and moves k by the share of drafts accepted, "
            "whatever drafting and verifying them cost"
        )
    notes += dict.fromkeys(
        f"{policy.policy} is {policy.losslessness}: {_LABELS[policy.losslessness]}"
        for policy in result.policies
        if policy.losslessness in _LABELS
    )
    if result.num_resamples:
        errors = sorted(policy.cost_error for policy in result.policies if policy.cost_error is not None)
        span = " to ".join(dict.fromkeys(f"{error:.1%}" for error in (errors[0], errors[-1]))) if errors else ""
        known = (
            "the error of the costs is unknown"
            if all(policy.unknown_share >= 1 - _MENTIONED for policy in result.policies)
            else f"widened by what is known of the costs of each policy's steps, {span}"
        )
        notes.append(f"intervals from {result.num_resamples} draws of the requests; {known}")
    notes += _semantics_notes(result)
    notes += [f"warning: {mismatch}" for mismatch in (*result.mismatches, *result.planner_mismatches)]
    notes += [f"unknown: {matter}" for matter in result.unknown]
    notes += [f"warning, of the cost tables: {warning}" for warning in result.tables.warnings]
    return notes


def _semantics_notes(result: SimulationResult) -> Iterator[str]:
    """What is charged by another reading of the costs than an engine that replays graphs runs, and planned by."""
    charged, planned = result.tables.semantics, result.planner_tables.semantics
    if charged == "floor":
        yield (
            "warning: steps are charged by floor tables, as a smaller step that was measured: no engine runs so; "
            "charge by padded tables (--tables), and plan by these (--planner-tables)"
        )
    elif charged != "padded":
        yield f"steps are charged by {charged} tables, as if nothing were padded; an engine that replays graphs pads"
    if planned != charged:
        yield f"budgets are planned by {planned} tables, and steps charged by {charged} ones"


def write_result(result: SimulationResult, path: str | os.PathLike[str]) -> None:
    """Write the result as JSON; the same result gives the same bytes."""
    from specplan.files._atomic import write_atomically

    write_atomically(path, result.to_json())


def deploy_sentence(result: SimulationResult) -> str:
    """What to deploy at which concurrency, what it gains, and first of all whether that can be relied on."""
    if not result.num_resamples:
        return (
            f"No recommendation: that takes intervals, and so {FEWEST_REQUESTS} requests or more (here "
            f"{result.num_requests}) and --resamples above 0."
        )
    places: dict[str, list[str]] = {}
    for recommendation in result.recommendations:
        places.setdefault(recommendation.policy, []).append(str(recommendation.concurrency))
    unit = "concurrency "
    parts = []
    for policy, concurrencies in places.items():
        parts.append(f"{policy} at {unit}{_join(concurrencies)}")
        unit = ""
    clauses = [_gains(result), *_ties(result.recommendations), *_extrapolation(result)]
    advice = f"{', '.join(parts)}: {'; '.join(clauses)}."
    if reasons := _reasons_to_wait(result):
        return f"Do not rely on this yet: {_join(reasons)}. As things stand: deploy {advice}"
    return f"Deploy {advice}"


def _cells(policy: PolicyResult) -> tuple[str, ...]:
    is_baseline = policy.verdict is None
    return (
        str(policy.concurrency),
        policy.policy,
        f"{policy.output_tokens_per_s:,.1f}",
        _number(policy.tpot_ms, ".3f"),
        _number(policy.mean_accepted_len_plus_1, ".2f"),
        _number(policy.mean_budget, ".1f"),
        _number(policy.wasted_share, ".0%"),
        "-" if is_baseline else f"{policy.gain_over_none.estimate:+.1%}",
        "-" if is_baseline else _interval(policy.gain_over_none),
        policy.verdict or "baseline",
        f"{policy.extrapolated_share:.0%}",
    )


def _calibration(report: CalibrationReport | None) -> str:
    if report is None:
        return "as recorded"
    before, after = report.before, report.after
    return (
        "calibrated on the other half of the requests: log loss of survival "
        f"{before.log_loss:.3f} before, {after.log_loss:.3f} after; calibration error "
        f"{before.expected_calibration_error:.3f} before, {after.expected_calibration_error:.3f} after"
    )


def _gains(result: SimulationResult) -> str:
    by_place = {(policy.policy, policy.concurrency): policy for policy in result.policies}
    speculating = [
        by_place[recommendation.policy, recommendation.concurrency]
        for recommendation in result.recommendations
        if recommendation.policy != "none"
    ]
    if not speculating:
        return "no policy yields more output tokens/s than no speculation, beyond noise"
    unit = "output tokens/s over no speculation "
    gains = []
    for policy in speculating:
        doubt = " (too close to call)" if policy.verdict == "too close to call" else ""
        gain = policy.gain_over_none
        gains.append(f"{gain.estimate:+.1%} [{_interval(gain)}] {unit}at {policy.concurrency}{doubt}")
        unit = ""
    return _join(gains)


def _ties(recommendations: list[Recommendation]) -> list[str]:
    return [
        f"at {recommendation.concurrency} the lead of {recommendation.fastest} is within noise, "
        f"so the simpler {recommendation.policy} is named"
        for recommendation in recommendations
        if recommendation.fastest != recommendation.policy
    ]


def _reasons_to_wait(result: SimulationResult) -> list[str]:
    """What makes the costs or the trace the wrong ones to decide on."""
    reasons = list(result.mismatches)
    error = result.tables.held_out_error
    if error is not None and error > _UNSURE:
        reasons.append(f"the costs did not repeat (held-out error {error:.0%}; measure again on a quiet machine)")
    unknown = max(policy.unknown_share for policy in result.policies)
    if unknown > _UNSURE:
        reasons.append(
            f"nobody knows how far the costs are off that make up to {unknown:.0%} of the time (measure with "
            "--verify-error, or import repetitions)"
        )
    guessed = _chosen_extrapolated(result, _MOSTLY_GUESSED)
    if guessed:
        reasons.append(f"of the steps, {_join(guessed)} cost what was extrapolated, not measured")
    if result.tables.is_draft_free and any(advice.policy != "none" for advice in result.recommendations):
        reasons.append("drafting is priced at nothing, which is right for an n-gram drafter alone")
    if result.tables.is_incomplete:
        reasons.append("the profile behind the costs is incomplete")
    if result.is_approximate:
        reasons.append("the trace is of sampled output, so its replay is approximate")
    return reasons


def _extrapolation(result: SimulationResult) -> list[str]:
    shares = _chosen_extrapolated(result, _MENTIONED)
    if not shares or _chosen_extrapolated(result, _MOSTLY_GUESSED):  # a reason to wait has told of it
        return []
    return [f"of the steps, {_join(shares)} cost what was extrapolated, not measured"]


def _chosen_extrapolated(result: SimulationResult, least: float) -> list[str]:
    """Of the policies recommended, and of `none` beside them, the larger share of steps that were extrapolated."""
    chosen = {(recommendation.policy, recommendation.concurrency) for recommendation in result.recommendations}
    shares = {
        concurrency: max(
            policy.extrapolated_share
            for policy in result.policies
            if policy.concurrency == concurrency and (policy.policy == "none" or (policy.policy, concurrency) in chosen)
        )
        for _, concurrency in sorted(chosen, key=lambda each: each[1])
    }
    return [f"{share:.0%} at {concurrency}" for concurrency, share in shares.items() if share >= least]


def _interval(gain: Gain) -> str:
    if gain.interval is None:
        return "no interval"
    return f"{100 * gain.interval[0]:+.1f}, {100 * gain.interval[1]:+.1f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
