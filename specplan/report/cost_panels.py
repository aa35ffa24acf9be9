"""What the picture of cost tables shows: lines of cells beside the points they were made from, panel by panel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from specplan.costs.mixed import mixed_cells
from specplan.costs.samples import Points, draft_points, of_lengths, verify_points
from specplan.errors import CoverageError
from specplan.files.mixed_costs import MixedCosts
from specplan.files.profile import Profile
from specplan.files.tables import CostTables, Source
from specplan.report.tables import shown_ks

__all__ = ["Measured", "Panel", "Series", "Step", "cost_panels"]

Mode = Literal["graph", "eager"]
MODES: tuple[Mode, ...] = ("graph", "eager")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Points of one mode: medians, and the middle half of their repetitions."""

    mode: Mode
    size: NDArray[np.int64]  # [P]
    median_ms: NDArray[np.float64]  # [P]
    low_ms: NDArray[np.float64]  # [P], the 25th percentile
    high_ms: NDArray[np.float64]  # [P], the 75th


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line. `rank` is its place in its panel and gives its colour: 0 the smallest, 2 the largest.

    `is_stepped`: a size between two others costs what the larger does. `is_dotted`: it costs nothing that is known.
    `is_faint`: it stands behind another.
    """

    name: str
    rank: int
    size: NDArray[np.int64]  # [S], ascending
    value: NDArray[np.float64]  # [S]
    is_extrapolated: NDArray[np.bool_]  # [S]
    measured: tuple[Measured, ...] = ()
    is_stepped: bool = False
    is_dotted: bool = False
    is_faint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Of a staircase: `first` to `last` tokens all cost `ms`."""

    first: int
    last: int
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`baseline` is the value that the others are held against, and is in sight unless the axis is logarithmic."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    baseline: float = 0.0
    capture_limit: int = 0  # 0: none
    step: Step | None = None
    faint_note: str = ""
    note: str = ""


def cost_panels(profile: Profile, tables: CostTables) -> list[Panel]:
    """Verify passes always; then how much dearer drafts make a step, drafting, and steps with prompts, if measured."""
    # What was timed on steps of other lengths is none of these costs.
    profile = of_lengths(profile, "even")
    panels = [verify_panel(profile, tables)]
    ratios = (relative_series(tables, n, rank) for rank, n in ranked(tables.num_reqs))
    if with_drafts := [line for line in ratios if len(line.size) > 1]:
        panels.append(relative_panel(with_drafts))
    if tables.draft_ks is not None:
        panels.append(draft_panel(profile, tables, tables.draft_ks))
    if tables.mixed is not None:
        panels.append(mixed_panel(profile, tables.mixed))
    return panels


def verify_panel(profile: Profile, tables: CostTables) -> Panel:
    shortest, longest = tables.contexts[0], tables.contexts[-1]
    series = [verify_series(profile, tables, n, longest, rank) for rank, n in ranked(tables.num_reqs)]
    series = [line for line in series if len(line.size)]
    if not series:
        raise CoverageError(
            f"there is nothing to draw: these tables hold no cost of a verify pass at context {longest} (exact)",
            "draw another reading of them: specplan tables PROFILE --semantics padded --plot FILE",
        )
    step = widest_step(tables, series)
    title = "What a verify pass costs by the tokens in it"
    if tables.semantics == "exact":
        title += ": sizes that were not measured have no cost"
    elif step is not None:
        title = "A step costs the same up to the next captured size"
        if max(int(line.size[-1]) for line in series) > tables.capture_limit:
            title += "; past the largest one, cost is smooth"
    elif not tables.capture_limit:
        title = "No verify pass is captured, so none is padded: cost is smooth"
    faint = []
    if shortest < longest:
        behind = (verify_series(profile, tables, n, shortest, rank) for rank, n in ranked(tables.num_reqs))
        faint = [replace(line, measured=(), is_faint=True) for line in behind if len(line.size)]
    return Panel(
        title=title,
        x_label="tokens in the verify pass = requests x (1 + drafts of each)",
        y_label=f"ms per verify pass, context {longest:,}",
        series=(*faint, *series),
        capture_limit=tables.capture_limit,
        step=step,
        faint_note=f"the same at context {shortest:,}" if faint else "",
    )


