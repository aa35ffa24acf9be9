"""The contracts between the wings: what each file holds, and how it is read and written."""

from __future__ import annotations

from specplan.files.profile import Environment, ModelInfo, Profile, Sample
from specplan.files.tables import CostTables, Finding, HeldOutError, RegionError, Source
from specplan.files.trace import Trace, TraceMetadata, require_trace_suffix

__all__ = [
    "CostTables",
    "Environment",
    "Finding",
    "HeldOutError",
    "ModelInfo",
    "Profile",
    "RegionError",
    "Sample",
    "Source",
    "Trace",
    "TraceMetadata",
    "require_trace_suffix",
]
