"""Traces replayed under costs: what each policy would have yielded."""

from specplan.simulation.result import Gain, PolicyResult, Recommendation, SimulationResult, TablesUsed
from specplan.simulation.simulate import simulate

__all__ = ["Gain", "PolicyResult", "Recommendation", "SimulationResult", "TablesUsed", "simulate"]
