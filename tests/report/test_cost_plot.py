"""The picture of cost tables: what is drawn is what the tables and the profile hold, and odd ones can be drawn too."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import matplotlib
import msgspec
import numpy as np
import pytest
from builders import CPU_ENVIRONMENT, DRAFT, TARGET
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from specplan.costs import tables_from_profile
from specplan.errors import ConfigError, CoverageError
from specplan.files import CostTables, Profile, Sample
from specplan.files.tables import Semantics, Source
from specplan.report.cost_page import cost_page
from specplan.report.cost_plot import cost_figure, write_plot

K = 3


def sample(model: str, mode: str, num_reqs: int, num_tokens: int, ms: Sequence[float], **changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "model": model,
        "mode": mode,
        "layout": "multi-query",
        "num_reqs": num_reqs,
        "num_tokens": num_tokens,
        "executed_num_reqs": num_reqs,
        "executed_num_tokens": num_tokens,
        "k": None,
        "context_len": 64,
        "warmup_ms": [],
        "repetitions_ms": list(ms),
        "stop_reason": "converged",
    }
    return Sample(**fields | changes)


def verify(mode: str, num_reqs: int, num_tokens: int, ms: float, **changes: Any) -> Sample:
    """Half of the repetitions are within 1 ms of `ms`, below, and within 2 above."""
    return sample("verify", mode, num_reqs, num_tokens, [0.5 * ms, ms - 1, ms, ms + 2, 9 * ms], **changes)


def mixed(num_verifying: int, drafts: int, prompt_tokens: int, ms: float) -> Sample:
    tokens = num_verifying * (1 + drafts) + prompt_tokens
    context_len = 64 if num_verifying else 0
    prompts = {"num_prefilling": 1, "num_prompt_tokens": prompt_tokens, "context_len": context_len}
    return sample("verify", "eager", num_verifying + 1, tokens, [ms, ms, ms + 1], **prompts)


def make_profile(samples: Sequence[Sample], **changes: Any) -> Profile:
    captured = {each.executed_num_tokens for each in samples if each.model == "verify" and each.mode == "graph"}
    fields: dict[str, Any] = {
        "specplan_version": "0.1.0",
        "created": "2026-01-01T00:00:00Z",
        "source": "measured",
        "environment": CPU_ENVIRONMENT,
        "target": TARGET,
        "draft": DRAFT if any(each.model == "draft" for each in samples) else None,
        "num_speculative_tokens": K,
        "max_num_seqs": max(each.shape.num_verifying for each in samples),
        "max_num_batched_tokens": max(each.num_tokens for each in samples if not each.shape.is_mixed),
        "capture_sizes": sorted(captured),
        "complete": True,
        "samples": list(samples),
    }
    return Profile(**fields | changes)


VERIFY = [
    *(verify("graph", n, t, 10.0 + t + n) for n in (1, 2, 4) for t in (1, 2, 4, 8, 16) if n <= t <= n * (1 + K)),
    *(verify("eager", n, t, 20.0 + t + n) for n in (1, 2, 4) for t in (1, 2, 4, 8, 16) if n <= t <= n * (1 + K)),
    *(verify("eager", 4, t, 20.0 + t) for t in (24, 32)),
]
DRAFTS = [
    sample("draft", mode, n, n, [more + k + n], k=k)
    for mode, more in (("graph", 1.0), ("eager", 3.0))
    for n in (1, 2, 4)
    for k in range(K + 1)
]
MIXED = [mixed(v, d, p, 30.0 + v + d + p) for v in (0, 4) for d in (0, K) for p in (1, 8, 64) if v or not d]
WHOLE = make_profile([*VERIFY, *DRAFTS, *MIXED])
PASSES = make_profile([*VERIFY, *DRAFTS])  # in which steps with prompts cost what verify passes of their size do


def panels(profile: Profile, tables: CostTables) -> list[Axes]:
    return cost_figure(profile, tables).axes[1:]  # the first is the head


def drawn_line(axes: Axes, name: str) -> tuple[list[int], list[float]]:
    """Its measured part and its extrapolated one, as one."""
    cells: dict[int, float] = {}
    for line in axes.lines:
        if line.get_label() in (name, f"{name}, extrapolated"):
            x, y = numbers(line)
            cells |= {int(size): float(value) for size, value in zip(x, y, strict=True) if np.isfinite(value)}
    return sorted(cells), [cells[size] for size in sorted(cells)]


def numbers(line: Line2D) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def points(axes: Axes, label: str) -> list[tuple[float, float, float, float]]:
    """Size, median and both ends of the bar of each; hollow ones have a white face."""
    for container in axes.containers:
        if container.get_label() == label:
            marks, _, (bars,) = container.lines  # type: ignore[attr-defined]
            ends = [segment[:, 1] for segment in bars.get_segments()]
            assert (marks.get_markerfacecolor() == "white") == label.endswith("eager")
            return [(x, y, *sorted(end)) for x, y, end in zip(*numbers(marks), ends, strict=True)]
    return []


def shaded(axes: Axes) -> list[tuple[float, float]]:
    spans = [patch for patch in axes.patches if patch.get_label() == "extrapolated"]
    assert all(isinstance(span, Rectangle) for span in spans)
    return [(span.get_x(), span.get_x() + span.get_width()) for span in spans]  # type: ignore[attr-defined]


def texts(axes: Axes) -> str:
    return "\n".join(text.get_text() for text in axes.texts)


def test_lines_are_the_tables_cells() -> None:
    tables = tables_from_profile(WHOLE)
    passes, ratios, drafting, prompts = panels(WHOLE, tables)
    past = tables_from_profile(PASSES)
    for drawn, table, last in ((passes, tables, 16), (panels(PASSES, past)[0], past, 32)):
        for n, end in ((1, 4), (2, 8), (4, last)):  # K drafts each; the most requests as far as the tables go
            name = "1 request" if n == 1 else f"{n} requests"
            assert drawn_line(drawn, name) == ([*range(n, end + 1)], table.verify_row(n, 64)[n : end + 1].tolist())
    for k in (1, 2, 3):  # not 0, which drafts nothing
        assert drawn_line(drafting, f"k = {k}") == ([1, 2, 3, 4], tables.draft_row(k)[1:].tolist())
    assert tables.mixed is not None
    for name, v, d in (
        ("alone", 0, 0),
        ("beside 4 requests,\nno drafts each", 1, 0),
        ("beside 4 requests,\n3 drafts each", 1, 1),
    ):
        sizes, costs = drawn_line(prompts, name)
        assert sizes == [*range(1, 65)]
        assert [costs[size - 1] for size in (1, 8, 64)] == tables.mixed.ms[0, v, d].tolist()
    # One step of 2 requests with 3 drafts: verify 10 + 8 + 2, drafts 1 + 3 + 2; without 10 + 2 + 2.
    assert drawn_line(ratios, "2 requests")[1][-1] == pytest.approx(26 / 14)
    assert drawn_line(ratios, "2 requests")[0] == [0, 1, 2, 3]


def test_exact_tables_are_drawn_where_they_have_a_cost_and_as_no_line() -> None:
    passes, ratios, *_ = panels(WHOLE, tables_from_profile(WHOLE, semantics="exact"))
    assert drawn_line(passes, "4 requests") == ([4, 8, 16], [18.0, 22.0, 30.0])
    assert drawn_line(ratios, "4 requests")[0] == [0, 1, 3]  # 12 tokens of k = 2 were not measured
    for axes in (passes, ratios):
        drawn = [line for line in axes.lines if str(line.get_label()).endswith("requests")]
        assert {(line.get_linestyle(), line.get_marker()) for line in drawn} == {("None", ".")}
    assert "not measured have no cost" in passes.get_title(loc="left")


def test_the_page_tells_of_a_staircase_where_there_is_one() -> None:
    for semantics in get_args(Semantics):
        page = cost_page(WHOLE, tables_from_profile(WHOLE, semantics=semantics), "<svg/>")
        assert ("The staircase" in page) == (semantics == "padded")
        assert (f"These tables are {semantics}: " in page) == (semantics != "padded")


def test_exact_tables_without_any_cost_are_refused() -> None:
    tables = tables_from_profile(WHOLE, semantics="exact")
    nothing = msgspec.structs.replace(
        tables,
        verify_table_ms=np.full_like(tables.verify_table_ms, np.inf),
        verify_source=np.full_like(tables.verify_source, Source.UNMEASURED),
    )
    with pytest.raises(CoverageError, match="nothing to draw"):
        cost_figure(WHOLE, nothing)


def test_the_hosts_work_is_in_both_steps_that_are_compared() -> None:
    host = [sample("host", "eager", n, n, [6.0], k=0) for n in (1, 4)]
    profile = make_profile([*VERIFY, *DRAFTS, *host])
    ratios = panels(profile, tables_from_profile(profile))[1]
    assert drawn_line(ratios, "2 requests")[1][-1] == pytest.approx((26 + 6) / (14 + 6))


def test_points_are_medians_with_the_middle_half_of_their_repetitions() -> None:
    _, _, drafting, prompts = panels(WHOLE, tables_from_profile(WHOLE))
    passes = panels(PASSES, tables_from_profile(PASSES))[0]
    assert points(passes, "2 requests, graph") == [(t, 12.0 + t, 11.0 + t, 14.0 + t) for t in (2, 4, 8)]
    assert points(passes, "2 requests, eager") == [(t, 22.0 + t, 21.0 + t, 24.0 + t) for t in (2, 4, 8)]
    assert [point[0] for point in points(passes, "4 requests, graph")] == [4, 8, 16]
    assert [point[:2] for point in points(passes, "4 requests, eager")][-2:] == [(24, 44.0), (32, 52.0)]
    assert [point[:2] for point in points(drafting, "k = 3, graph")] == [(n, 4.0 + n) for n in (1, 2, 4)]
    assert [point[:2] for point in points(drafting, "k = 3, eager")] == [(n, 6.0 + n) for n in (1, 2, 4)]
    assert points(prompts, "alone, eager") == [(p, 30.0 + p, 30.0 + p, 30.5 + p) for p in (1, 8, 64)]


def test_points_of_the_other_layout_and_of_uneven_steps_are_none_of_these() -> None:
    others = [
        verify("graph", 2, 8, 99.0, layout="batch-expansion"),
        verify("graph", 2, 8, 99.0, lengths="ragged"),
        sample("draft", "graph", 2, 2, [99.0], k=K, lengths="spread"),
    ]
    profile = make_profile([*VERIFY, *DRAFTS, *others])
    passes, _, drafting = panels(profile, tables_from_profile(profile))
    assert points(passes, "2 requests, graph")[-1][:2] == (8, 20.0)
    assert points(drafting, "k = 3, graph")[1][:2] == (2, 6.0)


def test_the_capture_limit_is_marked_where_it_is() -> None:
    passes = panels(PASSES, tables_from_profile(PASSES))[0]
    (limit,) = (line for line in passes.lines if line.get_label() == "capture limit")
    assert list(numbers(limit)[0]) == [16, 16]
    assert "largest captured graph: 16 tokens" in texts(passes)
    assert "The staircase: 9 to 16 tokens cost the same" in texts(passes)
    assert "captured size; past the largest one" in passes.get_title(loc="left")


def test_a_limit_past_what_is_drawn_is_still_in_sight() -> None:
    profile = make_profile([verify("graph", 1, t, 10.0 + t) for t in (1, 2, 4, 32)], max_num_batched_tokens=4)
    passes = panels(profile, tables_from_profile(profile))[0]
    assert passes.get_xlim()[1] > 32


def test_nothing_captured_has_no_limit_and_no_staircase() -> None:
    profile = make_profile(
        [verify("eager", n, t, 10.0 + t) for n in (1, 4) for t in (1, 2, 4, 8, 16) if n <= t <= 4 * n]
    )
    passes = panels(profile, tables_from_profile(profile))[0]
    assert [line for line in passes.lines if line.get_label() == "capture limit"] == []
    assert "staircase" not in texts(passes)
    assert "captured graph" not in texts(passes)


def test_replays_past_the_limit_are_drawn_as_what_they_are() -> None:
    samples = [verify("graph", 4, t, 10.0 + t) for t in (4, 8, 16, 32)]
    profile = make_profile(samples, capture_sizes=[4, 8, 16])
    passes = panels(profile, tables_from_profile(profile))[0]
    assert [x for x, *_ in points(passes, "4 requests, graph")] == [4, 8, 16, 32]
    assert points(passes, "4 requests, eager") == []


def test_extrapolated_cells_are_dashed_and_shaded_and_no_others() -> None:
    tables = tables_from_profile(PASSES, max_num_tokens=64)  # measured to 32
    passes = panels(PASSES, tables)[0]
    assert shaded(passes) == [(32, 64)]
    assert "extrapolated" in texts(passes)
    (dashed,) = (line for line in passes.lines if line.get_label() == "4 requests, extrapolated")
    sizes, costs = numbers(dashed)
    assert sizes[np.isfinite(costs)].tolist() == [*range(32, 65)]  # from the last measured cell, so that no gap is left
    assert dashed.get_linestyle() != "-"
    (solid,) = (line for line in passes.lines if line.get_label() == "4 requests")
    assert numbers(solid)[0][np.isfinite(numbers(solid)[1])].tolist() == [*range(4, 33)]


@pytest.mark.parametrize("lost", [None, 16])
def test_what_was_measured_is_not_marked(lost: int | None) -> None:
    """Without 16 tokens, a step of 2 requests with K = 7 drafts rests on what was not measured."""
    samples = [each for each in VERIFY if lost is None or each.num_tokens != lost]
    profile = make_profile(samples, num_speculative_tokens=K if lost is None else 7)
    tables = tables_from_profile(profile)
    for n in tables.num_reqs:
        drawn = tables.verify_sources(n, 64)[n : 33 if n == 4 else n * (1 + profile.num_speculative_tokens) + 1]
        assert ("x" in drawn) == (lost is not None and n < 4)
    figure = cost_figure(profile, tables)
    has_mark = bool(shaded(figure.axes[1]))
    assert has_mark == (lost is not None)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]  # type: ignore[union-attr]
    assert ("extrapolated" in labels) == has_mark


@pytest.mark.parametrize(("source", "said"), [("measured", "measured"), ("imported: figures of others", "imported")])
def test_what_others_timed_is_not_called_measured(source: str, said: str) -> None:
    profile = make_profile([*VERIFY], source=source)
    figure = cost_figure(profile, tables_from_profile(profile))
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]  # type: ignore[union-attr]
    modes = [label.partition(", ")[0] for label in labels if label.endswith((", graph replay", "step", ", eager"))]
    assert modes
    assert set(modes) == {said}


def test_the_longest_context_stands_before_the_shortest() -> None:
    samples = [
        verify("graph", n, t, 10.0 + t + c, context_len=c) for c in (0, 64, 512) for n in (1, 4) for t in (n, 4 * n)
    ]
    profile = make_profile(samples)
    tables = tables_from_profile(profile)
    passes = panels(profile, tables)[0]
    assert drawn_line(passes, "1 request")[1] == tables.verify_row(1, 512)[1:5].tolist()
    assert drawn_line(passes, "1 request, faint")[1] == tables.verify_row(1, 0)[1:5].tolist()
    assert [point[1] for point in points(passes, "1 request, graph")] == [523.0, 526.0]
    assert "context 512" in passes.get_ylabel()


def test_log_axes_say_so() -> None:
    for axes in panels(WHOLE, tables_from_profile(WHOLE)):
        for scale, label in ((axes.get_xscale(), axes.get_xlabel()), (axes.get_yscale(), axes.get_ylabel())):
            assert label
            assert (scale == "log") == label.endswith("(log scale)")


def test_labels_of_lines_do_not_overlap() -> None:
    flat = make_profile([verify("graph", n, t, 10.0) for n in (1, 2, 4) for t in (1, 2, 4, 8, 16) if n <= t])
    figure = cost_figure(flat, tables_from_profile(flat))
    figure.draw_without_rendering()
    for axes in figure.axes[1:]:
        names = ("1 request", "2 requests", "4 requests")
        boxes = [text.get_window_extent() for text in axes.texts if text.get_text() in names]
        assert len(boxes) == 3
        assert all(axes.bbox.y0 - 1 < box.y0 and box.y1 < axes.bbox.y1 + 1 for box in boxes)
        assert not any(one.overlaps(other) for at, one in enumerate(boxes) for other in boxes[:at])


ODD = {
    "one point": [verify("eager", 1, 1, 10.0)],
    "one captured point": [verify("graph", 1, 1, 10.0)],
    "one number of requests": [verify("graph", 8, t, 10.0 + t) for t in (8, 16)],
    "20 contexts": [verify("graph", n, t, 10.0 + c, context_len=c) for c in range(20) for n in (1, 4) for t in (4, 16)],
    "four decades": [verify("graph", 1, t, 2.0 * t**2) for t in (1, 10, 100, 1000)],
    "no repetition twice": [sample("verify", "graph", n, 4 * n, [1.0]) for n in (1, 2)],
    "drafts alone eager": [*VERIFY, *(each for each in DRAFTS if each.mode == "eager")],
    "one k": [*VERIFY, *(each for each in DRAFTS if each.k == 0)],
    "prompts beside requests alone": [*VERIFY, *(each for each in MIXED if each.shape.num_verifying)],
    "everything captured": [verify("graph", n, t, 10.0) for n in (1, 2) for t in (1, 2, 4, 8) if n <= t],
}


@pytest.mark.parametrize("name", ODD)
def test_odd_profiles_are_drawn(name: str, tmp_path: Path) -> None:
    for changes in ({}, {"num_speculative_tokens": max([each.k or 0 for each in ODD[name]])}):
        profile = make_profile(ODD[name], **changes)
        for semantics in get_args(Semantics):
            write_plot(tmp_path / "costs.png", profile, tables_from_profile(profile, semantics=semantics))
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")


SHAPES = st.tuples(st.integers(1, 20), st.integers(0, 60), st.sampled_from(["graph", "eager"]), st.floats(1e-6, 1e8))


@settings(max_examples=25)
@given(
    shapes=st.lists(SHAPES, min_size=2, max_size=6, unique_by=lambda shape: shape[0] + shape[1]),
    contexts=st.sets(st.sampled_from([0, 7, 900]), min_size=1),
    drafts=st.booleans(),
    more_tokens=st.integers(0, 40),
    semantics=st.sampled_from(get_args(Semantics)),
)
def test_any_profile_that_has_tables_has_a_picture(
    shapes: list[tuple[int, int, str, float]], contexts: set[int], drafts: bool, more_tokens: int, semantics: Semantics
) -> None:
    samples = [sample("verify", mode, n, n + t, [ms], context_len=c) for c in contexts for n, t, mode, ms in shapes]
    if drafts:
        samples += [sample("draft", mode, n, n, [ms], k=t % (K + 1)) for n, t, mode, ms in shapes]
    profile = make_profile(samples)
    try:
        reach = profile.max_num_batched_tokens + more_tokens
        tables = tables_from_profile(profile, max_num_tokens=reach, semantics=semantics)
        figure = cost_figure(profile, tables)
    except CoverageError:
        reject()
    figure.draw_without_rendering()
    passes = figure.axes[1]
    for n in (tables.num_reqs[0], tables.num_reqs[-1]):
        sizes, costs = drawn_line(passes, f"{n} request{'' if n == 1 else 's'}")
        assert costs == tables.verify_row(n, tables.contexts[-1])[sizes].tolist()


HOSTILE = "$\\nope$ <script>alert('x')</script> & \"--> \x00\n漢 " + "very long " * 30


def test_names_from_the_file_are_shown_as_text_and_nothing_else(tmp_path: Path) -> None:
    profile = msgspec.structs.replace(
        WHOLE,
        source=HOSTILE,
        environment=msgspec.structs.replace(CPU_ENVIRONMENT, device=HOSTILE, dtype=HOSTILE, timing_scope=HOSTILE),
        target=msgspec.structs.replace(TARGET, name=HOSTILE),
        draft=msgspec.structs.replace(DRAFT, name=HOSTILE),
    )
    tables = tables_from_profile(profile)
    head = texts(cost_figure(profile, tables).axes[0])
    assert "$\\nope$ <script>" in head
    assert "漢" not in head  # for which the picture's font has no glyph
    assert max(map(len, head.splitlines())) < 150
    for suffix in (".png", ".svg", ".html"):
        write_plot(tmp_path / f"costs{suffix}", profile, tables)
    ElementTree.parse(tmp_path / "costs.svg")
    page = (tmp_path / "costs.html").read_text()
    assert "script" not in tags(page)
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;" in page
    assert "漢" in page  # a reader's browser has the fonts
    assert "\x00" not in page


class Tags(HTMLParser):
    """The elements of a page, those left open, and what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> Tags:
    parser = Tags()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def tags(page: str) -> Iterator[str]:
    yield from parsed(page).seen


