"""What a step's own machinery costs, by its requests."""

from __future__ import annotations

from typing import get_args

import numpy as np

from specplan.costs.samples import machinery_points
from specplan.files.machinery import MachineryCosts
from specplan.files.profile import Machinery, Profile
from specplan.files.tables import Finding

__all__ = ["host_in_parts", "price_machinery"]


def price_machinery(profile: Profile, max_num_reqs: int) -> MachineryCosts | None:
    """Linear between the requests that were measured, held outside them; None where nothing was."""
    points = {term: machinery_points(profile, term) for term in get_args(Machinery)}
    measured = {term: each for term, each in points.items() if len(each.size)}
    if not measured:
        return None
    num_reqs = np.arange(max_num_reqs + 1)
    return MachineryCosts(
        terms=list(measured),
        ms=np.array([np.interp(num_reqs, each.size, each.median_ms) for each in measured.values()]),
        ci_ms=np.array([np.interp(num_reqs, each.size, each.half_width_ms) for each in measured.values()]),
    )


def host_in_parts(costs: MachineryCosts) -> Finding:
    """In place of what is said where nothing of the host was measured."""
    return Finding(
        code="host-in-parts",
        severity="note",
        place="host",
        message=f"of the host's work in a step {', '.join(costs.terms)} were timed alone and are charged; scheduling "
        "and "
        "committing were not",
        hint="an engine's own; specplan validate measures that of specplan's",
    )
