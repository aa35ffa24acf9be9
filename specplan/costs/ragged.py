"""How far the price of even steps holds for ragged ones, as a budget leaves them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from specplan.costs.error import summarise
from specplan.costs.samples import Points
from specplan.files.tables import Finding, RegionError

__all__ = ["judge_ragged", "ragged_error"]

_METHOD = "the price of even steps, against ragged ones: all drafts of some requests, none of others, unlike contexts"
_DEARER = 0.02


def ragged_error(
    ragged: Points,
    *,
    pages: NDArray[np.int64],  # [C], contexts of the table
    rows: NDArray[np.int64],  # [R], requests of the table
    table_ms: NDArray[np.float64],  # [C, R, max_size + 1]
) -> RegionError | None:
    """Over the ragged points that the table has a cell for."""
    inside = np.isin(ragged.page, pages) & np.isin(ragged.row, rows) & (ragged.size < table_ms.shape[-1])
    cells = (np.searchsorted(pages, ragged.page[inside]), np.searchsorted(rows, ragged.row[inside]))
    errors = table_ms[(*cells, ragged.size[inside])] / ragged.median_ms[inside] - 1.0
    return summarise(errors[np.isfinite(errors)], _METHOD)


def judge_ragged(error: RegionError | None) -> Iterator[Finding]:
    """Ragged steps that cost more than they are priced at are what a budget pays and does not see."""
    if error is not None and error.bias < -_DEARER:
        yield Finding(
            code="ragged-dearer",
            severity="warning",
            place="verify",
            message=f"ragged steps, as a budget leaves them, cost {-error.bias:.1%} more on average than the even ones "
            f"that price them, over {error.points} points",
            hint="a policy with a budget gains that much less; specplan validate prices ragged steps by ragged ones",
        )