def verify_series(profile: Profile, tables: CostTables, num_reqs: int, context_len: int, rank: int) -> Series:
    """From the fewest tokens so many requests can have to all their drafts, or to the last size they were measured at.

    The most requests go on as far as the tables do.
    """
    timed = {mode: verify_points(of_mode(profile, mode)) for mode in MODES}
    here = {mode: (points.page == context_len) & (points.row == num_reqs) for mode, points in timed.items()}
    last = tables.max_num_tokens
    if num_reqs != tables.num_reqs[-1]:
        reached = [size for mode, points in timed.items() for size in points.size[here[mode]].tolist()]
        last = min(last, max(num_reqs * (1 + shown_ks(tables)[-1]), *reached))
    row = tables.verify_row(num_reqs, context_len)
    size = np.arange(min(num_reqs, last), last + 1)
    size = size[np.isfinite(row[size])]
    return Series(
        name=counted(num_reqs, "request"),
        rank=rank,
        size=size,
        value=row[size],
        is_extrapolated=tables.verify_sources(num_reqs, context_len)[size] == "x",
        measured=tuple(measured_at(points, here[mode] & (points.size <= last), mode) for mode, points in timed.items()),
        is_stepped=tables.semantics != "exact",
        is_dotted=tables.semantics == "exact",
    )


def of_mode(profile: Profile, mode: Mode) -> Profile:
    """What was timed in one mode, whatever a step of its size would run in: no size is captured."""
    samples = [sample for sample in profile.samples if sample.mode == mode]
    return msgspec.structs.replace(profile, samples=samples, capture_sizes=[])


def widest_step(tables: CostTables, series: Sequence[Series]) -> Step | None:
    """The one that is easiest to see where an axis shows ratios; none where no drawn step is padded."""
    steps = []
    for line in series:
        cells = dict(zip(line.size.tolist(), line.value.tolist(), strict=True))
        for smaller, larger in zip(tables.capture_sizes, tables.capture_sizes[1:], strict=False):
            first = smaller + 1
            if first < larger and first in cells and larger in cells and cells[first] == cells[larger]:
                steps.append(Step(first=first, last=larger, ms=cells[larger]))
    return max(steps, key=lambda step: (step.last / step.first, step.last), default=None)


def relative_panel(series: list[Series]) -> Panel:
    most = max(int(line.size[-1]) for line in series)
    ratios = [float(line.value[-1]) for line in series if line.size[-1] == most]
    low, high = f"{min(ratios):.3g}", f"{max(ratios):.3g}"
    return Panel(
        title=f"A step with {counted(most, 'draft')} each costs {low if low == high else f'{low} to {high}'} times "
        "one without speculation",
        x_label="k, drafts of each request",
        y_label="times a step without speculation",
        series=tuple(series),
        baseline=1.0,
        note="drafting pays where a step yields more\ntokens per request than its line says",
    )


