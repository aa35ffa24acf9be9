"""Reads cost tables, or makes them of a profile: whichever a command is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specplan.files import CostTables

__all__ = ["read_tables"]


def read_tables(path: Path) -> CostTables:
    """The file's own, or those that `specplan tables` would make of its samples."""
    from specplan.costs import tables_from_profile
    from specplan.files import CostTables, read_costs

    costs = read_costs(path)
    return costs if isinstance(costs, CostTables) else tables_from_profile(costs)
