"""How far a new process found tables off: what it measured again, and what it measured between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specplan.costs.error import summarise
from specplan.files.profile import Profile, Sample
from specplan.files.tables import CostTables, Finding
from specplan.files.trust import Stratum

__all__ = ["judge_verification", "strata_of"]

Kind = Literal["re-run", "held-out"]
Region = Literal["captured", "smooth", "mixed", "draft"]
Shape = tuple[str, str, int, int, int, int | None, int]

_METHOD = {
    "re-run": "points measured again by a new process, against the first medians",
    "held-out": "points between those of the table, measured by a new process, against the table",
}
# On a quiet device: the mean, and what 95 of 100 stay within.
_TARGETS: dict[Kind, tuple[float, float]] = {"re-run": (0.01, 0.02), "held-out": (0.02, 0.05)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verified:
    kind: Kind
    region: Region
    context_len: int
    num_reqs: int
    error: float  # predicted / measured - 1


def strata_of(profile: Profile, tables: CostTables) -> list[Stratum]:
    """Of each kind and region the error over all, then by context, then by requests (powers of two)."""
    verified = list(_verified(profile, tables))
    strata: list[Stratum] = []
    for kind, region in dict.fromkeys((each.kind, each.region) for each in verified):
        of = [each for each in verified if (each.kind, each.region) == (kind, region)]
        strata += _stratum(of, None, None)
        for context_len in sorted({each.context_len for each in of}) if region != "draft" else ():
            strata += _stratum([each for each in of if each.context_len == context_len], context_len, None)
        for power in sorted({each.num_reqs.bit_length() for each in of}):
            num_reqs = (1 << power >> 1, (1 << power) - 1)
            strata += _stratum([each for each in of if each.num_reqs.bit_length() == power], None, num_reqs)
    return strata


def judge_verification(strata: Sequence[Stratum]) -> Iterator[Finding]:
    """The worst region of either kind, where it misses what a quiet device reaches."""
    whole = [stratum for stratum in strata if stratum.is_whole]
    for kind, (most_mape, most_p95) in _TARGETS.items():
        of_kind = [each for each in whole if each.kind == kind]
        missed = [each for each in of_kind if each.error.mape > most_mape or each.error.p95 > most_p95]
        if missed:
            worst = max(missed, key=lambda each: max(each.error.mape / most_mape, each.error.p95 / most_p95))
            yield Finding(
                code=f"{kind}-error",
                severity="warning",
                place=worst.region,
                message=f"{_METHOD[kind]}: MAPE {worst.error.mape:.1%}, p95 {worst.error.p95:.1%}, bias "
                f"{worst.error.bias:+.1%} over {worst.error.points}; a quiet device reaches {most_mape:.0%} and "
                f"{most_p95:.0%}",
                hint="specplan doctor says what here may spoil a measurement; measure again without it",
            )


def _stratum(of: Sequence[_Verified], context_len: int | None, num_reqs: tuple[int, int] | None) -> Iterator[Stratum]:
    error = summarise(np.array([each.error for each in of]), _METHOD[of[0].kind])
    if error is not None:
        yield Stratum(kind=of[0].kind, region=of[0].region, context_len=context_len, num_reqs=num_reqs, error=error)


def _verified(profile: Profile, tables: CostTables) -> Iterator[_Verified]:
    first: dict[Shape, list[float]] = {}
    for sample in profile.samples:
        first.setdefault(_shape_of(sample), []).extend(sample.repetitions_ms)
    for sample in profile.verification:
        again = first.get(_shape_of(sample))
        predicted_ms = float(np.median(again)) if again else _priced_ms(sample, tables)
        region = _region_of(sample, tables)
        if predicted_ms is not None and region is not None and np.isfinite(predicted_ms):
            yield _Verified(
                kind="re-run" if again else "held-out",
                region=region,
                context_len=sample.context_len,
                num_reqs=sample.num_reqs,
                error=predicted_ms / float(np.median(sample.repetitions_ms)) - 1.0,
            )


def _shape_of(sample: Sample) -> Shape:
    return (
        f"{sample.model} {sample.layout} {sample.lengths}",
        sample.mode,
        sample.num_reqs,
        sample.num_tokens,
        sample.context_len,
        sample.k,
        sample.num_prompt_tokens,
    )


def _region_of(sample: Sample, tables: CostTables) -> Region | None:
    if sample.model == "draft":
        return "draft"
    if sample.model != "verify":
        return None
    if sample.shape.is_mixed:
        return "mixed"
    return "captured" if sample.executed_num_tokens <= tables.capture_limit else "smooth"


def _priced_ms(sample: Sample, tables: CostTables) -> float | None:
    """What the tables say of a verify pass; None where it is not one, or they do not reach so far."""
    if sample.model != "verify" or sample.shape.num_verifying > tables.max_num_reqs:
        return None
    if sample.shape.is_mixed:
        verifying = sample.shape.num_verifying
        drafts = sample.shape.num_drafts / verifying if verifying else 0.0
        step = (sample.context_len, verifying, drafts, sample.num_prompt_tokens)
        return None if tables.mixed is None else float(tables.mixed.at(np.array([step]))[0])
    if sample.num_tokens > tables.max_num_tokens:
        return None
    return float(tables.verify_row(sample.num_reqs, sample.context_len)[sample.num_tokens])