def relative_series(tables: CostTables, num_reqs: int, rank: int) -> Series:
    """A whole step (verify pass, drafting, the host's work) over one of as many requests without a drafter."""
    row = tables.verify_row(num_reqs, tables.contexts[-1])
    verify_x = tables.verify_sources(num_reqs, tables.contexts[-1]) == "x"
    host_ms, bare_ms = (
        tables.step_overhead_ms(has_drafts=has_drafts, has_budget=False)[num_reqs] for has_drafts in (True, False)
    )
    ks, ratios, extrapolated = [0], [1.0], [False]
    if not math.isfinite(row[num_reqs]):
        row = np.full_like(row, np.inf)  # there is no step to hold the others against
    for k in shown_ks(tables)[1 : tables.max_num_tokens // num_reqs]:
        if tables.draft_ks is None or tables.draft_ks[0] <= k <= tables.draft_ks[-1]:
            num_tokens = num_reqs * (1 + k)
            if not math.isfinite(row[num_tokens]):
                continue
            step_ms = row[num_tokens] + tables.draft_row(k)[num_reqs] + host_ms
            ks.append(k)
            ratios.append(float(step_ms / (row[num_reqs] + bare_ms)))
            extrapolated.append(bool(verify_x[num_tokens] or verify_x[num_reqs] or draft_x(tables, k)[num_reqs]))
    return Series(
        name=counted(num_reqs, "request"),
        rank=rank,
        size=np.array(ks),
        value=np.array(ratios),
        is_extrapolated=np.array(extrapolated),
        is_dotted=tables.semantics == "exact",
    )


def draft_panel(profile: Profile, tables: CostTables, draft_ks: list[int]) -> Panel:
    ks = [k for k in draft_ks if k] or draft_ks  # k = 0 drafts nothing
    series = tuple(draft_series(profile, tables, k, rank) for rank, k in ranked(ks))
    row = series[-1].value
    title = f"Drafting {counted(ks[-1], 'token')} each takes {in_ms(row[0])} for 1 request"
    if len(row) > 1:
        title += f", {in_ms(row[-1])} for {len(row):,}"
    return Panel(title=title, x_label="requests in the step", y_label="ms to draft k tokens each", series=series)


def draft_series(profile: Profile, tables: CostTables, k: int, rank: int) -> Series:
    most = tables.max_num_reqs
    size = np.arange(1, most + 1)
    measured = []
    for mode in MODES:
        points = draft_points(of_mode(profile, mode))
        measured.append(measured_at(points, (points.row == k) & (points.size <= most), mode))
    return Series(
        name=f"k = {k}",
        rank=rank,
        size=size,
        value=tables.draft_row(k)[size],
        is_extrapolated=draft_x(tables, k)[size],
        measured=tuple(measured),
        is_stepped=True,
    )


def draft_x(tables: CostTables, k: int) -> NDArray[np.bool_]:  # [max_num_reqs + 1]
    """Where the cost of drafting `k` tokens rests on extrapolation."""
    if tables.draft_ks is None:
        return np.zeros(tables.max_num_reqs + 1, dtype=np.bool_)
    high = int(np.searchsorted(tables.draft_ks, k))
    rows = [high] if tables.draft_ks[high] == k else [high - 1, high]
    rests: NDArray[np.bool_] = tables.draft_source[rows].max(axis=0) == Source.EXTRAPOLATED
    return rests


def mixed_panel(profile: Profile, mixed: MixedCosts) -> Panel:
    """The fewest verifying requests, which are none where prompts ran alone; the most, without drafts and with all."""
    last_v, last_d = len(mixed.num_verifying) - 1, len(mixed.drafts) - 1
    places = list(dict.fromkeys([(0, 0), (last_v, 0), (last_v, last_d)]))
    series = tuple(
        mixed_series(profile, mixed, v, d, rank) for rank, (v, d) in zip(RANKS[len(places)], places, strict=True)
    )
    costs = [f"{in_ms(line.value[-1])} {' '.join(line.name.split())}" for line in (series[0], series[-1])]
    return Panel(
        title=f"{counted(mixed.prompt_tokens[-1], 'prompt token')}: {', '.join(dict.fromkeys(costs))}",
        x_label="prompt tokens in the step",
        y_label="ms per verify pass with prompts",
        series=series,
    )


def mixed_series(profile: Profile, mixed: MixedCosts, v: int, d: int, rank: int) -> Series:
    num_verifying, drafts = mixed.num_verifying[v], mixed.drafts[d]
    name, composition = "alone", (0, 0, 0)
    if num_verifying:
        name = f"beside {counted(num_verifying, 'request')},\n{counted(drafts, 'draft')} each"
        composition = (mixed.contexts[-1], num_verifying, drafts)
    by_size = mixed_cells(profile).get(composition, {})
    sizes = sorted(by_size)
    repetitions_ms = [np.array(by_size[size]) for size in sizes]
    size = np.arange(mixed.prompt_tokens[0], mixed.prompt_tokens[-1] + 1)
    return Series(
        name=name,
        rank=rank,
        size=size,
        value=np.interp(size, mixed.prompt_tokens, mixed.ms[-1, v, d]),
        is_extrapolated=np.zeros(len(size), dtype=np.bool_),
        measured=(spread("eager", np.array(sizes, dtype=np.int64), repetitions_ms),),
    )


def measured_at(points: Points, chosen: NDArray[np.bool_], mode: Mode) -> Measured:
    at = np.flatnonzero(chosen)
    return spread(mode, points.size[at], [points.repetitions_ms[index] for index in at])


def spread(
    mode: Mode,
    size: NDArray[np.int64],  # [P]
    repetitions_ms: Sequence[NDArray[np.float64]],  # [P] of [repetitions]
) -> Measured:
    quartiles = np.array([np.percentile(repetitions, [25, 50, 75]) for repetitions in repetitions_ms]).reshape(-1, 3)
    return Measured(mode=mode, size=size, median_ms=quartiles[:, 1], low_ms=quartiles[:, 0], high_ms=quartiles[:, 2])


RANKS = {1: (2,), 2: (0, 2), 3: (0, 1, 2)}


def ranked(axis: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The smallest entry, the middle one and the largest, each with its rank."""
    shown = sorted({axis[0], axis[len(axis) // 2], axis[-1]})
    return zip(RANKS[len(shown)], shown, strict=True)


def counted(count: int, noun: str) -> str:
    return f"{format(count, ',') if count else 'no'} {noun}{'' if count == 1 else 's'}"


def in_ms(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.2g} ms"
