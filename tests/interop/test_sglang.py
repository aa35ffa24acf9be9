from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from foreign_timings import DUMP, DUMP_RECORDS, SPS_ADDITIVE, SPS_BY_TOKENS, record, reqs

from specplan.costs import tables_from_profile
from specplan.costs.samples import draft_points
from specplan.errors import ConfigError, FileError
from specplan.files import Profile
from specplan.interop import Facts, ReadingOptions, import_costs

Imported = Callable[..., Profile]


class TestSps:
    def test_steps_per_second_by_tokens(self, imported: Imported) -> None:
        profile = imported(
            "sglang-sps",
            json.dumps(SPS_BY_TOKENS, indent=1),
            num_speculative_tokens=7,
            max_num_seqs=16,
            context_len=1024,
            capture_limit=512,
        )
        # Tokens alone price a step: it is entered with as many requests as it may have.
        assert [(s.num_reqs, s.num_tokens, s.repetitions_ms) for s in profile.samples] == [
            (8, 8, [1.0]),
            (16, 16, [1.25]),
            (16, 32, [2.0]),
            (16, 64, [2.5]),
        ]
        assert "drafting is in it" in profile.environment.timing_scope
        tables = tables_from_profile(profile)
        assert [tables.verify_row(8, 0)[size] for size in (8, 9, 31, 33)] == [1.0, 1.25, 2.0, 2.5]

    def test_an_engine_of_other_sizes_than_the_probes(self, imported: Imported) -> None:
        told = {"num_speculative_tokens": 7, "max_num_seqs": 16, "context_len": 1024}
        profile = imported("sglang-sps", json.dumps(SPS_BY_TOKENS), capture_sizes=(8, 24, 32), **told)
        assert (profile.capture_sizes, [s.mode for s in profile.samples]) == ([8, 24, 32], [*3 * ["graph"], "eager"])
        row = tables_from_profile(profile).verify_row(16, 0)
        assert [row[size] for size in (17, 24, 25, 64)] == [1.625, 1.625, 2.0, 2.5]

    def test_the_additive_form(self, imported: Imported) -> None:
        profile = imported(
            "sglang-sps", json.dumps(SPS_ADDITIVE), num_speculative_tokens=7, context_len=1024, capture_limit=0
        )
        assert profile.source == "imported: SGLang dspark sps table, additive, source0"
        found = {(s.num_reqs, s.num_tokens): s.repetitions_ms[0] for s in profile.samples}
        assert found == pytest.approx(
            {(4, 4): 100.0, (4, 8): 120.0, (4, 32): 200.0, (8, 8): 128.0, (8, 32): 208.0}  # not 8 requests of 4 tokens
        )
        # Between the probes as SGLang reads it: T(8, 20) = 100 + 8 + (20 + 100) / 2.
        assert tables_from_profile(profile).verify_row(8, 0)[20] == pytest.approx(168.0)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"sample_batch_tokens": [8, 8, 16, 32]}, r"sample_batch_tokens\[1\] is 8, expected more than 8"),
            ({"sample_batch_tokens": [8]}, "sample_steps_per_sec holds 4, expected as many as sample_batch_tokens"),
            ({"sample_steps_per_sec": [1.0, 1.0, 0.0, 1.0]}, r"sample_steps_per_sec\[2\] is 0.0, expected more than 0"),
            ({"sample_steps_per_sec": [1.0, 1.0, 1e-320, 1.0]}, r"sample_steps_per_sec\[2\]: a step of inf ms"),
            ({"sample_batch_tokens": None}, "no sample_batch_tokens"),
            ({**SPS_ADDITIVE, "bias_seconds": 0}, "bias_seconds is 0, expected more than 0"),
            ({**SPS_ADDITIVE, "theta_seconds": [1.0]}, "theta_seconds holds 1"),
            ({**SPS_ADDITIVE, "alpha_seconds": [-1.0, 0.0]}, "4 requests, 4 tokens: a step of -900 ms"),
            ({**SPS_ADDITIVE, "bs_probes": [64, 128]}, r"no m_probes \(32 at most\) holds the requests"),
        ],
    )
    def test_mistakes_are_named(self, imported: Imported, change: dict[str, Any], message: str) -> None:
        with pytest.raises(FileError, match=message):
            imported(
                "sglang-sps",
                json.dumps({**SPS_BY_TOKENS, **change}),
                num_speculative_tokens=7,
                max_num_seqs=16,
                context_len=1024,
                capture_limit=512,
            )

    def test_what_the_table_does_not_say_is_asked_for(self, imported: Imported) -> None:
        known = {"num_speculative_tokens": 7, "max_num_seqs": 16, "context_len": 0, "capture_limit": 64}
        for name in known:
            with pytest.raises(ConfigError) as caught:
                imported("sglang-sps", json.dumps(SPS_BY_TOKENS), **{key: known[key] for key in known if key != name})
            assert f"--{name.replace('_', '-')}" in caught.value.hint


