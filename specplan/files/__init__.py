"""The contracts between the wings: what each file holds, and how it is read and written."""

from __future__ import annotations

from specplan.files._atomic import require_writable
from specplan.files.cost_files import read_costs
from specplan.files.profile import Environment, Failure, ModelInfo, Profile, Reading, Sample, Sentinel
from specplan.files.tables import CostTables, Finding, HeldOutError, RegionError, Source
from specplan.files.trace import Trace, TraceMetadata, require_trace_suffix
from specplan.files.validation import Validation

__all__ = [
    "CostTables",
    "Environment",
    "Failure",
    "Finding",
    "HeldOutError",
    "ModelInfo",
    "Profile",
    "Reading",
    "RegionError",
    "Sample",
    "Sentinel",
    "Source",
    "Trace",
    "TraceMetadata",
    "Validation",
    "read_costs",
    "require_trace_suffix",
    "require_writable",
]
