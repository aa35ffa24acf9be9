"""Samples to curves to cost tables, their held-out error, and what there is to say about them."""

from __future__ import annotations

from specplan.costs.build import build_cost_tables
from specplan.costs.from_profile import judge_samples, tables_from_profile

__all__ = ["build_cost_tables", "judge_samples", "tables_from_profile"]
