"""What a profile or cost tables hold that can be held against another's: costs by region and point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from specplan.costs.findings import fewest_repetitions
from specplan.costs.samples import require_positive
from specplan.costs.uncertainty import median_half_widths
from specplan.files.profile import Machinery, Profile, Sample
from specplan.files.tables import CostTables, Source
from specplan.shapes import Lengths

__all__ = ["FEWEST", "REGIONS", "Cost", "Costs", "Point", "Region", "costs_of"]

Region = Literal["captured", "smooth", "mixed", "draft", "host", "machinery", "draft-prefill"]
REGIONS: Final[tuple[Region, ...]] = ("captured", "smooth", "mixed", "draft", "host", "machinery", "draft-prefill")
# Of n repetitions all lie on one side of the true median with probability 2 / 2^n: below six, no interval is of 95%.
FEWEST: Final = 6
_TERMS: Final[dict[str, Machinery]] = {term: term for term in get_args(Machinery)}


class Point(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was timed, within a region. An axis that does not count there, or that tables do not have, is null."""

    context_len: int | None = None
    num_reqs: int | None = None
    num_tokens: int | None = None  # that ran, padding included
    k: int | None = None
    drafts: int | None = None  # of each verifying request of a mixed step
    num_prompt_tokens: int | None = None
    num_prefilling: int | None = None
    lengths: Lengths | None = None
    mode: Literal["graph", "eager"] | None = None
    term: Machinery | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    ms: float
    ci_ms: float | None  # half-width of the 95% interval; None where nobody knows


Costs: TypeAlias = dict[Region, dict[Point, Cost]]


def costs_of(source: Profile | CostTables) -> Costs:
    """Every region, in the order of REGIONS, and of each its points in ascending order; empty where nothing is known.

    Of a profile: medians of what prices steps. Of tables: the cells that were measured, as priced; what was filled in
    between them says nothing more. Tables do not hold how often a cell was timed: where they tell of samples of fewer
    repetitions than an interval takes, and not of which, none of their intervals counts.
    """
    found = _of_profile(source) if isinstance(source, Profile) else dict(_of_tables(source))
    if isinstance(source, CostTables) and (fewest_repetitions(source.findings) or FEWEST) < FEWEST:
        found = {key: Cost(ms=cost.ms, ci_ms=None) for key, cost in found.items()}
    costs: Costs = {region: {} for region in REGIONS}
    for region, point in sorted(found, key=lambda key: (REGIONS.index(key[0]), _order(key[1]))):
        costs[region][point] = found[region, point]
    return costs


def _order(point: Point) -> Sequence[tuple[bool, str | int]]:
    values = [getattr(point, name) for name in point.__struct_fields__]
    return [(value is not None, 0 if value is None else value) for value in values]


def _of_profile(profile: Profile) -> dict[tuple[Region, Point], Cost]:
    """Samples of a point count as one, and so do the host's of as many requests: their tokens follow the traffic."""
    drafts = {sample.mode for sample in profile.samples if sample.model == "draft"}
    series: dict[tuple[Region, Point], list[float]] = {}
    for index, sample in enumerate(profile.samples):
        region = _region(sample, profile.capture_limit, draft_mode="graph" if "graph" in drafts else "eager")
        if region is not None:
            require_positive(index, sample)
            point = Point(num_reqs=sample.num_reqs) if region == "host" else _point(sample)
            series.setdefault((region, point), []).extend(sample.repetitions_ms)
    repetitions = [np.array(values) for values in series.values()]
    widths = median_half_widths(repetitions).tolist() if repetitions else []
    return {
        key: Cost(ms=float(np.median(values)), ci_ms=width if len(values) >= FEWEST else None)
        for key, values, width in zip(series, repetitions, widths, strict=True)
    }


