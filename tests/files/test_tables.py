from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.errors import CoverageError, FileError
from specplan.files import CostTables, Finding, HeldOutError, RegionError
from specplan.files.mixed_costs import MixedCosts
from specplan.files.tables import FeedCosts, LayoutCosts

POSITIVE = "expected a positive number of milliseconds, at most 1e+09"
NON_NEGATIVE = "expected a non-negative number of milliseconds, at most 1e+09"


def layout_costs(**changes: Any) -> LayoutCosts:
    fields: dict[str, Any] = {
        "context_len": 100,
        "num_reqs": 2,
        "k": 0,
        "num_tokens": 2,
        "multi_query_ms": 6.0,
        "multi_query_ci_ms": 0.125,
        "batch_expansion_ms": 7.5,
        "batch_expansion_ci_ms": 0.25,
    }
    return LayoutCosts(**{**fields, **changes})


def feed_costs() -> FeedCosts:
    sizes = {"num_reqs": 2, "k": 2, "narrow_len": 1, "wide_len": 3}
    return FeedCosts(**sizes, narrow_ms=1.0, narrow_ci_ms=0.0, wide_ms=2.0, wide_ci_ms=0.0)


def tables(**changes: Any) -> CostTables:
    """Contexts 0 and 100, requests 2 and 4, up to 3 tokens; k 0 and 2, up to 4 requests."""
    fields: dict[str, Any] = {
        "specplan_version": "0.1.0",
        "source": "measured",
        "environment": None,
        "profile_digest": "00",
        "num_speculative_tokens": 2,
        "capture_sizes": [1, 2],
        "capture_limit": 2,
        "draft_capture_limit": None,
        "monotone": "running-max",
        "error": HeldOutError(
            captured=RegionError(method="split-half", mape=0.01, p95=0.02, bias=-0.005, points=4),
            smooth=None,
            draft=None,
            overhead=RegionError(method="split-half", mape=0.1, p95=0.2, bias=0.0, points=2),
            mixed=None,
            draft_prefill=None,
        ),
        "findings": [Finding(code="c", severity="note", place="p", message="m", hint="h")],
        "contexts": [0, 100],
        "num_reqs": [2, 4],
        "verify_table_ms": np.array(
            [[[1.0, 1.0, 2.0, 3.0], [3.0, 3.0, 4.0, 5.0]], [[5.0, 5.0, 6.0, 7.0], [7.0, 7.0, 8.0, 9.0]]]
        ),
        "verify_source": np.array([[[0, 0, 0, 3], [0, 0, 1, 3]], [[0, 0, 0, 3], [0, 2, 0, 0]]], dtype=np.uint8),
        "verify_ci_ms": np.full((2, 2, 4), 0.125),
        "draft_ks": [0, 2],
        "draft_table_ms": np.array([[0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 2.0, 2.0]]),
        "draft_source": np.zeros((2, 5), dtype=np.uint8),
        "draft_ci_ms": None,
        "overhead_ms": np.array([0.25, 0.25, 0.25, 0.5, 0.75]),
        "overhead_source": np.array([3, 3, 0, 2, 0], dtype=np.uint8),
        "overhead_ci_ms": np.full(5, 0.0625),
        "draft_prefill_ms": np.array([0.0, 0.5, 0.5, 0.5]),
        "draft_prefill_source": None,
        "draft_prefill_ci_ms": None,
        "mixed": MixedCosts(
            contexts=[64],
            num_verifying=[0, 2],
            drafts=[0, 2],
            prompt_tokens=[1, 4],
            ms=np.array([[[[1.0, 2.0], [1.0, 2.0]], [[2.0, 3.0], [4.0, 5.0]]]]),
            ci_ms=np.full((1, 2, 2, 2), 0.0625),
        ),
        "layout_costs": [layout_costs()],
        "feed_costs": [feed_costs()],
    }
    return CostTables(**{**fields, **changes})


def test_shape() -> None:
    assert (tables().max_num_tokens, tables().max_num_reqs) == (3, 4)
    assert tables().verify_ms.tolist() == [7.0, 7.0, 8.0, 9.0]
    assert tables().draft_ms.tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]
    assert (tables().overhead_ms.shape, tables().draft_prefill_ms.shape) == ((5,), (4,))