def test_the_page_is_whole_and_explains_itself(tmp_path: Path) -> None:
    write_plot(tmp_path / "costs.html", WHOLE, tables_from_profile(WHOLE))
    page = (tmp_path / "costs.html").read_text()
    parser = parsed(page)
    assert parser.seen.count("svg") == 1
    assert all(link.startswith("#") for link in parser.links)
    for outside in ("@import", "url(http", "url('http", "<script", "<link"):
        assert outside not in page
    for said in (
        "a CPU",
        "float32",
        "target (100 parameters)",
        "draft (10 parameters)",
        "64 tokens",
        "1, 2, 4, 8, 16",
        "held-out error, captured: MAPE",
        "samples have fewer than 20 repetitions",
        "The staircase",
    ):
        assert said in page, said


@pytest.mark.parametrize("suffix", [".html", ".png", ".svg", ".SVG"])
def test_the_same_input_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_plot(tmp_path / f"{name}{suffix}", WHOLE, tables_from_profile(WHOLE))
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_neither_the_users_style_nor_matplotlibs_state_plays_a_part(tmp_path: Path) -> None:
    tables = tables_from_profile(WHOLE)
    write_plot(tmp_path / "one.svg", WHOLE, tables)
    with matplotlib.rc_context(
        {"font.size": 30, "axes.facecolor": "black", "svg.fonttype": "none", "text.usetex": True}
    ):
        before = dict(matplotlib.rcParams)
        write_plot(tmp_path / "two.svg", WHOLE, tables)
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_no_display_is_asked_for(tmp_path: Path) -> None:
    WHOLE.write(tmp_path / "profile.json")
    code = f"""
import sys
from specplan.costs import tables_from_profile
from specplan.files import Profile
from specplan.report.cost_plot import write_plot
assert "matplotlib" not in sys.modules
profile = Profile.read({str(tmp_path / "profile.json")!r})
write_plot({str(tmp_path / "costs.png")!r}, profile, tables_from_profile(profile))
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["costs.pdf", "costs", "costs.html.gz"])
def test_another_suffix_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.html, \.png or \.svg"):
        write_plot(tmp_path / name, WHOLE, tables_from_profile(WHOLE))
    assert list(tmp_path.iterdir()) == []
