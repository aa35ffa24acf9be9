from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from foreign_timings import STEP_ROWS

from specplan.costs import tables_from_profile
from specplan.errors import ConfigError, FileError, SpecplanError
from specplan.files import Profile
from specplan.interop import Facts, ReadingOptions, import_costs

Imported = Callable[..., Profile]

VERIFY_ROW = "num_reqs,num_tokens,context_len,mode,ms,timed,k\n1,1,1,eager,1,verify,\n"


def test_rows_of_one_shape_are_its_repetitions(imported: Imported) -> None:
    profile = imported("steps", STEP_ROWS, num_speculative_tokens=3, device="H100", target="a", dtype="bfloat16")
    assert [
        (sample.mode, sample.num_reqs, sample.num_tokens, sample.context_len, sample.repetitions_ms)
        for sample in profile.samples
    ] == [
        ("graph", 1, 1, 512, [2.0, 2.5]),
        ("graph", 4, 8, 512, [3.0]),
        ("eager", 4, 16, 512, [7.0]),
        ("eager", 4, 32, 512, [9.0]),
    ]
    assert {sample.stop_reason for sample in profile.samples} == {"imported"}
    assert profile.source == "imported: step timings, source0"
    assert profile.environment.timing_scope == "unknown: as whoever timed these steps had it"
    assert (profile.environment.device, profile.environment.dtype, profile.target.name) == ("H100", "bfloat16", "a")
    assert (profile.max_num_seqs, profile.max_num_batched_tokens) == (4, 32)
    assert (profile.num_speculative_tokens, profile.capture_sizes, profile.draft) == (3, [1, 8], None)


def test_what_nobody_told_is_null(imported: Imported) -> None:
    profile = imported("steps", STEP_ROWS, num_speculative_tokens=3)
    environment = profile.environment
    for name in environment.__struct_fields__:
        if name != "timing_scope":
            assert getattr(environment, name) is None, name
    assert (profile.target.name, profile.target.num_params, profile.target.weights) == ("unknown", None, None)


def test_the_price_of_an_imported_step_is_the_median(imported: Imported) -> None:
    tables = tables_from_profile(imported("steps", STEP_ROWS, num_speculative_tokens=3))
    assert tables.verify_row(1, 512)[1] == 2.25
    # Padded to 8 of 4 requests; smooth above the limit: halfway from 7 to 9 at 24 of 16 and 32.
    assert [tables.verify_row(4, 512)[size] for size in (5, 8, 24)] == [3.0, 3.0, 8.0]
    assert tables.source == "imported: step timings, source0"


def test_other_names_units_and_rows(imported: Imported) -> None:
    content = """\
# what a benchmark wrote
gpu,batch,q,kv,median_us
A100,2,4,1024,9000
H100,2,4,1024,5000
H200,2,4,1024,4000
H100,2,1,1024,4500
"""
    profile = imported(
        "steps",
        content,
        columns={"num_reqs": "batch", "query_len": "q", "context_len": "kv", "ms": "median_us"},
        where={"gpu": ["H100", "H200"], "q": ["4"]},
        unit="us",
        capture_limit=4,
        num_speculative_tokens=3,
        citation="someone, MIT",
    )
    assert [(sample.mode, sample.num_tokens, sample.repetitions_ms) for sample in profile.samples] == [
        ("eager", 8, [5.0, 4.0])
    ]
    assert profile.source == "imported: step timings, source0; someone, MIT"


def test_seconds(imported: Imported) -> None:
    profile = imported("steps", STEP_ROWS, num_speculative_tokens=1, unit="s")
    assert profile.samples[0].repetitions_ms == [2000.0, 2500.0]


def test_json_rows_are_kept_by_what_a_csv_would_hold(imported: Imported) -> None:
    content = '[{"tp": 1, "num_reqs": 1, "num_tokens": 2, "ms": 3}, {"tp": 4, "num_reqs": 1, "num_tokens": 2, "ms": 1}]'
    profile = imported(
        "steps", content, where={"tp": ["4"]}, context_len=0, capture_limit=512, num_speculative_tokens=1
    )
    assert [sample.repetitions_ms for sample in profile.samples] == [[1.0]]