def _region(sample: Sample, capture_limit: int, *, draft_mode: str) -> Region | None:
    """None for what prices no step: another layout, a pass's end, a mode that a step of this size does not run in."""
    if sample.layout != "multi-query":
        return None
    if sample.model == "draft":
        return "draft" if sample.mode == draft_mode else None
    if sample.model == "verify":
        if sample.shape.is_mixed:
            return "mixed"
        if sample.executed_num_tokens > capture_limit:
            return "smooth"
        return "captured" if sample.mode == "graph" else None
    if sample.model in ("host", "draft-prefill"):
        return sample.model
    return "machinery" if sample.model in _TERMS else None


def _point(sample: Sample) -> Point:
    return Point(
        context_len=sample.context_len,
        num_reqs=sample.num_reqs,
        num_tokens=sample.executed_num_tokens,
        k=sample.k,
        num_prompt_tokens=sample.num_prompt_tokens or None,
        num_prefilling=sample.num_prefilling or None,
        lengths=sample.lengths,
        mode=sample.mode,
        term=_TERMS.get(sample.model),
    )


def _of_tables(tables: CostTables) -> Iterator[tuple[tuple[Region, Point], Cost]]:
    for context, by_requests in enumerate(tables.verify_table_ms):
        for request, row in enumerate(by_requests):
            at = (context, request)
            ci_ms = None if tables.verify_ci_ms is None else tables.verify_ci_ms[at]
            for size, cost in _measured(row, tables.verify_source[at], ci_ms):
                point = Point(context_len=tables.contexts[context], num_reqs=tables.num_reqs[request], num_tokens=size)
                yield ("captured" if size <= tables.capture_limit else "smooth", point), cost
    for index, row in enumerate(tables.draft_table_ms):
        k = None if tables.draft_ks is None else tables.draft_ks[index]
        ci_ms = None if tables.draft_ci_ms is None else tables.draft_ci_ms[index]
        for size, cost in _measured(row, tables.draft_source[index], ci_ms):
            yield ("draft", Point(num_reqs=size, k=k)), cost
    for size, cost in _measured(tables.overhead_ms, tables.overhead_source, tables.overhead_ci_ms):
        yield ("host", Point(num_reqs=size)), cost
    if tables.machinery is not None:
        for term, row, ci_row in zip(tables.machinery.terms, tables.machinery.ms, tables.machinery.ci_ms, strict=True):
            for size in tables.num_reqs:
                yield (
                    ("machinery", Point(num_reqs=size, term=term)),
                    Cost(ms=float(row[size]), ci_ms=float(ci_row[size])),
                )
    prefill = tables.draft_prefill_ms, tables.draft_prefill_source, tables.draft_prefill_ci_ms
    for size, cost in _measured(*prefill):
        yield ("draft-prefill", Point(num_tokens=size)), cost
    yield from _of_mixed(tables)


def _of_mixed(tables: CostTables) -> Iterator[tuple[tuple[Region, Point], Cost]]:
    mixed = tables.mixed
    if mixed is None:
        return
    for (context, verifying, drafts, prompts), ms in np.ndenumerate(mixed.ms):
        num_verifying = mixed.num_verifying[verifying]
        if num_verifying or not (context or drafts):  # without verifying requests there is neither
            point = Point(
                context_len=mixed.contexts[context] if num_verifying else None,
                num_reqs=num_verifying,
                drafts=mixed.drafts[drafts] if num_verifying else None,
                num_prompt_tokens=mixed.prompt_tokens[prompts],
            )
            yield ("mixed", point), Cost(ms=float(ms), ci_ms=float(mixed.ci_ms[context, verifying, drafts, prompts]))


def _measured(
    ms: NDArray[np.float64],  # [max_size + 1]
    source: NDArray[np.uint8] | None,  # [max_size + 1] of Source
    ci_ms: NDArray[np.float64] | None,  # [max_size + 1]
) -> Iterator[tuple[int, Cost]]:
    """Cells from size 1 on that were measured and are no gift: a drafter that costs nothing has no ratio."""
    if source is not None:
        for size in np.flatnonzero((source == Source.MEASURED) & (ms > 0)).tolist():
            if size:
                yield size, Cost(ms=float(ms[size]), ci_ms=None if ci_ms is None else float(ci_ms[size]))
