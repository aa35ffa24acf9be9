"""A validation in words and cells: how far off, whether that will do, and what it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from specplan.files import Validation
from specplan.files.validation import CaseValidation, Divergence, LosslessCheck
from specplan.simulation.verdicts import (
    TARGET_ERROR,
    LevelVerdict,
    contributions,
    furthest_off_its_sizes,
    judge_levels,
    num_unexplained,
    num_wrong,
    sizes_by_error,
    total_error_ms,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["validation_report", "verdict_sentence", "wrong_outputs"]

_SIZES_SHOWN = 5
_LEAST_GAIN = 0.001  # what the sentence can still say
_LEFT = ("policy", "verdict", "mostly from", "predicted fastest", "measured fastest", "part", "phases of the measured")


def validation_report(validation: Validation) -> Iterator[RenderableType]:
    """All but the verdict: tables from the whole to the detail, then what was found, then what it rests on."""
    yield case_table(validation)
    yield level_table(validation)
    yield part_table(validation)
    if (case := furthest_off_its_sizes(validation)) is not None:
        yield size_table(case)
    for case in validation.cases:
        yield from _findings(case)
    yield from _notes(validation)


def verdict_sentence(validation: Validation) -> str:
    """Where predictions hold, what a gain has to exceed to be acted on, and first of all whether to rely on it."""
    levels = judge_levels(validation)
    clauses = [*_holds(levels), *_picks(validation, levels)]
    largest = max(level.gain_error for level in levels)
    clauses.append(f"do not act on a predicted gain of less than {max(largest, _LEAST_GAIN):.1%}")
    advice = f"{'; '.join(clauses)}."
    if reasons := _reasons_to_wait(validation):
        return f"Do not rely on this yet: {_join(reasons)}. As things stand: {advice}"
    return advice[0].upper() + advice[1:]


def wrong_outputs(validation: Validation) -> str | None:
    """That the engine was not lossless, in one line; None where it was."""
    wrong = num_wrong(validation)
    checked = sum(case.lossless.num_outputs for case in validation.cases if case.lossless is not None)
    return f"{wrong} of {checked} outputs are not what the target decodes alone" if wrong else None


def case_table(validation: Validation) -> Table:
    """One row per concurrency and policy."""
    rows = [
        (
            str(case.concurrency),
            case.policy,
            f"{case.measured_tokens_per_s:,.1f}",
            f"{case.predicted_tokens_per_s:,.1f}",
            _signed(case.error),
            f"{case.spread:.1%}",
            f"{case.step_mape:.1%}",
            _signed(case.step_bias),
            f"{case.decisions.num_equal} of {case.decisions.num_steps}",
            _lossless(case.lossless),
        )
        for case in validation.cases
    ]
    headers = (
        "conc.", "policy", "measured tokens/s", "predicted tokens/s", "error", "spread of rounds", "step MAPE",
        "step bias", "equal decisions", "lossless",
    )  # fmt: skip
    concurrencies = [case.concurrency for case in validation.cases]
    return _table("Output tokens/s, predicted and measured", headers, rows, groups=concurrencies)


def level_table(validation: Validation) -> Table:
    """One row per concurrency; those outside their limit stand out."""
    levels = judge_levels(validation)
    rows = [
        (
            str(level.concurrency),
            f"{level.median_error:.1%}",
            f"{TARGET_ERROR:.0%}",
            f"{level.spread:.1%}",
            level.verdict,
            _signed(level.bias),
            f"{level.main_source} ({level.main_share:.0%})",
            level.predicted_fastest,
            level.measured_fastest,
            f"{level.pick_loss:.1%}",
        )
        for level in levels
    ]
    headers = (
        "conc.", "median |error|", "target", "spread of rounds", "verdict", "with its sign", "mostly from",
        "predicted fastest", "measured fastest", "lost by the pick",
    )  # fmt: skip
    return _table(
        "Median over the policies, against the target or the spread of the rounds, whichever is more",
        headers,
        rows,
        bold=[level.verdict == "outside" for level in levels],
    )


def part_table(validation: Validation) -> Table:
    """What each part of a step was predicted to take, took, and adds to the error of the time per output token."""
    rows, groups = [], []
    for number, case in enumerate(validation.cases):
        place = (str(case.concurrency), case.policy)
        for found in contributions(case):
            part = found.part
            if part is not None and not part.predicted_ms and not part.measured_ms:
                continue  # drafts of a policy without a drafter
            details = {} if part is None or len(part.measured_detail_ms) < 2 else part.measured_detail_ms
            rows.append(
                (
                    *place,
                    found.source,
                    "-" if part is None else _ms(part.predicted_ms),
                    "-" if part is None else _ms(part.measured_ms),
                    _signed(found.error),
                    f"{found.share:.0%}",
                    ", ".join(f"{phase} {ms:.2f}" for phase, ms in details.items()),
                )
            )
            groups.append(number)
            place = ("", "")
    headers = (
        "conc.", "policy", "part", "predicted", "measured", "time/token", "share", "phases of the measured",
    )  # fmt: skip
    title = "Where the difference comes from: ms per step, and its part in the error of the time per token"
    return _table(title, headers, rows, groups=groups)


def size_table(case: CaseValidation) -> Table:
    """The sizes of one case that put the most time wrong."""
    total = sum(map(total_error_ms, case.sizes))
    shown = sizes_by_error(case)[:_SIZES_SHOWN]
    rows = [
        (
            str(size.num_reqs),
            str(size.executed_tokens),
            "yes" if size.has_prompt_tokens else "no",
            str(size.num_steps),
            _ms(size.predicted_ms),
            _ms(size.measured_ms),
            _signed(size.error),
            f"{total_error_ms(size) / total:.0%}" if total else "-",
        )
        for size in shown
    ]
    headers = (
        "requests", "executed tokens", "prompt tokens", "steps", "predicted ms", "measured ms", "error",
        "share of the case's error",
    )  # fmt: skip
    return _table(
        f"Steps by size, of the case furthest off: {case.policy} at {case.concurrency} "
        f"({len(shown)} of {len(case.sizes)} sizes, those with the most time wrong; medians)",
        headers,
        rows,
    )


def _table(
    title: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    groups: Sequence[int] = (),  # [rows]; a gap follows the last row of each
    bold: Sequence[bool] = (),  # [rows]
) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for header, column in zip(headers, zip(headers, *rows, strict=True), strict=True):
        justify: Literal["left", "right"] = "left" if header in _LEFT else "right"
        longest_word = max(len(word) for cell in column for word in cell.split())
        table.add_column(header, justify=justify, min_width=longest_word, no_wrap=header == "policy")
    for index, cells in enumerate(rows):
        ends_group = bool(groups) and (index + 1 == len(rows) or groups[index + 1] != groups[index])
        table.add_row(*cells, style="bold" if bold and bold[index] else None, end_section=ends_group)
    return table


def _findings(case: CaseValidation) -> Iterator[str]:
    place = f"{case.policy} at {case.concurrency}"
    if case.lossless is not None:
        outputs = f"of {case.lossless.num_outputs} outputs"
        if case.lossless.num_wrong:
            yield (
                f"error: {place}: {case.lossless.num_wrong} {outputs} differ from the target decoding alone, and not "
                "by a tie of its logits: the engine is not lossless here"
            )
        if case.lossless.num_ties:
            yield (
                f"note: {place}: {case.lossless.num_ties} {outputs} differ from the target decoding alone where two of "
                "its logits are within 1e-4: a tie, which the shape of the batch may break either way"
            )
    if case.decisions.first_divergence is not None:
        divergence = case.decisions.first_divergence
        severity = "warning" if divergence.cause == "unexplained" else "note"
        yield (
            f"{severity}: {place}: at step {divergence.step} the engine first parts from the simulator "
            f"({divergence.engine}; simulated: {divergence.simulator}): {_cause(divergence)}"
        )


def _cause(divergence: Divergence) -> str:
    match divergence.cause:
        case "logit tie":
            return f"a logit tie: the target's first token led by {divergence.min_logit_gap:.1e}"
        case "confidence":
            return f"confidences that differ by at most {divergence.max_confidence_difference:.1e}"
        case "unexplained":
            known = (
                ("confidences differ by at most", divergence.max_confidence_difference),
                ("the target's first token led by at least", divergence.min_logit_gap),
            )
            facts = [f"{what} {value:.1e}" for what, value in known if value is not None]
            return f"unexplained{f' ({_join(facts)})' if facts else ''}: a fault of the engine or of the simulator"


def _notes(validation: Validation) -> Iterator[str]:
    environment = validation.environment
    if validation.imposed is None:
        outcomes = f"free-running, up to {validation.max_output_tokens} output tokens"
    else:
        outcomes = f"outcomes imposed by a trace of {validation.imposed}"
    yield (
        f"target {validation.target.name}, draft {validation.draft.name} on {environment.device}, {environment.dtype}; "
        f"{validation.num_requests} requests of {validation.source}, {outcomes}"
    )
    yield (
        f"K = {validation.num_speculative_tokens}, lag {validation.lag}, steps of up to "
        f"{validation.max_num_batched_tokens} tokens; {validation.num_rounds} rounds, each profiling and measuring; "
        "greedy output, by specplan's own engine"
    )


def _lossless(check: LosslessCheck | None) -> str:
    if check is None:
        return "-"
    if check.num_wrong:
        return f"{check.num_wrong} WRONG"
    return "yes" if not check.num_ties else f"yes, {check.num_ties} tied"


def _reasons_to_wait(validation: Validation) -> list[str]:
    reasons = []
    if wrong := wrong_outputs(validation):
        reasons.append(f"{wrong}, so the engine is at fault")
    if unexplained := num_unexplained(validation):
        cases = "1 case" if unexplained == 1 else f"{unexplained} cases"
        reasons.append(f"in {cases} the engine parts from the simulator for no reason that float32 gives")
    return reasons


def _holds(levels: Sequence[LevelVerdict]) -> Iterator[str]:
    """Where predictions meet the target, where the rounds excuse them, and where neither."""
    target = [level for level in levels if level.median_error <= TARGET_ERROR]
    excused = [level for level in levels if level.median_error > TARGET_ERROR and level.verdict == "within"]
    outside = [level for level in levels if level.verdict == "outside"]
    subject, unit = "predictions of tokens/s", "concurrency "
    if target:
        yield f"{subject} hold at {unit}{_places(target)}: median error {_errors(target)}, target {TARGET_ERROR:.0%}"
        subject, unit = "they", ""
    if excused:
        spreads = _join([f"{level.spread:.1%}" for level in excused])
        yield (
            f"{subject} are off by {_errors(excused)} at {unit}{_places(excused)}, more than the target of "
            f"{TARGET_ERROR:.0%}, and the rounds themselves differ by {spreads} (measure again on a quiet machine)"
        )
        subject, unit = "they", ""
    for level in outside:
        yield (
            f"{subject} do not hold at {unit}{level.concurrency}: median error {level.median_error:.1%}, limit "
            f"{level.limit:.1%}, {'too high' if level.bias > 0 else 'too low'}, mostly from {level.main_source} "
            f"({level.main_share:.0%})"
        )
        subject, unit = "they", ""


def _errors(levels: Sequence[LevelVerdict]) -> str:
    return _join([f"{level.median_error:.1%}" for level in levels])


def _picks(validation: Validation, levels: Sequence[LevelVerdict]) -> Iterator[str]:
    """Whether the policy that a plan would name is the one that ran fastest."""
    if len({case.policy for case in validation.cases}) < 2:
        return
    missed = [level for level in levels if level.predicted_fastest != level.measured_fastest]
    if not missed:
        yield "the policy predicted fastest is the one measured fastest at every concurrency"
    for level in missed:
        yield (
            f"at {level.concurrency} the simulator names {level.predicted_fastest} fastest, and "
            f"{level.measured_fastest} was, by {level.pick_loss:.1%}"
        )


def _places(levels: Sequence[LevelVerdict]) -> str:
    return _join([str(level.concurrency) for level in levels])


def _signed(share: float) -> str:
    return f"{round(share, 3) + 0.0:+.1%}"  # never -0.0%


def _ms(value: float) -> str:
    return f"{value:.3f}"


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
