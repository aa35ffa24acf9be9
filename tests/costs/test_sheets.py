"""Rows that were not measured at every size, and replays that were timed at other sizes than an engine's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.costs import tables_from_profile
from specplan.costs.sheets import Sheet, at_capture_sizes, fill_sheet, fill_verify_sheet, hold_impossible
from specplan.files import Source
from specplan.measure import ProfilePlan
from specplan.shapes import padded_size, profiled_shapes

Make = Callable[..., Any]
LIMIT = 64


@given(
    max_num_seqs=st.integers(1, 100),
    k=st.integers(1, 9),
    more=st.integers(0, 400),
    num_reqs=st.integers(1, 100),
)
def test_every_batch_is_priced_by_what_it_runs(max_num_seqs: int, k: int, more: int, num_reqs: int) -> None:
    """Of a device whose costs are linear nothing that a batch can run is off by over 2%: neither between the measured
    requests, nor past what fewer of them bring, nor past the limit, whose sizes differ from row to row.

    What is left is of sizes that the larger of two rows cannot have: it pays for the smallest that it can.
    """
    plan = ProfilePlan(
        max_num_seqs=max_num_seqs,
        num_speculative_tokens=k,
        max_num_batched_tokens=max_num_seqs + more,
        contexts=(64,),
        capture_ceiling=LIMIT,
    )
    num_reqs = min(num_reqs, max_num_seqs)
    shapes = profiled_shapes(
        max_num_seqs=max_num_seqs,
        num_speculative_tokens=k,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        capture_sizes=plan.capture_sizes,
        context_len=64,
    )
    row, asked = (np.array([getattr(shape, name) for shape in shapes]) for name in ("num_reqs", "num_tokens"))
    size = np.array([padded_size(t, plan.capture_sizes) for t in asked.tolist()])
    limit = plan.capture_sizes[-1]
    ms = np.array([5.0 + 0.05 * n + 0.02 * t + (2.0 if t > limit else 0.0) for n, t in zip(row, size, strict=True)])
    rows = np.unique(row)
    sheet = hold_impossible(fill_verify_sheet(row, size, ms, np.zeros(len(ms)), rows=rows, capture_limit=limit), rows)
    of_batch = np.array([np.interp(num_reqs, rows, column) for column in sheet.ms.T])
    for t in range(num_reqs, min(num_reqs * (1 + k), plan.max_num_batched_tokens) + 1):
        runs_at = padded_size(t, plan.capture_sizes)
        expected = 5.0 + 0.05 * num_reqs + 0.02 * runs_at + (2.0 if runs_at > limit else 0.0)
        if runs_at <= limit:
            found = of_batch[np.flatnonzero(sheet.sizes == runs_at)[0]]
        else:
            smooth = sheet.sizes > limit
            found = np.interp(runs_at, sheet.sizes[smooth], of_batch[smooth])
        assert found == pytest.approx(expected, rel=0.02)


def test_above_the_limit_a_row_has_its_own_line() -> None:
    """256 requests were measured at 768 and not at 640, which 128 were: 640 lies on the line of 256."""
    row, size = np.array([128, 128, 256, 256]), np.array([513, 640, 513, 768])
    ms = np.array([10.0, 11.0, 20.0, 25.1])
    sheet = fill_verify_sheet(row, size, ms, np.zeros(4), rows=np.array([128, 256]), capture_limit=512)
    assert sheet.ms[1].tolist() == [20.0, pytest.approx(20 + 5.1 * 127 / 255), 25.1]
    assert [Source(source) for source in sheet.source[1]] == [Source.MEASURED, Source.INTERPOLATED, Source.MEASURED]
    # 128 were not measured at 768: as much cheaper than 256 as at their own last.
    assert sheet.ms[0, 2] == pytest.approx(25.1 - (sheet.ms[1, 1] - 11.0))
    assert sheet.source[0, 2] == Source.EXTRAPOLATED


def test_what_others_lend_a_row_is_no_dearer_than_what_it_measured() -> None:
    """Drafting nothing was timed at 1 and 8 requests, 7 tokens at 4 as well: what 7 cost at 4 is not what none does."""
    sheet = fill_sheet(
        np.array([0, 0, 7, 7, 7]),
        np.array([1, 8, 1, 4, 8]),
        np.array([0.2, 0.3, 2.0, 2.4, 3.0]),
        np.full(5, 0.1),
        rows=np.array([0, 7]),
    )
    assert sheet.ms[0].tolist() == [0.2, pytest.approx(0.24), 0.3]
    assert sheet.ci_ms[0, 1] == pytest.approx(0.01)
    assert sheet.source[0].tolist() == [Source.MEASURED, Source.EXTRAPOLATED, Source.MEASURED]


@given(
    cells=st.dictionaries(
        st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8, 16, 24])),
        st.floats(0.1, 100),
        min_size=2,
    ),
    limit=st.sampled_from([0, 8, 24]),
    is_floor=st.booleans(),
)
def test_a_row_keeps_what_it_measured(cells: dict[tuple[int, int], float], limit: int, is_floor: bool) -> None:
    """Whatever the others did: through the fill to the bit, and under a running maximum unless its own smaller sizes
    or what is past its last are dearer."""
    row, size = np.array(list(cells)).T
    rows = np.unique(row)
    sheet = fill_verify_sheet(
        row,
        size,
        np.array(list(cells.values())),
        np.zeros(len(cells)),
        rows=rows,
        capture_limit=limit,
        is_floor=is_floor,
    )
    for r, num_reqs in enumerate(rows.tolist()):
        own = {t: ms for (n, t), ms in cells.items() if n == num_reqs}
        dearest = np.maximum.accumulate(sheet.ms[r])
        for t, ms in own.items():
            column = sheet.sizes.tolist().index(t)
            assert sheet.ms[r, column] == ms
            assert sheet.source[r, column] == Source.MEASURED
            smaller = [each for other, each in own.items() if other <= t]
            assert min(own) == t or dearest[column] == max(smaller)


def test_linear_and_floor_read_a_row_along_its_own_sizes(make_profile: Make, make_sample: Make) -> None:
    """4 requests, timed at 4 and 16 tokens: what 1 request costs at 8 is none of their business."""
    points = {(1, 1): 5.0, (1, 8): 6.9, (4, 4): 5.5, (4, 16): 7.0, (4, 32): 11.0}
    profile = make_profile(
        samples=[make_sample("verify", "graph", n, t, None, 128, [ms]) for (n, t), ms in points.items()],
        capture_sizes=[1, 4, 8, 16, 32],
        draft=None,
    )

    def cost(semantics: str) -> float:
        return float(tables_from_profile(profile, semantics=semantics).verify_row(4, 128)[8])

    assert (cost("linear"), cost("floor"), cost("exact")) == (6.0, 5.5, np.inf)
    assert cost("padded") == 6.9  # nobody timed it; less than the 7.0 of 16 tokens


def test_replays_of_other_sizes_are_read_at_the_engines() -> None:
    sheet = Sheet(
        sizes=np.array([1, 5, 12, 20, 512, 640]),
        ms=np.array([[1.0, 2.0, 9.0, 10.0, 20.0, 40.0]]),
        ci_ms=np.zeros((1, 6)),
        source=np.zeros((1, 6), dtype=np.uint8),
    )
    read = at_capture_sizes(sheet, [1, 2, 4, 8, 16, 24, 512])
    assert read.sizes.tolist() == [1, 2, 4, 8, 16, 24, 512, 640]
    assert read.ms[0].tolist() == pytest.approx([1.0, 1.25, 1.75, 5.0, 9.5, 10 + 10 * 4 / 492, 20.0, 40.0])
    assert [Source(source).name[0] for source in read.source[0]] == list("MIIIIIMM")
    short = at_capture_sizes(sheet, [1, 600])
    assert short.ms[0].tolist() == [1.0, 20.0, 40.0]
    assert short.source[0].tolist() == [Source.MEASURED, Source.EXTRAPOLATED, Source.MEASURED]


def test_a_context_without_replays_up_to_the_limit_is_priced_by_what_it_has(
    make_profile: Make, make_sample: Make
) -> None:
    shapes = [(5, 128, 1.0), (20, 128, 2.0), (64, 512, 8.0), (96, 512, 9.0)]
    samples = [make_sample("verify", "graph", 4, t, None, context, [ms] * 20) for t, context, ms in shapes]
    profile = make_profile(
        keep=lambda sample: sample.model == "draft", extra=samples, capture_sizes=[1, 8, 16], max_num_batched_tokens=96
    )
    tables = tables_from_profile(profile)
    assert tables.verify_row(4, 128)[8] == pytest.approx(1.0)
    assert [tables.verify_row(4, 512)[t] for t in (8, 64, 80)] == [8.0, 8.0, 8.5]


def test_an_engines_sizes_price_what_was_timed_unpadded(make_profile: Make, make_sample: Make) -> None:
    """A bench replays 1, 5, 12, 20 and 64 tokens as they are; the engine captures 8 and 24 too, and runs 21 at 24."""
    own = [sample for sample in make_profile().samples if sample.model == "draft"]
    timed = [make_sample("verify", "graph", 1, t, None, 128, [1.0 + t / 64] * 20) for t in (1, 5, 12, 20, 64)]
    profile = msgspec.structs.replace(
        make_profile(), samples=[*own, *timed], capture_sizes=[1, 2, 4, 8, 16, 24, 32, 64], max_num_batched_tokens=64
    )
    tables = tables_from_profile(profile)
    assert tables.capture_sizes == [1, 2, 4, 8, 16, 24, 32, 64]
    assert tables.verify_row(1, 128)[[21, 24, 25]].tolist() == pytest.approx([1 + 24 / 64, 1 + 24 / 64, 1 + 32 / 64])
    assert tables.error.captured is not None
    assert tables.error.captured.mape == pytest.approx(0)
    codes = {finding.code for finding in tables.findings}
    assert not codes & {"size-not-executed", "incomplete-profile"}
    linear = tables_from_profile(profile, semantics="linear")
    assert linear.verify_row(1, 128)[21] == pytest.approx(1 + 21 / 64)
    exact = tables_from_profile(profile, semantics="exact")
    assert np.flatnonzero(np.isfinite(exact.verify_row(1, 128))).tolist() == [0, 1, 5, 12, 20, 64]
