"""What one context lends another that lacks it: verify passes that were timed at some contexts alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplan.costs.samples import Points
from specplan.files.tables import Finding

__all__ = ["Cells", "judge_lending", "lend_contexts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Costs of `Points`, and of what they lent each other."""

    page: NDArray[np.int64]  # [L]
    row: NDArray[np.int64]  # [L]
    size: NDArray[np.int64]  # [L]
    ms: NDArray[np.float64]  # [L]
    ci_ms: NDArray[np.float64]  # [L]
    is_lent: NDArray[np.bool_]  # [L]


def lend_contexts(
    points: Points,
    ms: NDArray[np.float64],  # [P]
    ci_ms: NDArray[np.float64],  # [P]
) -> Cells:
    """The cells of `points`, and for every page (context) each row and size that another page has.

    It costs what it does at the nearest context that has it, and what its requests' contexts add: as much for each
    request as at the cell nearest to it (in requests, then in tokens) that both contexts have. A page that shares no
    cell with another is lent nothing.
    """
    pages = {
        int(page): {
            (row, size): (cost, ci)
            for row, size, cost, ci in zip(
                points.row[at].tolist(), points.size[at].tolist(), ms[at].tolist(), ci_ms[at].tolist(), strict=True
            )
        }
        for page in np.unique(points.page)
        for at in [points.page == page]
    }
    wanted = sorted({cell for cells in pages.values() for cell in cells})
    lent: list[tuple[int, int, int, float, float]] = []
    for page, own in pages.items():
        least_ms = min(cost for cost, _ in own.values())
        missing = [cell for cell in wanted if cell not in own]
        nearest_first = sorted((other for other in pages if other != page), key=lambda other: abs(other - page))
        shared = {other: np.array(sorted(own.keys() & pages[other])) for other in nearest_first}
        lenders = [(pages[other], shared[other]) for other in nearest_first if len(shared[other])]
        for row, size in missing:
            for theirs, both in lenders:
                if (row, size) in theirs:
                    near = _nearest(both, row, size)
                    more_ms = (own[near][0] - theirs[near][0]) * row / near[0]
                    cost, ci = theirs[row, size]
                    lent.append((page, row, size, max(cost + more_ms, least_ms), ci + own[near][1]))
                    break
    place = np.array([cell[:3] for cell in lent], dtype=np.int64).reshape(-1, 3)
    costs = np.array([cell[3:] for cell in lent], dtype=np.float64).reshape(-1, 2)
    return Cells(
        page=np.concatenate([points.page, place[:, 0]]),
        row=np.concatenate([points.row, place[:, 1]]),
        size=np.concatenate([points.size, place[:, 2]]),
        ms=np.concatenate([ms, costs[:, 0]]),
        ci_ms=np.concatenate([ci_ms, costs[:, 1]]),
        is_lent=np.arange(len(points.page) + len(lent)) >= len(points.page),
    )


def _nearest(
    cells: NDArray[np.int64],  # [S, 2]: requests, tokens
    row: int,
    size: int,
) -> tuple[int, int]:
    """In requests, then in tokens; of two as near, the first."""
    away = np.abs(cells - (row, size))
    near_row, near_size = cells[np.lexsort((away[:, 1], away[:, 0]))[0]].tolist()
    return near_row, near_size


def judge_lending(points: Points) -> Iterator[Finding]:
    """Of contexts that lack steps which another has, the one that lacks most."""
    cells = {(row, size) for row, size in zip(points.row.tolist(), points.size.tolist(), strict=True)}
    pages, counts = np.unique(points.page, return_counts=True)
    lacking = len(cells) - counts
    if lacking.any():
        worst = int(np.argmax(lacking))
        yield Finding(
            code="context-incomplete",
            severity="warning",
            place=f"verify, context {pages[worst]}",
            message=f"{lacking[worst]} of the {len(cells)} verify steps that were timed were not at a context of "
            f"{pages[worst]} tokens: they cost what they do at others, and what its own steps say context adds",
            hint="go on with the sweep: specplan profile --resume",
        )
