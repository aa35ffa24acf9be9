"""A comparison of costs, as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from specplan.costs.binding import Difference, in_words
from specplan.costs.comparable import Point, Region
from specplan.costs.compare import Comparison, PointComparison, Ratio, RegionComparison, Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["comparison_report", "comparison_sentence"]

_NAMES: Final[dict[Region, str]] = {
    "captured": "verify captured",
    "smooth": "verify smooth",
    "mixed": "mixed",
    "draft": "draft",
    "host": "host",
    "machinery": "machinery",
    "draft-prefill": "drafter prefill",
}
_VERDICTS: Final[tuple[Verdict, ...]] = ("slower", "faster", "same", "too close to call", "undecided")
_COUNTED: Final[tuple[Verdict, ...]] = ("slower", "faster", "same")
_MOST_POINTS = 20


def comparison_report(comparison: Comparison) -> Iterator[RenderableType]:
    """Regions, the points that changed most, and what all of it rests on."""
    yield region_table(comparison)
    changed = [
        (region.region, point)
        for region in comparison.regions
        for point in region.points
        if point.verdict in ("slower", "faster")
    ]
    if changed:
        yield point_table(changed)
    yield from comparison_notes(comparison)


def comparison_sentence(comparison: Comparison) -> str:
    """Every region under its verdict, what got slower first; or first that nothing did."""
    told = []
    for verdict in _VERDICTS:
        regions = [_region(region) for region in comparison.regions if region.verdict == verdict]
        if regions:
            told.append(f"{verdict}: {', '.join(regions)}")
    if comparison.slower:
        return f"Got {'; '.join(told)}."
    is_sure = all(region.verdict in ("same", "faster") for region in comparison.regions)
    return f"{'Nothing got slower' if is_sure else 'Nothing is known to have got slower'}; {'; '.join(told)}."


def region_table(comparison: Comparison) -> Table:
    table = _table(
        f"Costs of NEW against OLD ({comparison.kind}); same: within {100 * comparison.margin:.3g}%",
        ("region", "points", *_COUNTED, "change", "95% interval", "verdict", "worst point"),
    )
    for region in comparison.regions:
        worst = region.worst
        table.add_row(
            _NAMES[region.region],
            str(len(region.points)),
            *(str(region.counts[verdict]) for verdict in _COUNTED),
            _change(region.ratio),
            _interval(region.ratio),
            region.verdict,
            "-" if worst is None else f"{_change(worst.ratio)}: {place(worst.point)}",
        )
    return table


def point_table(changed: list[tuple[Region, PointComparison]]) -> Table:
    """Those that changed the most, in either direction, first."""
    shown = sorted(changed, key=lambda item: -max(item[1].ratio.estimate, 1 / item[1].ratio.estimate))[:_MOST_POINTS]
    table = _table(
        f"Points that got slower or faster ({len(changed)}; the {len(shown)} that changed most)",
        ("region", "point", "OLD ms", "NEW ms", "change", "95% interval", "verdict"),
    )
    for region, point in shown:
        table.add_row(
            _NAMES[region],
            place(point.point),
            f"{point.old_ms:.4g}",
            f"{point.new_ms:.4g}",
            _change(point.ratio),
            _interval(point.ratio),
            point.verdict,
        )
    return table


def comparison_notes(comparison: Comparison) -> Iterator[str]:
    yield (
        "a region's change is the geometric mean over the points that both measured, and its interval that of their "
        "ends, as if all erred alike; it does not cover what changes from run to run"
    )
    for region in comparison.regions:
        name = _NAMES[region.region]
        for count, mine, other in ((region.num_only_old, "OLD", "NEW"), (region.num_only_new, "NEW", "OLD")):
            if count:
                verb = "is" if count == 1 else "are"
                yield f"warning: {name}: {_count(count, 'points')} of {mine} {verb} not in {other}, and not compared"
        if region.verdict != "slower" and region.counts["slower"]:
            yield (
                f"warning: {name}: {region.counts['slower']} of {len(region.points)} points got slower, though the "
                "region as a whole is not known to have"
            )
        if undecided := region.counts["undecided"]:
            yield f"{name}: {undecided} of {len(region.points)} points have no interval: {_why_unsure(comparison)}"
    for difference in comparison.differences:
        yield f"warning: compared across {in_words(difference, 'OLD', 'NEW')}"
    if comparison.unknown:
        yield f"unknown whether the same: {', '.join(map(_unknown, comparison.unknown))}"
    for difference in comparison.remarks:
        yield f"differs: {in_words(difference, 'OLD', 'NEW')}"
    for name, costs in (("OLD", comparison.old), ("NEW", comparison.new)):
        yield from (f"warning, of {name}: {warning}" for warning in costs.warnings)


def _why_unsure(comparison: Comparison) -> str:
    if comparison.kind == "profiles":
        return "fewer than six repetitions"
    for name, costs in (("OLD", comparison.old), ("NEW", comparison.new)):
        if costs.fewest_repetitions is not None:
            return (
                f"{name} rests on samples of fewer than six repetitions, and tables do not say which; compare profiles"
            )
    return "tables that do not say how sure"


def place(point: Point) -> str:
    """The point in words: `8 requests, 64 tokens, context 128`."""
    verifying = "verifying requests" if point.num_prefilling is None and point.num_prompt_tokens else "requests"
    parts = [
        None if point.num_reqs is None else _count(point.num_reqs, verifying),
        None if point.num_tokens is None else _count(point.num_tokens, "tokens"),
        None if point.k is None else f"k = {point.k}",
        None if point.drafts is None else _count(point.drafts, "drafts") + " each",
        None if point.num_prompt_tokens is None else _count(point.num_prompt_tokens, "prompt tokens"),
        None if point.context_len is None else f"context {point.context_len}",
        None if point.lengths in (None, "even") else str(point.lengths),
    ]
    return ", ".join(part for part in parts if part is not None)


def _unknown(difference: Difference) -> str:
    silent = [name for name, value in (("OLD", difference.first), ("NEW", difference.second)) if value is None]
    who = "neither says" if len(silent) == 2 else f"{silent[0]} does not say"
    return f"{difference.aspect.replace('_', ' ')} ({who})"


def _count(number: int, things: str) -> str:
    return f"{number} {things.removesuffix('s') if number == 1 else things}"


def _region(region: RegionComparison) -> str:
    if region.verdict in ("same", "undecided"):
        return _NAMES[region.region]
    return f"{_NAMES[region.region]} ({_change(region.ratio)} [{_interval(region.ratio)}])"


def _change(ratio: Ratio | None) -> str:
    return "-" if ratio is None else _percent(ratio.estimate) + "%"


def _interval(ratio: Ratio | None) -> str:
    if ratio is None or ratio.interval is None:
        return "-"
    return ", ".join(map(_percent, ratio.interval))


def _percent(ratio: float) -> str:
    """The change that a ratio is; past a hundredfold its size alone says anything."""
    change = 100 * (ratio - 1)
    return f"{change:+.1f}" if change < 10_000 else f"{change:+.1e}"


def _table(title: str, headers: tuple[str, ...]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for header in headers:
        is_text = header in ("region", "point", "verdict", "worst point")
        table.add_column(header, justify="left" if is_text else "right", no_wrap=header != "worst point")
    return table
