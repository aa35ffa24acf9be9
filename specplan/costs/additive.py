"""Whether tokens and context add up: a verify pass as one cost of its tokens and one of the context that it reads."""

from __future__ import annotations

import numpy as np

from specplan.costs.error import summarise
from specplan.costs.samples import Points
from specplan.files.trust import AdditiveFit

__all__ = ["fit_additive"]

_METHOD = "ms = cost of tokens + context_ms x tokens of context over all requests, at sizes measured twice or more"


def fit_additive(verify: Points) -> AdditiveFit | None:
    """The least squares fit, of relative errors, of

        ms[p] = theta[tokens of p] + context_ms * (requests of p * context of p)

    with a theta of its own for each measured number of tokens. None where the points leave nothing to be found out: no
    size was measured at two contexts in all, or there are no more points than unknowns.
    """
    sizes, column = np.unique(verify.size, return_inverse=True)
    total = (verify.row * verify.page).astype(np.float64)
    num_points, num_unknowns = len(total), len(sizes) + 1
    varies = any(len(np.unique(total[column == each])) > 1 for each in range(len(sizes)))
    if num_points <= num_unknowns or not varies or len(np.unique(verify.page)) < 2:
        return None
    ms, scale = verify.median_ms, max(float(total.max()), 1.0)
    design = np.zeros((num_points, num_unknowns))
    design[np.arange(num_points), column] = 1.0
    design[:, -1] = total / scale
    solution, *_ = np.linalg.lstsq(design / ms[:, None], np.ones(num_points), rcond=None)
    # A size with one point has a theta that fits it: it says nothing of the sum.
    judged = np.bincount(column)[column] > 1
    error = summarise((design @ solution / ms - 1.0)[judged], _METHOD)
    assert error is not None
    # A negative slope is noise: no pass gets cheaper for reading more.
    return AdditiveFit(context_ms=max(float(solution[-1]) / scale, 0.0), error=error)
