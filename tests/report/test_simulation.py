from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from specplan.errors import FileError
from specplan.files.tables import Semantics
from specplan.planning import CalibrationReport, CalibrationScore
from specplan.report import deploy_sentence, simulation_notes, simulation_rows, simulation_table, write_result
from specplan.simulation import Gain, PolicyResult, Recommendation, SimulationResult, TablesUsed


def policy(name: str, concurrency: int, gain: float | None = None, **changes: Any) -> PolicyResult:
    """A policy that gains so much over none, give or take two percent; none itself where it gains nothing."""
    found = (
        Gain(estimate=0.0, interval=(0.0, 0.0))
        if gain is None
        else Gain(estimate=gain, interval=(gain - 0.02, gain + 0.02))
    )
    return PolicyResult(
        **{
            "policy": name,
            "concurrency": concurrency,
            "losslessness": "anticipating" if name == "oracle" else "lossless",
            "output_tokens_per_s": 1234.56 * (1 + found.estimate),
            "tpot_ms": 3.21987,
            "mean_accepted_len_plus_1": 2.345,
            "mean_budget": 0.0 if gain is None else 11.25,
            "wasted_share": None if gain is None else 0.4321,
            "gain_over_none": found,
            "verdict": None if gain is None else found.verdict,
            "num_steps": 500,
            "num_requests": 100,
            "extrapolated_share": 0.0,
            "cost_error": 0.02,
            "unknown_share": 0.0,
        }
        | changes
    )


TABLES = TablesUsed(
    digest="0" * 64,
    source="measured",
    device="a device",
    target="tiny",
    draft="tiny",
    warnings=[],
    held_out_error=0.02,
    is_draft_free=False,
    is_incomplete=False,
)


def advice(name: str, concurrency: int, fastest: str | None = None) -> Recommendation:
    return Recommendation(
        concurrency=concurrency,
        policy=name,
        fastest=fastest or name,
        tied_with=[] if fastest is None else [name],
        runner_up=None,
        lead_over_runner_up=None,
    )


def result(policies: list[PolicyResult], recommendations: list[Recommendation], **changes: Any) -> SimulationResult:
    return SimulationResult(
        **{
            "tables": TABLES,
            "planner_tables": TABLES,
            "mismatches": [],
            "planner_mismatches": [],
            "unknown": [],
            "trace_source": "prompts.jsonl",
            "target": "tiny",
            "draft": "tiny",
            "sampling": "greedy",
            "is_approximate": False,
            "num_requests": 100,
            "num_speculative_tokens": 7,
            "lag": 1,
            "max_num_batched_tokens": 1024,
            "seed": 0,
            "num_resamples": 100,
            "calibration": None,
            "calibration_report": None,
            "policies": policies,
            "recommendations": recommendations,
        }
        | changes
    )


def usual() -> SimulationResult:
    return result(
        [
            policy("none", 1), policy("fixed:3", 1, 0.413), policy("oracle", 1, 0.9),
            policy("none", 4), policy("fixed:3", 4, 0.2), policy("oracle", 4, 0.9),
            policy("none", 16), policy("fixed:3", 16, -0.3), policy("oracle", 16, 0.1),
            policy("none", 64), policy("fixed:3", 64, -0.5), policy("oracle", 64, 0.01),
        ],
        [advice("fixed:3", 1), advice("fixed:3", 4), advice("none", 16), advice("none", 64)],
    )  # fmt: skip


def test_the_sentence_says_what_to_deploy_where_and_what_it_gains() -> None:
    assert deploy_sentence(usual()) == (
        "Deploy fixed:3 at concurrency 1 and 4, none at 16 and 64: "
        "+41.3% [+39.3, +43.3] output tokens/s over no speculation at 1 and +20.0% [+18.0, +22.0] at 4."
    )


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (["none"], "none at concurrency 1"),
        (["none", "none"], "none at concurrency 1 and 2"),
        (["fixed:3", "none"], "fixed:3 at concurrency 1, none at 2"),
        (["adaptive", "fixed:3", "none"], "adaptive at concurrency 1, fixed:3 at 2, none at 4"),
        (["adaptive", "fixed:3", "fixed:3", "none"], "adaptive at concurrency 1, fixed:3 at 2 and 4, none at 8"),
    ],
)
def test_places(names: list[str], places: str) -> None:
    recommendations = [advice(name, 2**i) for i, name in enumerate(names)]
    policies = [policy(name, 2**i, None if name == "none" else 0.5) for i, name in enumerate(names)]
    assert deploy_sentence(result(policies, recommendations)).startswith(f"Deploy {places}: ")


