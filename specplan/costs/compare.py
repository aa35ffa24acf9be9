"""Two sets of costs held against each other: what got faster or slower, and what nobody can tell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from msgspec import Struct

from specplan import __version__
from specplan.costs.binding import Difference, differences, identity_of, in_words
from specplan.costs.comparable import FEWEST, REGIONS, Cost, Point, Region, costs_of
from specplan.costs.conditions import judge_conditions
from specplan.costs.findings import fewest_repetitions, judge_profile
from specplan.errors import ConfigError, CoverageError
from specplan.files.profile import Profile
from specplan.files.tables import CostTables

__all__ = [
    "DEFAULT_MARGIN",
    "Comparison",
    "CostsCompared",
    "PointComparison",
    "Ratio",
    "RegionComparison",
    "Verdict",
    "compare_costs",
]

DEFAULT_MARGIN: Final = 0.01  # what a quiet device repeats to

# "undecided": no interval, because nobody knows how sure the costs are.
Verdict = Literal["slower", "faster", "same", "too close to call", "undecided"]
# What may well differ between costs that are compared, because it is what one compares: it is told, and not refused.
_COMPARED = ("driver", "cuda", "torch", "python", "platform")
_MOST_LOG = 700.0  # exp of more overflows; a ratio of a malformed file must not


class Ratio(Struct, frozen=True, kw_only=True):
    """New cost over old, and its 95% interval; null where nobody knows how sure one of the two is."""

    estimate: float
    interval: tuple[float, float] | None


class PointComparison(Struct, frozen=True, kw_only=True):
    point: Point
    old_ms: float
    new_ms: float
    ratio: Ratio
    verdict: Verdict


class RegionComparison(Struct, frozen=True, kw_only=True):
    """All points of a region that both measured.

    `ratio` is the geometric mean over the points that have an interval, and so are the ends of its interval: as if all
    points erred in one direction, for what a machine's mood does to a step it does to all of them. Null, with the
    verdict "undecided", where no point has one.
    """

    region: Region
    ratio: Ratio | None
    verdict: Verdict
    num_only_old: int  # points that the other did not measure
    num_only_new: int
    points: list[PointComparison]

    @property
    def worst(self) -> PointComparison | None:
        """The point that got slower the most, of those with an interval where there are any."""
        sure = [point for point in self.points if point.ratio.interval is not None]
        return max(sure or self.points, key=lambda point: point.ratio.estimate, default=None)

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter(point.verdict for point in self.points)


class CostsCompared(Struct, frozen=True, kw_only=True):
    digest: str
    source: str
    device: str | None
    warnings: list[str]  # of the profile or the tables, in short
    # Of any sample behind tables, where it is too few for an interval; null where nobody knows of such.
    fewest_repetitions: int | None = None


class Comparison(Struct, frozen=True, kw_only=True):
    """What `specplan compare` found. `margin` is the change that counts as none."""

    schema: str = "specplan.comparison/1"
    specplan_version: str = __version__
    kind: Literal["profiles", "tables"]
    margin: float
    old: CostsCompared
    new: CostsCompared
    differences: list[Difference]  # of what costs hold for; empty unless these were compared all the same
    unknown: list[Difference]  # what nobody knows to be the same
    remarks: list[Difference]  # what differs and may
    regions: list[RegionComparison]  # those that either has

    @property
    def slower(self) -> list[RegionComparison]:
        return [region for region in self.regions if region.verdict == "slower"]


def compare_costs(
    old: Profile | CostTables,
    new: Profile | CostTables,
    *,
    margin: float = DEFAULT_MARGIN,
    across: bool = False,
) -> Comparison:
    """`new` against `old`, point by point and region by region.

    Args:
        margin: The change that counts as none: 0.01 is 1%. It is one of ratios, so that 1 / 1.01 counts as 1.01 does.
        across: Whether costs of different things are compared all the same.

    Raises ConfigError if the two are of different kinds or things, CoverageError if no point is in both.
    """
    if not 0 <= margin < 1:
        raise ConfigError(f"the margin is {margin}, expected 0 or more and below 1", "give 0.01 for 1%")
    if isinstance(old, Profile) != isinstance(new, Profile):
        kinds = ["a profile" if isinstance(costs, Profile) else "cost tables" for costs in (old, new)]
        raise ConfigError(
            f"OLD is {kinds[0]} and NEW is {kinds[1]}, expected two profiles or two sets of cost tables",
            "compare the profiles, or build tables of the profile: specplan tables",
        )
    parted = [*differences(identity_of(old), identity_of(new)), *_ways_of_measuring(old, new)]
    binding = [difference for difference in parted if difference.binds and not difference.is_unknown]
    if binding and not across:
        told = "; ".join(in_words(difference, "OLD", "NEW") for difference in binding)
        raise ConfigError(
            f"these are costs of different things: {told}",
            "compare costs of the same device, pair and way of measuring; --across compares these all the same",
        )
    regions = list(_regions(old, new, margin))
    if not any(region.points for region in regions):
        raise CoverageError(
            f"no point was measured in both: {sum(region.num_only_old for region in regions)} in OLD, "
            f"{sum(region.num_only_new for region in regions)} in NEW",
            "profile both at the same requests, sizes and contexts",
        )
    return Comparison(
        kind="profiles" if isinstance(old, Profile) else "tables",
        margin=margin,
        old=_compared(old),
        new=_compared(new),
        differences=binding,
        unknown=[difference for difference in parted if difference.is_unknown],
        remarks=[*(difference for difference in parted if not difference.binds), *_remarks(old, new)],
        regions=regions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogRatio:
    """Logarithms, in which what is slower one way round is faster the other by exactly as much."""

    estimate: float
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, old: Cost, new: Cost) -> _LogRatio:
        """log(new) - log(old), give or take sqrt((old_ci / old)^2 + (new_ci / new)^2): two medians err apart."""
        estimate = math.log(new.ms) - math.log(old.ms)
        if old.ci_ms is None or new.ci_ms is None:
            return cls(estimate=estimate, interval=None)
        half = math.hypot(old.ci_ms / old.ms, new.ci_ms / new.ms)
        return cls(estimate=estimate, interval=(estimate - half, estimate + half))

    @classmethod
    def mean(cls, ratios: Sequence[_LogRatio]) -> _LogRatio | None:
        """Over those that have an interval."""
        sure = [(each.estimate, *each.interval) for each in ratios if each.interval is not None]
        if not sure:
            return None
        estimate, low, high = (math.fsum(values) / len(sure) for values in zip(*sure, strict=True))
        return cls(estimate=estimate, interval=(low, high))

    def judge(self, margin: float) -> Verdict:
        """By where the interval lies: past the margin, within it, or over an edge of it."""
        if self.interval is None:
            return "undecided"
        low, high = self.interval
        edge = math.log1p(margin)
        if low > edge:
            return "slower"
        if high < -edge:
            return "faster"
        return "same" if -edge <= low and high <= edge else "too close to call"

    def ratio(self) -> Ratio:
        interval = None if self.interval is None else (_exp(self.interval[0]), _exp(self.interval[1]))
        return Ratio(estimate=_exp(self.estimate), interval=interval)


def _regions(old: Profile | CostTables, new: Profile | CostTables, margin: float) -> Iterator[RegionComparison]:
    all_old, all_new = costs_of(old), costs_of(new)
    for region in REGIONS:
        before, after = all_old[region], all_new[region]
        ratios = {point: _LogRatio.of(before[point], after[point]) for point in before if point in after}
        mean = _LogRatio.mean(list(ratios.values()))
        if before or after:
            yield RegionComparison(
                region=region,
                ratio=None if mean is None else mean.ratio(),
                verdict="undecided" if mean is None else mean.judge(margin),
                num_only_old=len(before) - len(ratios),
                num_only_new=len(after) - len(ratios),
                points=[
                    PointComparison(
                        point=point,
                        old_ms=before[point].ms,
                        new_ms=after[point].ms,
                        ratio=ratio.ratio(),
                        verdict=ratio.judge(margin),
                    )
                    for point, ratio in ratios.items()
                ],
            )


def _exp(log_ratio: float) -> float:
    return math.exp(min(max(log_ratio, -_MOST_LOG), _MOST_LOG))


def _ways_of_measuring(old: Profile | CostTables, new: Profile | CostTables) -> Iterator[Difference]:
    """What else makes two costs of one thing incomparable: what the clock held, what a graph is, how cells are made."""
    if old.environment is not None and new.environment is not None:
        for aspect in ("timing_scope", "graph_kind"):
            yield from _differing(aspect, getattr(old.environment, aspect), getattr(new.environment, aspect))
    if isinstance(old, CostTables) and isinstance(new, CostTables):
        yield from _differing("monotone", old.monotone, new.monotone)
        yield from _differing("semantics", old.semantics, new.semantics)


def _remarks(old: Profile | CostTables, new: Profile | CostTables) -> Iterator[Difference]:
    if old.environment is not None and new.environment is not None:
        for aspect in _COMPARED:
            values = getattr(old.environment, aspect), getattr(new.environment, aspect)
            yield from _differing(aspect, *values, binds=False)
    for aspect in ("specplan_version", "source", "num_speculative_tokens"):
        yield from _differing(aspect, getattr(old, aspect), getattr(new, aspect), binds=False)
    if old.capture_sizes != new.capture_sizes:
        first, second = (f"{len(costs.capture_sizes)}, up to {costs.capture_limit} tokens" for costs in (old, new))
        yield Difference(aspect="capture_sizes", first=first, second=second, binds=False)


def _differing(aspect: str, old: Any, new: Any, *, binds: bool = True) -> Iterator[Difference]:
    if old is not None and new is not None and old != new:
        yield Difference(aspect=aspect, first=str(old), second=str(new), binds=binds)


def _compared(costs: Profile | CostTables) -> CostsCompared:
    findings = [*judge_profile(costs), *judge_conditions(costs)] if isinstance(costs, Profile) else costs.findings
    fewest = fewest_repetitions(findings) if isinstance(costs, CostTables) else None
    return CostsCompared(
        digest=costs.digest(),
        source=costs.source,
        device=None if costs.environment is None else costs.environment.device,
        warnings=[finding.message for finding in findings if finding.severity == "warning"],
        fewest_repetitions=fewest if fewest is not None and fewest < FEWEST else None,
    )