def test_everything_a_sample_holds(imported: Imported) -> None:
    content = """\
timed,mode,num_reqs,num_tokens,executed_num_tokens,context_len,k,num_prefilling,num_prompt_tokens,ms
verify,graph,3,6,8,100,7,,,2
verify,,3,40,,100,,1,34,4
draft,graph,3,,4,100,2,,,0.5
draft,eager,3,,,100,0,,,0.25
host,,3,6,,,2,,,0.125
draft-prefill,,1,34,,,,,,0.75
"""
    profile = imported("steps", content, draft="small")
    verify, mixed, draft, upkeep, host, prefill = profile.samples
    assert (verify.num_tokens, verify.executed_num_tokens, verify.k) == (6, 8, None)
    assert (mixed.mode, mixed.shape.num_verifying, mixed.shape.num_drafts, mixed.context_len) == ("eager", 2, 4, 100)
    assert (draft.k, draft.num_tokens, upkeep.k, upkeep.mode) == (2, 3, 0, "eager")
    assert (host.mode, host.k, host.context_len) == ("eager", 2, 0)
    assert (prefill.num_tokens, prefill.k) == (34, None)
    assert (profile.num_speculative_tokens, profile.capture_sizes) == (2, [8])
    assert profile.draft is not None
    assert profile.draft.name == "small"
    tables = tables_from_profile(profile, max_num_tokens=8)
    assert (tables.draft_row(2)[3], tables.overhead_ms[1], tables.draft_prefill_ms[0]) == (0.5, 0.125, 0.0)


def test_files_add_up(imported: Imported) -> None:
    drafts = "timed,mode,num_reqs,context_len,k,ms\ndraft,graph,4,512,3,1.5\n"
    profile = imported("steps", STEP_ROWS, drafts)
    assert profile.source == "imported: step timings, source0, source1"
    assert (len(profile.samples), profile.num_speculative_tokens) == (5, 3)
    assert profile.draft is not None
    assert profile.draft.name == "unknown"


def test_a_file_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(STEP_ROWS)
    for again in (path, tmp_path / ".." / tmp_path.name / "steps.csv"):
        with pytest.raises(ConfigError, match="a file is named twice"):
            import_costs([path, again], format="steps", options=ReadingOptions(), given=Facts(num_speculative_tokens=3))


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (
            "batch,tokens,ms\n1,1,1\n",
            "source0: line 2: no column num_reqs; there is batch, tokens, ms",
            "--column num_reqs=NAME",
        ),
        ("num_reqs,tokens,ms\n1,1,1\n", "no column num_tokens; there is", "--column num_tokens=NAME"),
        ("num_reqs,num_tokens,step_ms\n1,1,1\n", "no column ms; there is", "--column ms=NAME"),
        ("num_reqs,num_tokens,mode,ms\n1,1,eager,1\n", "line 2: the source does not say how long", "--context-len N"),
        ("num_reqs,num_tokens,context_len,ms\n1,1,1,1\n", "line 2: the source does not tell", "--capture-limit N"),
        ("num_reqs,num_tokens,context_len,mode,ms\n1,1,1,fast,1\n", "line 2: mode is fast, expected graph, eager", ""),
        ("num_reqs,num_tokens,context_len,mode,ms\n2,1,1,eager,1\n", "line 2: num_tokens: expected at least one", ""),
        ("num_reqs,num_tokens,context_len,mode,ms\n0,1,1,eager,1\n", "line 2: num_reqs is 0", ""),
        ("num_reqs,num_tokens,context_len,mode,ms\n1,1,-1,eager,1\n", "line 2: context_len is -1", ""),
        ("num_reqs,num_tokens,context_len,mode,ms\n1,1,1,eager,nan\n", "line 2: ms is nan, expected more than 0", ""),
        ("num_reqs,num_tokens,context_len,mode,ms\n1,1,1,eager,2e9\n", "line 2: a step of 2e.09 ms", "--unit"),
        ("num_reqs,num_tokens,context_len,mode,ms,timed\n1,1,1,eager,1,head\n", "line 2: timed is head, expected", ""),
        (
            "num_reqs,num_tokens,query_len,context_len,mode,ms\n8,8,1,1,graph,1\n8,64,1,1,graph,1\n",
            "line 3: num_tokens is 64, expected 8 requests x the 1 of query_len",
            "correct one of them",
        ),
        ("num_reqs,num_tokens,context_len,mode,ms\n1,1,1,eager,5_0\n", "line 2: ms is 5_0, expected more", ""),
        ("num_reqs,num_tokens,context_len,mode,ms\n1,5_0,1,eager,1\n", "line 2: num_tokens is 5_0, expected", ""),
        (f"{VERIFY_ROW}1,1,1,eager,1,draft,\n", "line 3: k: expected drafts per request", ""),
        (f"{VERIFY_ROW}1,1,1,eager,1,draft,9\n", "line 3: k is 9, expected at most the 3", "larger --num"),
        ("num_reqs,context_len,mode,ms,timed,k\n1,1,eager,1,draft,1\n", "holds no timings of verify passes", "add"),
    ],
)
def test_mistakes_are_named(imported: Imported, content: str, message: str, hint: str) -> None:
    with pytest.raises(SpecplanError, match=message) as caught:
        imported("steps", content, num_speculative_tokens=3)
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