def test_no_gain_is_said() -> None:
    found = result([policy("none", 1), policy("fixed:3", 1, -0.2)], [advice("none", 1)])
    assert deploy_sentence(found) == (
        "Deploy none at concurrency 1: no policy yields more output tokens/s than no speculation, beyond noise."
    )


def test_doubts_are_said() -> None:
    found = result(
        [
            policy("none", 1), policy("fixed:3", 1, 0.4), policy("adaptive", 1, 0.41),
            policy("none", 8), policy("fixed:3", 8, 0.01, extrapolated_share=0.36), policy("adaptive", 8, -0.1),
        ],
        [advice("fixed:3", 1, fastest="adaptive"), advice("fixed:3", 8)],
        is_approximate=True,
        sampling="sampled",
    )  # fmt: skip
    assert deploy_sentence(found) == (
        "Do not rely on this yet: of the steps, 36% at 8 cost what was extrapolated, not measured and the trace is of "
        "sampled output, so its replay is approximate. As things stand: "
        "deploy fixed:3 at concurrency 1 and 8: +40.0% [+38.0, +42.0] output tokens/s over no speculation at 1 and "
        "+1.0% [-1.0, +3.0] at 8 (too close to call); "
        "at 1 the lead of adaptive is within noise, so the simpler fixed:3 is named."
    )


@pytest.mark.parametrize("baseline", [False, True])
def test_a_little_that_was_extrapolated_is_said_beside_the_advice(baseline: bool) -> None:
    """Also where it is the baseline's steps, which the gain is over."""
    shares = {"none" if baseline else "fixed:3": 0.12}
    found = result(
        [
            policy(name, 4, gain, extrapolated_share=shares.get(name, 0.0))
            for name, gain in (("none", 0.0), ("fixed:3", 0.4))
        ],
        [advice("fixed:3", 4)],
    )
    sentence = deploy_sentence(found)
    assert sentence.startswith("Deploy fixed:3")
    assert sentence.endswith("of the steps, 12% at 4 cost what was extrapolated, not measured.")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"held_out_error": 0.13}, "the costs did not repeat (held-out error 13%; measure again on a quiet machine)"),
        ({"is_incomplete": True}, "the profile behind the costs is incomplete"),
    ],
)
def test_costs_that_cannot_be_relied_on_come_first(changes: dict[str, Any], reason: str) -> None:
    found = msgspec.structs.replace(usual(), tables=msgspec.structs.replace(TABLES, **changes))
    assert deploy_sentence(found).startswith(f"Do not rely on this yet: {reason}. As things stand: deploy fixed:3 at")


def test_models_that_are_not_those_that_were_timed_come_first() -> None:
    found = msgspec.structs.replace(usual(), mismatches=["the trace's target (a) is not the one priced (b)"])
    assert deploy_sentence(found).startswith("Do not rely on this yet: the trace's target (a)")


def test_nothing_is_recommended_without_intervals() -> None:
    found = msgspec.structs.replace(usual(), num_resamples=0, num_requests=4)
    assert deploy_sentence(found) == (
        "No recommendation: that takes intervals, and so 20 requests or more (here 4) and --resamples above 0."
    )


def test_cells() -> None:
    headers, rows = simulation_rows(usual())
    assert headers == (
        "conc.", "policy", "output tokens/s", "TPOT ms", "accepted_len + 1", "budget per step", "wasted drafts",
        "gain over none", "95% interval", "verdict",
    )  # fmt: skip
    assert rows[0] == ("1", "none", "1,234.6", "3.220", "2.35", "0.0", "-", "-", "-", "baseline")
    assert rows[1] == ("1", "fixed:3", "1,744.4", "3.220", "2.35", "11.2", "43%", "+41.3%", "+39.3, +43.3", "better")
    assert len(rows) == 12