@pytest.mark.parametrize(
    ("num_reqs", "context_len", "row", "sources"),
    [
        (2, 0, [1.0, 1.0, 2.0, 3.0], "mmmx"),  # on both axes
        (1, 0, [1.0, 1.0, 2.0, 3.0], "mmmx"),  # fewer requests than measured: held
        (4, 1000, [7.0, 7.0, 8.0, 9.0], "mimm"),  # longer context than measured: held
        (3, 0, [2.0, 2.0, 3.0, 4.0], "iiix"),  # halfway over requests
        (2, 25, [2.0, 2.0, 3.0, 4.0], "iiix"),  # a quarter over context
        (3, 50, [4.0, 4.0, 5.0, 6.0], "iiix"),  # over both
    ],
)
def test_verify_rows(num_reqs: int, context_len: float, row: list[float], sources: str) -> None:
    assert tables().verify_row(num_reqs, context_len).tolist() == row
    assert "".join(tables().verify_sources(num_reqs, context_len)) == sources


@given(num_reqs=st.integers(1, 4), context_len=st.floats(0, 200))
def test_a_blend_of_non_decreasing_rows_never_falls(num_reqs: int, context_len: float) -> None:
    rng = np.random.default_rng(num_reqs)
    random = tables(verify_table_ms=np.maximum.accumulate(rng.uniform(1, 1.0001, (2, 2, 4)), -1))
    assert np.all(np.diff(random.verify_row(num_reqs, context_len)) >= 0)


def test_draft_rows() -> None:
    assert tables().draft_row(0).tolist() == [0.0] * 5
    assert tables().draft_row(1).tolist() == [0.5, 0.5, 0.5, 1.0, 1.0]
    assert tables().draft_row(2).tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("batch_expansion_ms", "ratio", "too_close"),
    [(7.5, 1.25, False), (6.375, 1.0625, True), (6.5, 6.5 / 6, False), (5.625, 0.9375, True), (3.0, 0.5, False)],
)
def test_layouts_whose_intervals_overlap_are_too_close_to_call(
    batch_expansion_ms: float, ratio: float, too_close: bool
) -> None:
    costs = layout_costs(batch_expansion_ms=batch_expansion_ms)
    assert (costs.ratio, costs.is_too_close_to_call) == (ratio, too_close)


def test_tables_from_before_layouts_were_compared_compare_none(tmp_path: Path) -> None:
    file = tmp_path / "tables.json"
    tables().write(file)
    content = json.loads(file.read_text())
    del content["layout_costs"]
    file.write_text(json.dumps(content))
    assert CostTables.read(file).layout_costs == []


def test_one_draft_row_holds_for_every_k() -> None:
    one = tables(draft_ks=None, draft_table_ms=np.ones((1, 5)), draft_source=np.zeros((1, 5), dtype=np.uint8))
    assert one.draft_row(0).tolist() == one.draft_row(9).tolist() == [1.0] * 5


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda t: t.verify_row(0, 0), "no cost for a step of 0 requests: these tables cover 1 to 4"),
        (lambda t: t.verify_sources(5, 0), "no cost for a step of 5 requests: these tables cover 1 to 4"),
        (lambda t: t.verify_row(1, -1), "no cost at context -1: expected 0 or more"),
        (lambda t: t.verify_row(1, float("nan")), "no cost at context nan: expected 0 or more"),
        (lambda t: t.draft_row(3), "no draft cost for k = 3: k from 0 to 2 was measured"),
        (lambda t: t.draft_row(-1), "a draft of -1 tokens per request: expected 0 or more"),
    ],
)
def test_outside_what_was_measured(ask: Callable[[CostTables], object], message: str) -> None:
    with pytest.raises(CoverageError) as raised:
        ask(tables())
    assert raised.value.message == message
    assert raised.value.hint


