"""A comparison in cells and sentences."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from builders import CPU_ENVIRONMENT, make_profile_of_every_region
from rich.console import Console

from specplan.costs import tables_from_profile
from specplan.costs.comparable import REGIONS, Point
from specplan.costs.compare import Comparison, compare_costs
from specplan.files import Profile
from specplan.report.compare import comparison_notes, comparison_report, comparison_sentence, place


def compared(new: Profile | None = None, **arguments: Any) -> Comparison:
    return compare_costs(make_profile_of_every_region(), new or make_profile_of_every_region(), **arguments)


def text(comparison: Comparison) -> str:
    console = Console(width=132, record=True, highlight=False)
    with console.capture() as capture:
        for renderable in comparison_report(comparison):
            console.print(renderable, markup=False)
    return capture.get()


def slower_at(*sizes: int) -> Profile:
    profile = make_profile_of_every_region()
    samples = [
        msgspec.structs.replace(sample, repetitions_ms=[2 * ms for ms in sample.repetitions_ms])
        if (sample.model, sample.mode, sample.num_tokens) in [("verify", "graph", size) for size in sizes]
        else sample
        for sample in profile.samples
    ]
    return msgspec.structs.replace(profile, samples=samples)


def test_regions_and_the_points_that_changed() -> None:
    rows = [line.split("  ") for line in text(compared(slower_at(4))).splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [
        "verify captured", "2", "1", "0", "1", "+41.4%", "+41.4, +41.4", "slower",
        "+100.0%: 1 request, 4 tokens, context 128",
    ] in cells  # fmt: skip
    assert ["verify smooth", "2", "0", "0", "2", "+0.0%", "+0.0, +0.0", "same"] in [row[:8] for row in cells]
    assert [
        "verify captured", "1 request, 4 tokens, context 128", "1", "2", "+100.0%", "+100.0, +100.0", "slower",
    ] in cells  # fmt: skip
    assert "Points that got slower or faster (1; the 1 that changed most)" in text(compared(slower_at(4)))


def test_tables_of_few_repetitions_say_why_they_decide_nothing() -> None:
    once, often = (
        tables_from_profile(
            make_profile_of_every_region(
                samples=[
                    msgspec.structs.replace(sample, repetitions_ms=sample.repetitions_ms[:1] * count)
                    for sample in make_profile_of_every_region().samples
                ]
            )
        )
        for count in (1, 20)
    )
    for pair, name in (((once, often), "OLD"), ((often, once), "NEW")):
        notes = list(comparison_notes(compare_costs(*pair)))
        why = f"have no interval: {name} rests on samples of fewer than six repetitions, and tables do not say which"
        assert sum(why in note for note in notes) == len(REGIONS)


def test_where_nothing_changed_there_are_no_points_to_show() -> None:
    told = text(compared())
    assert "Costs of NEW against OLD (profiles); same: within 1%" in told
    assert "Points that" not in told
    assert "same: within 2.5%" in text(compared(margin=0.025))


@pytest.mark.parametrize(
    ("new", "sentence"),
    [
        (
            make_profile_of_every_region(),
            "Nothing got slower; same: verify captured, verify smooth, mixed, draft, host, machinery, drafter prefill.",
        ),
        (
            slower_at(4, 8),
            "Got slower: verify captured (+100.0% [+100.0, +100.0]); same: verify smooth, mixed, draft, host, "
            "machinery, drafter "
            "prefill.",
        ),
        (
            make_profile_of_every_region(scale=0.5),
            "Nothing got slower; faster: "
            + ", ".join(
                f"{region} (-50.0% [-50.0, -50.0])"
                for region in (
                    "verify captured",
                    "verify smooth",
                    "mixed",
                    "draft",
                    "host",
                    "machinery",
                    "drafter prefill",
                )
            )
            + ".",
        ),
    ],
)
def test_the_sentence(new: Profile, sentence: str) -> None:
    assert comparison_sentence(compared(new)) == sentence


def test_what_cannot_be_called_is_not_said_to_be_no_slower() -> None:
    shaky = make_profile_of_every_region(spread=0.5)
    told = comparison_sentence(compare_costs(shaky, shaky))
    assert told.startswith("Nothing is known to have got slower; too close to call: verify captured (+0.0% [")
    few = msgspec.structs.replace(
        shaky, samples=[msgspec.structs.replace(sample, repetitions_ms=[1.0]) for sample in shaky.samples]
    )
    told = comparison_sentence(compare_costs(few, few))
    assert told.startswith("Nothing is known to have got slower; undecided: verify captured, verify smooth")


class TestNotes:
    def test_points_that_are_not_in_both(self) -> None:
        old = make_profile_of_every_region()
        new = msgspec.structs.replace(old, samples=old.samples[1:-2])
        notes = list(comparison_notes(compare_costs(old, new)))
        assert "warning: verify captured: 1 point of OLD is not in NEW, and not compared" in notes
        assert "warning: drafter prefill: 2 points of OLD are not in NEW, and not compared" in notes
        back = list(comparison_notes(compare_costs(new, old)))
        assert "warning: drafter prefill: 2 points of NEW are not in OLD, and not compared" in back
        assert "undecided: drafter prefill" in comparison_sentence(compare_costs(old, new))

    def test_a_slow_point_in_a_region_that_is_not(self) -> None:
        notes = list(comparison_notes(compared(slower_at(4), margin=0.5)))
        assert (
            "warning: verify captured: 1 of 2 points got slower, though the region as a whole is not known to have"
        ) in notes
        assert not any("got slower" in note for note in comparison_notes(compared(slower_at(4))))

    def test_what_has_no_interval(self) -> None:
        profile = make_profile_of_every_region()
        few = msgspec.structs.replace(
            profile, samples=[msgspec.structs.replace(sample, repetitions_ms=[1.0]) for sample in profile.samples[:3]]
        )
        assert "verify captured: 2 of 2 points have no interval: fewer than six repetitions" in list(
            comparison_notes(compared(few))
        )
        tables = tables_from_profile(profile)
        silent = msgspec.structs.replace(tables, verify_ci_ms=None)
        assert "verify smooth: 2 of 2 points have no interval: tables that do not say how sure" in list(
            comparison_notes(compare_costs(tables, silent))
        )

    def test_what_differs_and_what_nobody_knows(self) -> None:
        environment = msgspec.structs.replace(CPU_ENVIRONMENT, dtype="float16", torch="2.14.0", device=None)
        new = make_profile_of_every_region(environment=environment)
        notes = list(comparison_notes(compared(new, across=True)))
        assert "warning: compared across dtype: float32 in OLD, float16 in NEW" in notes
        assert "differs: torch: 2.13.0 in OLD, 2.14.0 in NEW" in notes
        assert "unknown whether the same: device (NEW does not say), tensor parallel size (neither says)" in notes

    def test_what_is_wrong_with_the_files_themselves(self) -> None:
        stopped = make_profile_of_every_region(complete=False)
        notes = list(comparison_notes(compared(stopped)))
        assert "warning, of NEW: the sweep was stopped before its end" in notes


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (Point(num_reqs=1), "1 request"),
        (
            Point(num_reqs=8, num_tokens=64, context_len=128, lengths="even", mode="graph"),
            "8 requests, 64 tokens, context 128",
        ),
        (Point(num_reqs=2, num_tokens=4, k=0, lengths="ragged"), "2 requests, 4 tokens, k = 0, ragged"),
        (
            Point(num_reqs=1, drafts=7, num_prompt_tokens=16, context_len=9),
            "1 verifying request, 7 drafts each, 16 prompt tokens, context 9",
        ),
        (
            Point(num_reqs=3, num_tokens=20, num_prompt_tokens=16, num_prefilling=1),
            "3 requests, 20 tokens, 16 prompt tokens",
        ),
    ],
)
def test_places_in_words(point: Point, words: str) -> None:
    assert place(point) == words


def test_absurd_changes_keep_to_their_column() -> None:
    told = comparison_sentence(compared(make_profile_of_every_region(scale=1e8)))
    assert "verify captured (+1.0e+10% [+1.0e+10, +1.0e+10])" in told
