"""From confidences and costs to what a step should verify."""

from specplan.planning.admission import admit_by_survival
from specplan.planning.budget import BudgetChoice, choose_draft_budget
from specplan.planning.calibration import Calibrated, CalibrationReport, CalibrationScore, cross_fit_confidence
from specplan.planning.ema import EmaController
from specplan.planning.policies import KNOWN_POLICIES, Losslessness, Policy, parse_policy
from specplan.planning.route_check import Choice, RouteCheck, StepPrice, check_route
from specplan.planning.routes import (
    AttentionSupport,
    Captured,
    GraphMode,
    StepRoute,
    parse_attention,
    parse_graph_mode,
    resolve_graph_mode,
    route_step,
)
from specplan.planning.survival import survival_probability

__all__ = [
    "KNOWN_POLICIES",
    "AttentionSupport",
    "BudgetChoice",
    "Calibrated",
    "CalibrationReport",
    "CalibrationScore",
    "Captured",
    "Choice",
    "EmaController",
    "GraphMode",
    "Losslessness",
    "Policy",
    "RouteCheck",
    "StepPrice",
    "StepRoute",
    "admit_by_survival",
    "check_route",
    "choose_draft_budget",
    "cross_fit_confidence",
    "parse_attention",
    "parse_graph_mode",
    "parse_policy",
    "resolve_graph_mode",
    "route_step",
    "survival_probability",
]