def test_rows_are_the_callers_own_and_tables_are_frozen() -> None:
    frozen = tables()
    frozen.draft_row(0)[:] = 9.0
    frozen.verify_row(2, 0)[:] = 9.0
    assert frozen.draft_row(0)[1] == 0.0
    assert frozen.verify_row(2, 0)[1] == 1.0
    for row in (frozen.verify_ms, frozen.draft_ms, frozen.overhead_ms, frozen.draft_prefill_ms):
        with pytest.raises(ValueError, match="read-only"):
            row[0] = 1.0


def test_round_trip_is_exact_and_deterministic(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    tables().write(first)
    again = CostTables.read(first)
    again.write(second)
    assert first.read_bytes() == second.read_bytes()
    assert np.array_equal(again.verify_table_ms, tables().verify_table_ms)
    assert np.array_equal(again.verify_source, tables().verify_source)
    assert again.verify_source.dtype == np.uint8
    assert again.draft_ci_ms is None
    assert again.overhead_ms.tolist() == [0.25, 0.25, 0.25, 0.5, 0.75]
    assert again.overhead_source is not None
    assert again.overhead_source.tolist() == [3, 3, 0, 2, 0]
    assert again.overhead_ci_ms is not None
    assert again.draft_prefill_ms.tolist() == [0.0, 0.5, 0.5, 0.5]
    assert again.draft_prefill_source is again.draft_prefill_ci_ms is None
    assert again.error == tables().error
    assert again.findings == tables().findings
    assert again.layout_costs == tables().layout_costs
    mixed, read = tables().mixed, again.mixed
    assert mixed is not None
    assert read is not None
    assert (read.contexts, read.num_verifying, read.drafts, read.prompt_tokens) == ([64], [0, 2], [0, 2], [1, 4])
    assert np.array_equal(read.ms, mixed.ms)
    assert np.array_equal(read.ci_ms, mixed.ci_ms)


def test_the_file_says_what_its_letters_mean(tmp_path: Path) -> None:
    path = tmp_path / "tables.json"
    tables().write(path)
    content = json.loads(path.read_text())
    assert content["legend"] == {
        "m": "measured",
        "p": "padded",
        "i": "interpolated",
        "x": "extrapolated",
        "u": "unmeasured",
    }
    del content["legend"]["u"]  # as files of before have it
    path.write_text(json.dumps(content))
    CostTables.read(path)
    content["legend"].pop("i")
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match="legend"):
        CostTables.read(path)
    assert content["verify_source"] == [["mmmx", "mmpx"], ["mmmx", "mimm"]]
    assert content["draft_ms"][1] == [1.0, 1.0, 1.0, 2.0, 2.0]
    assert (content["overhead_source"], content["draft_prefill_source"]) == ("xxmim", None)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("verify_ms", 0, 1, 2), float("nan"), "$.verify_ms[0][1][2]: expected a finite number, got nan"),
        (("verify_ms", 0, 1, 2), -1.0, f"$.verify_ms[0][1][2]: {POSITIVE}, got -1.0"),
        (("verify_ms", 0, 1, 2), 0, f"$.verify_ms[0][1][2]: {POSITIVE}, got 0.0"),
        (("verify_ms", 0, 1, 2), None, f"$.verify_ms[0][1][2]: {POSITIVE}, got null"),
        (("verify_ms", 0, 1), [1.0, 2.0], "$.verify_ms[0][1]: expected 4 entries as in [0], got 2"),
        (("verify_ms", 0, 1), 2.0, "$.verify_ms[0][1]: expected array, got float"),
        (("verify_ms",), [], "$.verify_ms: expected shape [2, 2] and two or more cells a row, got [0]"),
        (("verify_source", 1, 0), "mmqm", "$.verify_source[1][0][2]: expected one of m, p, i, x, u, got 'q'"),
        (("verify_source", 1, 0), 3, "$.verify_source[1][0]: expected str, got int"),
        (("verify_source",), 3, "$.verify_source: expected str, got int"),
        (("verify_ci_ms", 0, 0, 0), -1, f"$.verify_ci_ms[0][0][0]: {NON_NEGATIVE}, got -1.0"),
        (("draft_ms", 1, 3), -0.5, f"$.draft_ms[1][3]: {NON_NEGATIVE}, got -0.5"),
        (("draft_ci_ms",), [[1.0]], "$.draft_ci_ms: expected shape [2, 5], got [1, 1]"),
        (("draft_ks",), [0, 1, 2], "$.draft_ms: expected shape [3] and two or more cells a row, got [2, 5]"),
        (("num_reqs",), [4, 2], "$.num_reqs[1]: expected at least 5, got 2"),
        (("contexts",), [], "$.contexts: expected at least one entry, got none"),
        (("capture_limit",), 4, "$.capture_limit: expected the largest capture size (2), got 4"),
        (("overhead_ms",), 0.25, "$.overhead_ms: expected 5 cells, for 0 to 4 requests, got shape []"),
        (("overhead_ms",), [0.25], "$.overhead_ms: expected 5 cells, for 0 to 4 requests, got shape [1]"),
        (("overhead_ms", 3), -0.5, f"$.overhead_ms[3]: {NON_NEGATIVE}, got -0.5"),
        (("overhead_source",), "mmmq?", "$.overhead_source[3]: expected one of m, p, i, x, u, got 'q'"),
        (("overhead_source",), "mm", "$.overhead_source: expected shape [5], got [2]"),
        (("overhead_ci_ms", 4), -1, f"$.overhead_ci_ms[4]: {NON_NEGATIVE}, got -1.0"),
        (
            ("draft_prefill_ms",),
            [0.0],
            "$.draft_prefill_ms: expected 4 cells or more, for 0 to 3 tokens, got shape [1]",
        ),
        (("draft_prefill_ms", 0), 0.5, "$.draft_prefill_ms[0]: expected 0 for no tokens, got 0.5"),
        (("draft_prefill_ms", 1), -0.5, f"$.draft_prefill_ms[1]: {NON_NEGATIVE}, got -0.5"),
        (("mixed", "drafts"), [0, 1, 2], "$.mixed.ms: expected shape [1, 2, 3, 2], as the axes say, got [1, 2, 2, 2]"),
        (("mixed", "drafts"), [2, 0], "$.mixed.drafts[1]: expected at least 3, got 0"),
        (("mixed", "prompt_tokens", 0), 0, "$.mixed.prompt_tokens[0]: expected at least 1, got 0"),
        (("mixed", "contexts"), [], "$.mixed.contexts: expected at least one entry, got none"),
        (("mixed", "ms", 0, 1, 0, 1), 0, f"$.mixed.ms[0][1][0][1]: {POSITIVE}, got 0.0"),
        (("mixed", "ci_ms", 0, 1, 0, 1), -1, f"$.mixed.ci_ms[0][1][0][1]: {NON_NEGATIVE}, got -1.0"),
        (("mixed", "ci_ms"), 3, "$.mixed.ci_ms: expected shape [1, 2, 2, 2], as the axes say, got []"),
        (("monotone",), "up", "$.monotone: invalid enum value 'up'"),
        (("layout_costs", 0, "multi_query_ms"), 0, "$.layout_costs[0].multi_query_ms: expected float >= 1e-06, got 0"),
        (("layout_costs", 0, "k"), None, "$.layout_costs[0].k: expected int, got null"),
        (("num_speculative_tokens",), 10**13, "$.num_speculative_tokens: expected int <= 4096, got 10000000000000"),
        (("feed_costs", 0, "wide_len"), 1, "$.feed_costs[0].wide_len: expected more than narrow_len (1), got 1"),
    ],
)
def test_a_malformed_file_is_refused_with_the_place(
    tmp_path: Path, path: tuple[Any, ...], value: object, message: str
) -> None:
    file = tmp_path / "tables.json"
    tables().write(file)
    content = json.loads(file.read_text())
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(content))
    with pytest.raises(FileError) as raised:
        CostTables.read(file)
    assert raised.value.message == f"{file}: {message}"


def test_tables_from_before_a_term_was_added_are_to_be_built_anew(tmp_path: Path) -> None:
    file = tmp_path / "tables.json"
    tables().write(file)
    content = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in content.items() if "draft_prefill" not in key}))
    with pytest.raises(FileError) as raised:
        CostTables.read(file)
    assert raised.value.message == f"{file}: $: object missing required field draft_prefill_ms"
    assert raised.value.hint.startswith("`specplan tables` writes cost tables; run it again")