class TestDump:
    def test_sizes_that_the_dump_denies_are_refused(self, imported: Imported) -> None:
        with pytest.raises(ConfigError, match="ran padded to 16 tokens, which is none of the 2 --capture-sizes"):
            imported("sglang-dump", json.dumps(DUMP), capture_sizes=(8, 32))

    def test_drafting_is_priced_by_all_of_it(self, imported: Imported) -> None:
        """A dump tells neither what the drafter's first pass took nor that it took less than the verify pass did."""
        records = [
            record(ct, 4, 4 + ct % 29, draft_gpu_ms=1.0 + ct / 400, target_verify_gpu_ms=8.0, **reqs(9, 9, 9, 9))
            for ct in range(400)
        ]
        profile = imported("sglang-dump", json.dumps({**DUMP, "gamma": 7, "records": records}))
        drafts = [sample for sample in profile.samples if sample.model == "draft"]
        assert (len(drafts), {sample.feed_len for sample in drafts}) == (29, {None})
        (repetitions,) = draft_points(profile).repetitions_ms
        assert sorted(repetitions) == [1.0 + ct / 400 for ct in range(400)]
        assert tables_from_profile(profile).feed_costs == []

    @pytest.mark.parametrize(
        "content",
        [
            json.dumps(DUMP, indent=2),
            json.dumps({"dspark_info_record": DUMP}),
            json.dumps({"internal_states": [{"dspark_info_record": DUMP}]}),
        ],
    )
    def test_segments_of_steps(self, imported: Imported, content: str) -> None:
        profile = imported("sglang-dump", content)
        assert [
            (s.model, s.mode, s.num_reqs, s.num_tokens, s.executed_num_tokens, s.k, s.repetitions_ms)
            for s in profile.samples
        ] == [
            ("verify", "graph", 2, 10, 16, None, [2.0, 2.2]),
            ("draft", "graph", 2, 10, 10, 5, [0.5, 0.6]),
            ("verify", "eager", 1, 3, 3, None, [3.0]),
            ("draft", "eager", 1, 3, 3, 5, [0.7]),
        ]
        # (100 + 200 + 102 + 202 + 106 + 106) / 6 = 136
        assert {s.context_len for s in profile.samples} == {136}
        assert (profile.num_speculative_tokens, profile.capture_sizes) == (5, [16])

    @pytest.mark.parametrize("form", [json.dumps, lambda rows: "\n".join(map(json.dumps, rows))])
    def test_bare_records_are_told_k(self, imported: Imported, form: Callable[[Any], str]) -> None:
        profile = imported("sglang-dump", form(DUMP_RECORDS), num_speculative_tokens=5)
        assert {s.k for s in profile.samples if s.model == "draft"} == {5}
        with pytest.raises(ConfigError, match="how many tokens are drafted"):
            imported("sglang-dump", form(DUMP_RECORDS))

    def test_records_without_a_time_are_left_out_and_said(self, tmp_path: Path) -> None:
        path = tmp_path / "info.json"
        path.write_text(json.dumps(DUMP))
        _, notes = import_costs([path], format="sglang-dump", options=ReadingOptions(), given=Facts())
        assert notes == ("info.json: records left out, as they have no target_verify_gpu_ms: 1",)

    @pytest.mark.parametrize("field", ["step_gpu_ms", "step_cpu_ms"])
    def test_whole_steps_count_as_verify(self, imported: Imported, field: str) -> None:
        records = [record(1, 2, 10), record(2, 2, 10, **{field: 4.0})]
        profile = imported("sglang-dump", json.dumps({**DUMP, "records": records}), context_len=512)
        assert [(s.model, s.repetitions_ms) for s in profile.samples] == [("verify", [4.0])]
        assert "all of it counted as verify" in profile.environment.timing_scope
        assert profile.draft is None

    def test_records_without_a_graph_key_do_not_tell_replays(self, imported: Imported) -> None:
        records = [
            record(ct, 4, tokens, draft_gpu_ms=0.5, target_verify_gpu_ms=2.0, **reqs(9))
            for ct, tokens in enumerate((8, 16, 24))
        ]
        for each in records:
            del each["verify_tokens_graph_key"]
        content = json.dumps({**DUMP, "records": records})
        with pytest.raises(ConfigError, match="does not tell replayed graphs from eager steps"):
            imported("sglang-dump", content)
        profile = imported("sglang-dump", content, capture_limit=16)
        assert [s.mode for s in profile.samples] == [*4 * ["graph"], *2 * ["eager"]]
        assert profile.capture_sizes == [8, 16]
        assert imported("sglang-dump", content, capture_limit=0).capture_sizes == []
        assert imported("sglang-dump", content, capture_sizes=(4, 20)).capture_sizes == [4, 20]

    def test_segments_and_whole_steps_do_not_mix(self, imported: Imported) -> None:
        whole = {**DUMP, "records": [record(1, 2, 10, step_cpu_ms=4.0, **reqs(10, 10))]}
        with pytest.raises(ConfigError, match="is of another clock"):
            imported("sglang-dump", json.dumps(DUMP), json.dumps(whole))

    def test_a_k_that_the_dump_denies_is_refused(self, imported: Imported) -> None:
        with pytest.raises(ConfigError, match="its num_speculative_tokens is 5, expected 7"):
            imported("sglang-dump", json.dumps(DUMP), num_speculative_tokens=7)

    @pytest.mark.parametrize(
        ("records", "message"),
        [
            ([], r"records is \[\]"),
            ([record(1, 2, 10)], "no record has a time"),
            ([record(1, -1, 10, step_cpu_ms=1.0)], "bs is -1"),
            ([record(1, 2, 10, step_cpu_ms=-1.0)], "step_cpu_ms is -1.0, expected more than 0"),
            ([record(1, 2, 10, step_cpu_ms=1.0, verify_tokens_graph_key=8)], "verify_tokens_graph_key is 8, expected"),
            ([record(1, 2, 10, step_cpu_ms=1.0, verify_tokens_graph_key=16.5)], "verify_tokens_graph_key is 16.5"),
            ([record(1, 2, 10, step_cpu_ms=1.0, reqs=[{"prefix_len": -2}])], "prefix_len is -2"),
        ],
    )
    def test_mistakes_are_named(self, imported: Imported, records: list[Any], message: str) -> None:
        with pytest.raises(FileError, match=message):
            imported("sglang-dump", json.dumps({**DUMP, "records": records}), context_len=512)
