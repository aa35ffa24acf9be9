"""Verify passes that were timed at some contexts alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.costs import tables_from_profile
from specplan.costs.lending import lend_contexts
from specplan.costs.samples import Points
from specplan.files import Source

Cell = tuple[int, int, int]


def true_ms(context: int, num_reqs: int, num_tokens: int) -> float:
    return 5.0 + 0.1 * num_tokens + 0.001 * num_reqs * context


def points_of(cells: list[Cell]) -> Points:
    page, row, size = (np.array(column) for column in zip(*sorted(cells), strict=True))
    repetitions = tuple(np.array([true_ms(*cell)] * 3) for cell in sorted(cells))
    return Points(page=page, row=row, size=size, repetitions_ms=repetitions)


CELL = st.tuples(st.sampled_from([128, 1024, 4096]), st.sampled_from([1, 4, 16]), st.sampled_from([1, 4, 16, 64]))


@given(st.lists(CELL, min_size=1, unique=True))
def test_costs_that_add_up_are_lent_as_they_are(cells: list[Cell]) -> None:
    points = points_of(cells)
    lent = lend_contexts(points, points.median_ms, points.half_width_ms)
    assert lent.ms[: len(cells)].tolist() == points.median_ms.tolist()
    assert lent.is_lent.tolist() == [index >= len(cells) for index in range(len(lent.ms))]
    found = list(zip(lent.page.tolist(), lent.row.tolist(), lent.size.tolist(), strict=True))
    assert len(set(found)) == len(found)
    for cell, ms in zip(found, lent.ms, strict=True):
        least = min(true_ms(*own) for own in cells if own[0] == cell[0])
        assert ms == pytest.approx(max(true_ms(*cell), least))


def test_a_context_without_large_steps_borrows_them(make_profile: Callable[..., Any], make_sample: Any) -> None:
    """Timed whole at 1024, and at 4096 with one token a request alone."""
    cells = [(1024, n, n * t) for n in (1, 4, 16) for t in (1, 2, 4)] + [(4096, n, n) for n in (1, 4, 16)]
    profile = make_profile(
        samples=[make_sample("verify", "eager", n, t, None, c, [true_ms(c, n, t)]) for c, n, t in cells],
        capture_sizes=[],
        max_num_seqs=16,
        max_num_batched_tokens=64,
        draft=None,
    )
    tables = tables_from_profile(profile)
    for n in (1, 4, 16):
        row, source = tables.verify_row(n, 4096), tables.verify_sources(n, 4096)
        assert row[[n, 2 * n, 4 * n]].tolist() == pytest.approx([true_ms(4096, n, n * t) for t in (1, 2, 4)])
        assert source[n] == "m"
        assert source[4 * n] == "x"
    assert Source.EXTRAPOLATED in tables.verify_source[1]
    (found,) = [finding for finding in tables.findings if finding.code == "context-incomplete"]
    assert found.place == "verify, context 4096"
    assert found.message.startswith("6 of the 9 verify steps that were timed were not at a context of 4096 tokens")
    whole = msgspec.structs.replace(profile, samples=[each for each in profile.samples if each.context_len == 1024])
    assert "context-incomplete" not in [finding.code for finding in tables_from_profile(whole).findings]
    exact = tables_from_profile(profile, semantics="exact")
    assert np.flatnonzero(np.isfinite(exact.verify_row(4, 4096))).tolist() == [4]
