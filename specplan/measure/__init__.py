"""The only place that times anything: clocks, the sweep behind a profile, the engine held against the price."""

from specplan.measure.grid import MeasuredPoint, ProfilePlan
from specplan.measure.profiling import profile_pair
from specplan.measure.sweep import StoppingRule, SweepProgress
from specplan.measure.validation import validate_pair
from specplan.measure.validation_plan import ValidationPlan

__all__ = [
    "MeasuredPoint",
    "ProfilePlan",
    "StoppingRule",
    "SweepProgress",
    "ValidationPlan",
    "profile_pair",
    "validate_pair",
]
