"""Whether a trace and the costs that it is replayed under are of the same things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specplan.costs.binding import MODELS, Difference, differences, identity_of, in_words, recorded_pair
from specplan.errors import ConfigError
from specplan.files.tables import CostTables
from specplan.files.trace import Trace

__all__ = ["Bindings", "bind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """One sentence for each thing that is another, and one for all of a kind that nobody knows to be the same."""

    mismatches: list[str]  # of the pair that was recorded and the one whose steps are priced
    planner_mismatches: list[str]  # of the costs that a budget believes and those that are charged
    unknown: list[str]

    def require(self) -> None:
        """Refuses what is another. The unknown is no reason to: a trace that was imported knows nothing."""
        found = self.mismatches + self.planner_mismatches
        if found:
            raise ConfigError(
                "; ".join(found),
                "use costs that were profiled for the trace's pair on the device planned for, or leave out --strict",
            )


def bind(trace: Trace, tables: CostTables, planner: CostTables) -> Bindings:
    """Planner's tables of another device may be meant, to see what they would lose: the figures hold all the same."""
    charged = identity_of(tables)
    pair = differences(recorded_pair(trace.metadata), charged, MODELS)
    believed = [] if planner is tables else differences(charged, identity_of(planner))
    unknown = []
    if silent := _unknown(pair):
        unknown.append(f"whether the trace's {silent} is the one whose steps are priced")
    if silent := _unknown(believed):
        unknown.append(f"whether the planner's tables are of the {silent} that is charged")
    return Bindings(
        mismatches=[
            f"the trace's {each.aspect}, {each.first}, is not the one whose steps are priced, {each.second}"
            for each in pair
            if not each.is_unknown
        ],
        planner_mismatches=[
            f"the planner's tables are not of what is charged: {in_words(each, 'those charged', 'the planner')}"
            for each in believed
            if each.binds and not each.is_unknown
        ],
        unknown=unknown,
    )


def _unknown(found: Sequence[Difference]) -> str:
    return ", ".join(each.aspect.replace("_", " ") for each in found if each.is_unknown)