def test_mappings_that_lead_nowhere(imported: Imported) -> None:
    with pytest.raises(FileError, match="no column batch, which is to be num_reqs; there is num_reqs"):
        imported("steps", STEP_ROWS, columns={"num_reqs": "batch"})
    with pytest.raises(ConfigError, match="no column requests to map"):
        imported("steps", STEP_ROWS, columns={"requests": "num_reqs"})
    with pytest.raises(FileError, match="no row has mode = piecewise; there is graph, eager"):
        imported("steps", STEP_ROWS, where={"mode": ["piecewise"]})
    with pytest.raises(FileError, match="no row has gpu = H100; there is none"):
        imported("steps", STEP_ROWS, where={"gpu": ["H100"]})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"num_tokens": "num_reqs"}, "one column, num_reqs, is to be num_tokens, and num_reqs besides"),
        ({"ms": "num_reqs"}, "one column, num_reqs, is to be ms, and num_reqs besides"),
        ({"num_reqs": "num_tokens", "query_len": "num_tokens"}, "num_tokens, is to be both num_reqs and query_len"),
    ],
)
def test_a_column_is_one_thing(imported: Imported, columns: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        imported("steps", STEP_ROWS, num_speculative_tokens=3, columns=columns)


def test_columns_that_swap_names(imported: Imported) -> None:
    content = "num_reqs,num_tokens,context_len,mode,ms\n8,2,64,graph,1\n"
    swapped = {"num_reqs": "num_tokens", "num_tokens": "num_reqs"}
    (sample,) = imported("steps", content, num_speculative_tokens=3, columns=swapped).samples
    assert (sample.num_reqs, sample.num_tokens) == (2, 8)


def test_tokens_that_agree_are_told_twice(imported: Imported) -> None:
    content = "num_reqs,num_tokens,query_len,context_len,mode,ms\n8,64,8,64,graph,1\n"
    assert [s.num_tokens for s in imported("steps", content, num_speculative_tokens=7).samples] == [64]


def test_options_that_would_change_nothing_are_refused(imported: Imported) -> None:
    for option in ("context_len", "capture_limit"):
        with pytest.raises(ConfigError, match=f"--{option.replace('_', '-')} is given, and every timing tells its own"):
            imported("steps", STEP_ROWS, num_speculative_tokens=3, **{option: 512})
    with pytest.raises(ConfigError, match="--draft names small, and there are no timings of a drafter"):
        imported("steps", STEP_ROWS, num_speculative_tokens=3, draft="small")
    with pytest.raises(ConfigError, match="does not say how many tokens are drafted"):
        imported("steps", STEP_ROWS)


def test_real_curves_price_as_they_say(shared_data: Path) -> None:
    """The whole curve of one GPU and model, and the cost of each of its steps."""
    path = shared_data / "costs" / "llmservingsim_rtx4090_llama8b_verify_cost.csv"
    profile, _ = import_costs(
        [path],
        format="steps",
        options=ReadingOptions(columns={"num_reqs": "num_requests", "context_len": "context", "ms": "step_ms"}),
        given=Facts(num_speculative_tokens=7, capture_limit=0),
    )
    tables = tables_from_profile(profile, monotone="none")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(profile.samples) == len(rows) == 1188
    for row in rows:
        priced = tables.verify_row(int(row["num_requests"]), int(row["context"]))[int(row["num_tokens"])]
        assert priced == pytest.approx(float(row["step_ms"]), rel=1e-12)


def test_real_curves_of_other_forms(shared_data: Path) -> None:
    profile, _ = import_costs(
        [shared_data / "costs" / "verify_microbench_llama8b_h100_pramodjella.csv"],
        format="steps",
        options=ReadingOptions(columns={"num_reqs": "batch", "query_len": "q_tokens", "ms": "ms_mean"}),
        given=Facts(num_speculative_tokens=7, context_len=512, capture_limit=0),
    )
    assert [(s.num_reqs, s.num_tokens) for s in profile.samples[-2:]] == [(8, 40), (8, 64)]
    profile, _ = import_costs(
        [shared_data / "costs" / "verify_cost_context_qwen3_1.7b_adixg.csv"],
        format="steps",
        options=ReadingOptions(columns={"ms": "median_ms"}),
        given=Facts(num_speculative_tokens=7, capture_limit=512),
    )
    assert tables_from_profile(profile).contexts == [0, 256, 512, 1024, 2048, 4096]
