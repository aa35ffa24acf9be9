"""The only place that times anything: clocks, the sweep that writes a profile, and what it runs on."""

from specplan.measure.grid import MeasuredPoint, ProfilePlan
from specplan.measure.profiling import profile_pair
from specplan.measure.sweep import StoppingRule, SweepProgress

__all__ = ["MeasuredPoint", "ProfilePlan", "StoppingRule", "SweepProgress", "profile_pair"]
