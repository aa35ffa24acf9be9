"""Confidences made into acceptance probabilities, and how much that helps on requests the fit has not seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from specplan.planning.survival import survival_probability

__all__ = ["Calibrated", "CalibrationReport", "CalibrationScore", "cross_fit_confidence"]

_CLIP = 1e-6  # keeps the log-odds of 0 and 1 finite
_RIDGE = 1.0  # pulls towards the identity with the weight of about one observation
_ECE_BINS = 10


class CalibrationScore(msgspec.Struct, frozen=True, kw_only=True):
    """How far predicted survival is from what happened, over every verified draft. Lower is better."""

    log_loss: float  # nats
    brier: float
    expected_calibration_error: float  # over ten equal bins


class CalibrationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Survival scored before and after; each request was calibrated by the half it is not in."""

    num_drafts: int
    before: CalibrationScore
    after: CalibrationScore
    slopes: tuple[float, float]  # of the fit applied to even requests, to odd ones
    intercepts: tuple[list[float], list[float]]  # [K] each


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """Calibrated confidences, and their report."""

    confidence: NDArray[np.float32]  # [rows, K]
    report: CalibrationReport


def cross_fit_confidence(
    confidence: NDArray[np.float32],  # [rows, K]
    accepted_len: NDArray[np.integer[Any]],  # [rows]
    verified_len: NDArray[np.integer[Any]],  # [rows]
    request: NDArray[np.integer[Any]],  # [rows]
) -> Calibrated:
    """Calibrate even requests by a fit on odd ones, and odd by a fit on even ones.

        P(draft i accepted | drafts before it were) = sigmoid(intercept[i] + slope * logit(confidence[r, i]))

    fitted by maximum likelihood on the observed cells: i <= accepted_len and i < verified_len. Whole requests change
    sides, because positions of one request resemble each other. A half with nothing observed leaves the other as it is.
    At least one draft must have been verified.
    """
    log_odds = _logit(confidence)
    position = np.arange(confidence.shape[1])
    observed = (position <= accepted_len[:, None]) & (position < verified_len[:, None])
    accepted = position < accepted_len[:, None]

    calibrated = np.empty_like(confidence)
    fits = []
    for parity in (0, 1):
        applied = request % 2 == parity
        slope, intercept = _fit(log_odds[~applied], accepted[~applied], observed[~applied])
        calibrated[applied] = _sigmoid(intercept + slope * log_odds[applied])
        fits.append((slope, intercept.tolist()))

    report = CalibrationReport(
        num_drafts=int(verified_len.sum()),
        before=_score(confidence, accepted, verified_len),
        after=_score(calibrated, accepted, verified_len),
        slopes=(fits[0][0], fits[1][0]),
        intercepts=(fits[0][1], fits[1][1]),
    )
    return Calibrated(confidence=calibrated, report=report)


def _fit(
    log_odds: NDArray[np.float64],  # [rows, K]
    accepted: NDArray[np.bool_],  # [rows, K]
    observed: NDArray[np.bool_],  # [rows, K]
) -> tuple[float, NDArray[np.float64]]:  # slope, intercept [K]
    """Minimise the negative log-likelihood plus a ridge around slope 1 and intercept 0.

    The ridge keeps separable data finite, and leaves a position that was never observed as it is.
    """
    from scipy.optimize import minimize

    identity = np.concatenate(([1.0], np.zeros(log_odds.shape[1])))
    cells = (log_odds[observed], np.nonzero(observed)[1], accepted[observed].astype(np.float64))
    weights: NDArray[np.float64] = minimize(
        _loss_and_gradient, identity, args=(identity, *cells), jac=True, method="L-BFGS-B"
    ).x
    return float(weights[0]), weights[1:]


def _loss_and_gradient(
    weights: NDArray[np.float64],  # [1 + K]: the slope, then the intercepts
    identity: NDArray[np.float64],  # [1 + K]
    log_odds: NDArray[np.float64],  # [cells]
    position: NDArray[np.intp],  # [cells]
    outcome: NDArray[np.float64],  # [cells]
) -> tuple[float, NDArray[np.float64]]:
    z = weights[0] * log_odds + weights[1:][position]
    residual = _sigmoid(z) - outcome
    pull = _RIDGE * (weights - identity)
    # Sums, not dot products: BLAS adds in an order that depends on its threads, and results must not.
    loss = (np.logaddexp(0.0, z) - outcome * z).sum() + 0.5 * (pull * (weights - identity)).sum()
    by_position = np.bincount(position, weights=residual, minlength=len(weights) - 1)
    return float(loss), np.concatenate(([(residual * log_odds).sum()], by_position)) + pull


def _score(
    confidence: NDArray[np.float32],  # [rows, K]
    accepted: NDArray[np.bool_],  # [rows, K]
    verified_len: NDArray[np.integer[Any]],  # [rows]
) -> CalibrationScore:
    verified = np.arange(confidence.shape[1]) < verified_len[:, None]
    predicted = survival_probability(confidence, verified_len)[verified].astype(np.float64)
    outcome = accepted[verified].astype(np.float64)
    clipped = np.clip(predicted, _CLIP, 1 - _CLIP)
    log_loss = -(outcome * np.log(clipped) + (1 - outcome) * np.log1p(-clipped)).mean()
    # |sum of predictions - sum of outcomes| per bin is the bin's gap times its share of the drafts.
    bins = np.minimum((predicted * _ECE_BINS).astype(np.int64), _ECE_BINS - 1)
    gaps = np.bincount(bins, weights=predicted - outcome, minlength=_ECE_BINS)
    return CalibrationScore(
        log_loss=float(log_loss),
        brier=float(((predicted - outcome) ** 2).mean()),
        expected_calibration_error=float(np.abs(gaps).sum() / predicted.size),
    )


def _logit(probability: NDArray[np.float32]) -> NDArray[np.float64]:
    clipped = np.clip(probability.astype(np.float64), _CLIP, 1 - _CLIP)
    log_odds: NDArray[np.float64] = np.log(clipped) - np.log1p(-clipped)
    return log_odds


def _sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    probability: NDArray[np.float64] = 0.5 * (1.0 + np.tanh(0.5 * z))  # never overflows
    return probability
