from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from specplan.planning import Calibrated, cross_fit_confidence
from specplan.planning.calibration import _loss_and_gradient

K = 3
INTERCEPT = np.array([1.0, 0.5, -0.5])
SLOPE = 0.6


def sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-z))


def drawn(num_rows: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Confidences whose true acceptance is a logistic of their log-odds; forty rows a request."""
    rng = np.random.default_rng(seed)
    log_odds = rng.normal(-0.5, 1.5, (num_rows, K))
    accepted = rng.random((num_rows, K)) < sigmoid(INTERCEPT + SLOPE * log_odds)
    return sigmoid(log_odds).astype(np.float32), np.cumprod(accepted, axis=1).sum(axis=1), np.arange(num_rows) // 40


def calibrate(
    confidence: NDArray[np.float32], accepted_len: NDArray[np.int64], request: NDArray[np.int64]
) -> Calibrated:
    return cross_fit_confidence(confidence, accepted_len, np.full(len(request), K), request)


def test_recovers_the_slope_and_the_intercepts() -> None:
    report = calibrate(*drawn(16_000)).report
    assert report.slopes == pytest.approx([SLOPE, SLOPE], abs=0.06)
    assert np.array(report.intercepts) == pytest.approx(np.array([INTERCEPT, INTERCEPT]), abs=0.12)


def test_held_out_scores_improve() -> None:
    report = calibrate(*drawn(8_000)).report
    assert report.num_drafts == 24_000
    assert report.after.log_loss < report.before.log_loss - 0.05
    assert report.after.brier < report.before.brier
    assert report.after.expected_calibration_error < 0.03 < report.before.expected_calibration_error


def test_a_request_is_calibrated_by_the_other_half_only() -> None:
    confidence, accepted_len, request = drawn(2_000)
    first = calibrate(confidence, accepted_len, request)
    even = request % 2 == 0
    changed = calibrate(confidence, np.where(even, 0, accepted_len), request)
    assert np.array_equal(first.confidence[even], changed.confidence[even])
    assert not np.array_equal(first.confidence[~even], changed.confidence[~even])


def test_drafts_after_the_first_rejection_are_not_observed() -> None:
    confidence, accepted_len, request = drawn(2_000)
    hidden = np.arange(K) > accepted_len[:, None]
    other = np.where(hidden, np.float32(0.123), confidence)
    fitted, refitted = calibrate(confidence, accepted_len, request), calibrate(other, accepted_len, request)
    assert fitted.report.slopes == refitted.report.slopes
    assert np.array_equal(fitted.confidence[~hidden], refitted.confidence[~hidden])


def test_drafts_that_were_not_verified_are_not_observed() -> None:
    confidence, accepted_len, request = drawn(2_000)
    verified_len = np.full(len(request), 1)
    report = cross_fit_confidence(confidence, np.minimum(accepted_len, 1), verified_len, request).report
    assert report.num_drafts == 2_000
    assert np.array(report.intercepts)[:, 1:] == pytest.approx(0)  # the ridge's identity


def test_separable_data_stay_finite() -> None:
    confidence = np.tile(np.array([[0.0], [1.0]], dtype=np.float32), (50, 1))
    accepted_len = np.tile([0, 1], 50)
    calibrated = cross_fit_confidence(confidence, accepted_len, np.ones(100, dtype=np.int64), np.arange(100) // 10)
    assert np.isfinite(calibrated.report.slopes).all()
    assert (calibrated.confidence[::2] < 0.01).all()
    assert (calibrated.confidence[1::2] > 0.99).all()


def test_one_request_is_left_as_it_is() -> None:
    confidence, accepted_len, _ = drawn(40)
    calibrated = calibrate(confidence, accepted_len, np.zeros(40, dtype=np.int64))
    assert calibrated.confidence == pytest.approx(confidence, abs=1e-6)
    assert calibrated.report.slopes[0] == 1


def test_the_gradient_is_the_derivative_of_the_loss() -> None:
    rng = np.random.default_rng(5)
    identity = np.array([1.0, 0, 0, 0])
    cells = (rng.normal(size=60), rng.integers(0, K, 60), rng.integers(0, 2, 60).astype(np.float64))
    weights = rng.normal(size=4)
    _, gradient = _loss_and_gradient(weights, identity, *cells)
    step = 1e-6
    for j in range(4):
        shift = step * np.eye(4)[j]
        above, below = (_loss_and_gradient(weights + sign * shift, identity, *cells)[0] for sign in (1, -1))
        assert gradient[j] == pytest.approx((above - below) / (2 * step), rel=1e-5)


def test_the_number_of_threads_changes_nothing() -> None:
    """A dot product adds in an order that depends on them, and the fit would carry it on."""
    code = """
import hashlib
import numpy as np
from specplan.planning import cross_fit_confidence

rng = np.random.default_rng(0)
confidence = rng.uniform(size=(60_000, 7)).astype(np.float32)
accepted = np.cumprod(rng.uniform(size=confidence.shape) < confidence, axis=1).sum(axis=1)
fitted = cross_fit_confidence(confidence, accepted, np.full(60_000, 7), np.arange(60_000) // 100)
print(hashlib.sha256(fitted.confidence.tobytes() + repr(fitted.report).encode()).hexdigest())
"""
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
        ).stdout
        for threads in ("1", "2")
    }
    assert len(digests) == 1
