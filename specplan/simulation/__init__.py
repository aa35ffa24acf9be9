"""Traces replayed under costs: what each policy would have yielded."""

from specplan.simulation.result import Gain, PolicyResult, Recommendation, SimulationResult, TablesUsed
from specplan.simulation.simulate import FEWEST_REQUESTS, simulate

__all__ = ["FEWEST_REQUESTS", "Gain", "PolicyResult", "Recommendation", "SimulationResult", "TablesUsed", "simulate"]
