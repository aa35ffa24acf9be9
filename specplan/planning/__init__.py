"""From confidences and costs to what a step should verify."""

from specplan.planning.admission import admit_by_survival
from specplan.planning.budget import BudgetChoice, choose_draft_budget
from specplan.planning.calibration import Calibrated, CalibrationReport, CalibrationScore, cross_fit_confidence
from specplan.planning.policies import KNOWN_POLICIES, Losslessness, Policy, parse_policy
from specplan.planning.survival import survival_probability

__all__ = [
    "KNOWN_POLICIES",
    "BudgetChoice",
    "Calibrated",
    "CalibrationReport",
    "CalibrationScore",
    "Losslessness",
    "Policy",
    "admit_by_survival",
    "choose_draft_budget",
    "cross_fit_confidence",
    "parse_policy",
    "survival_probability",
]