def test_extrapolation_has_a_column_where_there_is_any() -> None:
    headers, rows = simulation_rows(result([policy("none", 1), policy("fixed:3", 1, 0.1, extrapolated_share=0.25)], []))
    assert headers[-1] == "extrapolated"
    assert [row[-1] for row in rows] == ["0%", "25%"]


def test_no_interval_and_no_figures() -> None:
    nothing = policy("fixed:3", 1, 0.1, tpot_ms=None, mean_accepted_len_plus_1=None)
    nothing = msgspec.structs.replace(nothing, gain_over_none=Gain(estimate=0.1, interval=None))
    _, rows = simulation_rows(result([nothing], []))
    assert rows[0][3:5] == ("-", "-")
    assert rows[0][7:9] == ("+10.0%", "no interval")


def test_the_table_shows_every_cell_whole() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(simulation_table(usual()))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for cells in simulation_rows(usual())[1]:
        for cell in cells:
            assert all(word in text for word in cell.split())
    assert "…" not in text


def test_notes_say_what_the_figures_rest_on() -> None:
    score = CalibrationScore(log_loss=0.7, brier=0.2, expected_calibration_error=0.3)
    better = CalibrationScore(log_loss=0.5, brier=0.1, expected_calibration_error=0.02)
    report = CalibrationReport(num_drafts=9, before=score, after=better, slopes=(1.0, 1.0), intercepts=([0.0], [0.0]))
    found = msgspec.structs.replace(usual(), calibration="cross-fit", calibration_report=report)
    assert simulation_notes(found) == [
        "100 requests of prompts.jsonl, K = 7, greedy output; steps of up to 1024 tokens",
        "budgets from confidences at lag 1, calibrated on the other half of the requests: log loss of survival 0.700 "
        "before, 0.500 after; calibration error 0.300 before, 0.020 after",
        "adaptive and oracle always draft K = 7 and choose what to verify; a fixed:k that drafts fewer can pass both",
        "oracle is anticipating: it knows what will be accepted, so it is a bound on better rankings and cannot be "
        "deployed",
        "intervals from 100 draws of the requests; widened by what is known of the costs of each policy's steps, 2.0%",
    ]
    raw = msgspec.structs.replace(found, calibration="off", calibration_report=None, is_approximate=True)
    assert simulation_notes(raw)[0].startswith("100 requests of prompts.jsonl, K = 7, an approximate replay")
    assert simulation_notes(raw)[1] == "budgets from confidences at lag 1, as recorded"


def test_a_note_says_what_ema_goes_by() -> None:
    found = result([policy("none", 1), policy("ema", 1, 0.1)], [advice("ema", 1)])
    assert simulation_notes(found)[1] == (
        "ema begins at K = 7 and moves k by the share of drafts accepted, whatever drafting and verifying them cost"
    )


def test_the_result_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(usual(), path)
    assert msgspec.json.decode(path.read_bytes(), type=SimulationResult) == usual()
    with pytest.raises(FileError, match="cannot write"):
        write_result(usual(), tmp_path / "absent" / "result.json")


def test_what_does_not_match_or_may_not_is_in_the_notes() -> None:
    found = msgspec.structs.replace(
        usual(), planner_mismatches=["the planner's tables are not of what is charged: x"], unknown=["whether it rains"]
    )
    notes = simulation_notes(found)
    assert "warning: the planner's tables are not of what is charged: x" in notes
    assert "unknown: whether it rains" in notes
    assert deploy_sentence(found) == deploy_sentence(usual())  # what the planner loses is in the figures already


def test_notes_tell_of_tables_that_no_engine_runs_by() -> None:
    def notes(charged: Semantics, planned: Semantics) -> str:
        tables, planner = (msgspec.structs.replace(TABLES, semantics=name) for name in (charged, planned))
        return "\n".join(simulation_notes(result([policy("none", 1)], [], tables=tables, planner_tables=planner)))

    assert " tables" not in notes("padded", "padded")
    assert (
        "warning: steps are charged by floor tables, as a smaller step that was measured: no engine runs so"
        in notes("floor", "floor")
    )
    assert "planned by" not in notes("floor", "floor")
    assert "steps are charged by linear tables" in notes("linear", "linear")
    planned = notes("padded", "exact")
    assert "budgets are planned by exact tables, and steps charged by padded ones" in planned
    assert "steps are charged by exact" not in planned
