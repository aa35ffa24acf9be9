from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from foreign_timings import FORWARD_CASES, STEP_SAMPLES, case, request

from specplan.costs import tables_from_profile
from specplan.errors import ConfigError, FileError
from specplan.files import Profile
from specplan.interop import Facts, ReadingOptions, import_costs

Imported = Callable[..., Profile]


class TestForward:
    def test_verify_passes(self, imported: Imported) -> None:
        profile = imported("vllm-forward", json.dumps(FORWARD_CASES), num_speculative_tokens=7, capture_limit=16)
        assert [
            (sample.mode, sample.num_reqs, sample.num_tokens, sample.context_len, sample.repetitions_ms)
            for sample in profile.samples
        ] == [
            ("graph", 4, 4, 1024, [2.0, 2.01, 2.02]),
            ("graph", 4, 16, 1024, [2.4, 2.42, 2.41]),
            ("graph", 4, 32, 1024, [3.0]),
        ]
        assert (profile.capture_sizes, profile.environment.graph_kind) == ([1, 2, 4, 8, 16], "cuda-graph")
        assert profile.source == "imported: vllm bench forward, source0"
        for left_out in ("lm_head", "sampling", "host"):
            assert left_out in profile.environment.timing_scope
        # Nothing padded in the file; a table pads all the same: 5 tokens run as 8, a third of the way from 4 to 16,
        # though every size that was timed is one of the engine's.
        tables = tables_from_profile(profile)
        assert tables.verify_row(4, 1024)[5] == pytest.approx(2.01 + 0.4 / 3)
        assert "incomplete-profile" not in {finding.code for finding in tables.findings}
        # Past the limit the file's replay is all there is.
        assert tables.verify_row(4, 1024)[32] == 3.0
        assert "replayed-above-limit" in {finding.code for finding in tables.findings}

    @pytest.mark.parametrize(
        ("options", "sizes"),
        [
            ({}, [1, 2, 4, 8, 16, 24, 32]),  # vLLM's, as far as was timed
            ({"capture_limit": 512}, [1, 2, 4, 8, 16, 24, 32]),
            ({"capture_limit": 20}, [1, 2, 4, 8, 16]),
            ({"capture_limit": 0}, []),
            ({"capture_sizes": (4, 20, 64)}, [4, 20, 64]),
            ({"capture_sizes": (4, 20, 64), "capture_limit": 64}, [4, 20, 64]),
        ],
    )
    def test_the_engines_capture_sizes(self, imported: Imported, options: dict[str, Any], sizes: list[int]) -> None:
        profile = imported("vllm-forward", json.dumps(FORWARD_CASES), num_speculative_tokens=7, **options)
        assert profile.capture_sizes == sizes
        assert {sample.mode for sample in profile.samples} == {"graph"}

    def test_the_slowest_rank_counts(self, imported: Imported) -> None:
        cases = [case("decode", [request(1, 100)], [1.0, 9.0, 2.0], [3.0, 4.0, 5.0])]
        profile = imported("vllm-forward", json.dumps(cases), num_speculative_tokens=1, capture_limit=8)
        assert profile.samples[0].repetitions_ms == [0.003, 0.004, 0.005]

    def test_medians_alone_will_do(self, imported: Imported) -> None:
        cases = [{"case": "a", "requests": [request(1, 100)], "median_us": 1500.0}]
        cases.append({**cases[0], "ranks": [{"latency_us": {"median": 1600.0}}]})
        profile = imported("vllm-forward", json.dumps(cases), num_speculative_tokens=1, capture_limit=8)
        assert profile.samples[0].repetitions_ms == [1.5, 1.6]

    def test_drafting_is_the_difference_of_the_medians(self, tmp_path: Path) -> None:
        alone, with_1, with_7 = (tmp_path / name for name in ("alone.json", "with1.json", "with7.json"))
        alone.write_text(json.dumps(FORWARD_CASES))
        with_1.write_text(json.dumps([case("d", 4 * [request(1, 1025)], [2300.0, 2310.0, 2330.0])]))
        # In any order of its requests, and in runs of any name.
        with_7.write_text(json.dumps([case("d", 4 * [request(1, 1025)], [4010.0])]))
        profile, notes = import_costs(
            [alone],
            format="vllm-forward",
            options=ReadingOptions(drafters={1: with_1, 7: with_7}),
            given=Facts(capture_limit=512, draft="small"),
        )
        drafts = [sample for sample in profile.samples if sample.model == "draft"]
        assert [(sample.k, sample.num_reqs, sample.mode, len(sample.repetitions_ms)) for sample in drafts] == [
            (1, 4, "graph", 1),
            (7, 4, "graph", 1),
        ]
        assert [sample.repetitions_ms[0] for sample in drafts] == pytest.approx([0.3, 2.0])
        assert (profile.num_speculative_tokens, notes) == (7, ())
        assert profile.source == "imported: vllm bench forward, alone.json, with1.json, with7.json"
        tables = tables_from_profile(profile)
        assert tables.draft_row(4)[4] == pytest.approx((0.3 + 2.0) / 2)

    def test_steps_with_prompts(self, imported: Imported) -> None:
        mixed = [*(2 * [request(4, 1028, 3)]), request(300, 300), request(1, 1)]
        cases = [*FORWARD_CASES, case("mixed", mixed, [5000.0]), case("prompts", [request(8, 8)], [4000.0])]
        profile = imported("vllm-forward", json.dumps(cases), num_speculative_tokens=7, capture_limit=16)
        beside, alone = profile.samples[-2:]
        assert (beside.mode, beside.num_reqs, beside.num_prefilling, beside.num_prompt_tokens) == ("eager", 4, 2, 301)
        assert (beside.shape.num_drafts, beside.context_len) == (6, 1024)
        assert (alone.shape.num_verifying, alone.num_prompt_tokens, alone.context_len) == (0, 8, 0)
        assert profile.max_num_batched_tokens == 309

    def test_what_no_profile_holds_is_left_out_and_said(self, tmp_path: Path) -> None:
        odd = [
            case("hit", [request(2048, 10240)], [1.0]),
            case("chunk", [request(1, 101), request(16, 64, chunked=True)], [1.0]),
            case("uneven", [request(1, 101), request(4, 104, 3), request(64, 64)], [1.0]),
        ]
        path = tmp_path / "cases.json"
        path.write_text(json.dumps([*FORWARD_CASES, *odd]))
        profile, notes = import_costs(
            [path],
            format="vllm-forward",
            options=ReadingOptions(),
            given=Facts(num_speculative_tokens=7, capture_limit=16),
        )
        assert len(profile.samples) == 3
        assert notes == ("cases.json: cases left out, as they run parts of prompts: 3",)

    @pytest.mark.parametrize(
        ("requests", "lengths"),
        [
            ([request(2, 102, 1), request(1, 101)], "even"),  # three tokens over two requests
            ([request(8, 108, 7), request(1, 101)], "ragged"),
            ([request(1, 51), request(1, 151)], "spread"),
            ([request(1, 101), request(1, 102)], "even"),
        ],
    )
    def test_how_alike_requests_are(self, imported: Imported, requests: list[dict[str, Any]], lengths: str) -> None:
        cases = [*FORWARD_CASES, case("uneven", requests, [1.0])]
        profile = imported("vllm-forward", json.dumps(cases), num_speculative_tokens=7, capture_limit=16)
        assert profile.samples[-1].lengths == lengths

    def test_a_run_of_jittered_contexts_alone_prices_nothing(self, imported: Imported) -> None:
        cases = [case("decode", [request(1, 900), request(1, 1100)], [1.0])]
        with pytest.raises(FileError, match="contexts or queries differ") as caught:
            imported("vllm-forward", json.dumps(cases), num_speculative_tokens=7, capture_limit=16)
        assert "--kv-len-jitter 0" in caught.value.hint

    @pytest.mark.parametrize(
        ("with_drafter", "message"),
        [
            (case("verify", 4 * [request(4, 1028, 3)], [2400.0]), "took 2.4 ms with the drafter, expected more than"),
            (case("other", 3 * [request(4, 1028, 3)], [2400.0]), "the requests of case other are in no case without"),
            (case("mixed", [request(300, 300)], [2400.0]), "case mixed runs prompts"),
        ],
    )
    def test_differences_that_are_none(self, tmp_path: Path, with_drafter: dict[str, Any], message: str) -> None:
        alone, drafted = tmp_path / "alone.json", tmp_path / "drafted.json"
        alone.write_text(json.dumps(FORWARD_CASES))
        drafted.write_text(json.dumps([with_drafter]))
        with pytest.raises(FileError, match=message):
            import_costs(
                [alone],
                format="vllm-forward",
                options=ReadingOptions(drafters={7: drafted}),
                given=Facts(capture_limit=512),
            )

    def test_several_files_with_a_drafter_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="--with-drafter beside 2 files"):
            import_costs(
                ["a", "b"],
                format="vllm-forward",
                options=ReadingOptions(drafters={7: tmp_path}),
                given=Facts(capture_limit=512),
            )

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"requests": []}, r"requests is \[\], expected a list"),
            (
                {"requests": [{"query_len": 4, "kv_len": 3}]},
                r"requests\[0\]: kv_len is 3, expected a whole number",
            ),
            ({"requests": [request(4, 9, 4)]}, "num_draft_tokens is 4, expected a whole number of 0 to 3"),
            ({"ranks": [{}]}, r"ranks\[0\]: no latency_us"),
            ({"ranks": [{"latency_us": {"samples_us": []}}]}, r"samples_us is \[\], expected a list"),
            ({"ranks": [{"latency_us": {"samples_us": [1, -1]}}]}, r"samples_us\[1\] is -1, expected more than 0"),
            ({"case": None}, "no case"),
        ],
    )
    def test_mistakes_are_named(self, imported: Imported, change: dict[str, Any], message: str) -> None:
        cases = [FORWARD_CASES[0], {**FORWARD_CASES[1], **change}]
        with pytest.raises(FileError, match=rf"source0: \[1\].*{message}"):
            imported("vllm-forward", json.dumps(cases), num_speculative_tokens=7, capture_limit=16)


class TestSteps:
    @pytest.mark.parametrize("form", [json.dumps, lambda rows: "\n".join(map(json.dumps, rows))])
    def test_drafting_is_of_full_graphs_alone(self, imported: Imported, form: Callable[[Any], str]) -> None:
        profile = imported("vllm-steps", form(STEP_SAMPLES), num_speculative_tokens=7, context_len=8192)
        assert [(s.model, s.mode, s.num_reqs, s.num_tokens, s.k, s.repetitions_ms) for s in profile.samples] == [
            ("verify", "graph", 8, 8, None, [2.0, 2.1, 9.0]),
            ("draft", "graph", 8, 8, 7, [0.5, 0.5, 0.5]),
            ("verify", "graph", 64, 128, None, [4.0]),
            ("draft", "graph", 64, 128, 7, [0.75]),
            ("verify", "eager", 64, 192, None, [6.0]),
            ("verify", "eager", 64, 256, None, [8.0]),
        ]
        assert (profile.capture_sizes, profile.max_num_seqs, profile.max_num_batched_tokens) == ([8, 128], 64, 256)

    def test_prices_as_vllm_does(self, imported: Imported) -> None:
        """vLLM's table: medians, up to 128 the next captured size, above linear; the jump past the limit is real."""
        tables = tables_from_profile(
            imported("vllm-steps", json.dumps(STEP_SAMPLES), num_speculative_tokens=7, context_len=8192)
        )
        row = tables.verify_row(64, 8192)
        assert [row[size] for size in (100, 128, 129, 192, 224)] == [4.0, 4.0, 6.0, 6.0, 7.0]
        assert tables.verify_row(8, 8192)[8] == 2.1
        assert [tables.draft_row(7)[n] for n in (1, 8, 9, 64)] == [0.5, 0.5, 0.75, 0.75]

    def test_a_csv_of_them(self, imported: Imported) -> None:
        lines = ["forward_ms,drafter_ms,num_target_tokens,num_reqs,full_cudagraph", "2,0.5,8,8,True", "3,,9,8,false"]
        profile = imported("vllm-steps", "\n".join(lines), num_speculative_tokens=7, context_len=8192)
        assert [(s.model, s.mode) for s in profile.samples] == [
            ("verify", "graph"),
            ("draft", "graph"),
            ("verify", "eager"),
        ]

    @pytest.mark.parametrize("word", ["false", '"False"'])
    def test_drafting_that_is_left_out_is_said(self, tmp_path: Path, word: str) -> None:
        names = ("forward_ms", "drafter_ms", "num_target_tokens", "num_reqs", "full_cudagraph")
        rows = [("2", "0.5", "8", "8", "true"), ("3", "0.9", "9", "8", word), ("3", "", "9", "8", word)]
        (tmp_path / "csv").write_text("\n".join(",".join(row) for row in (names, *rows)))
        objects = [{name: json.loads(value or "null") for name, value in zip(names, row, strict=True)} for row in rows]
        (tmp_path / "json").write_text(json.dumps(objects))
        for path in (tmp_path / "csv", tmp_path / "json"):
            _, notes = import_costs(
                [path],
                format="vllm-steps",
                options=ReadingOptions(),
                given=Facts(num_speculative_tokens=7, context_len=8192),
            )
            assert notes == (f"{path.name}: rows whose drafting is left out, as they are not full graphs: 1",)

    def test_what_vllm_does_not_say_is_asked_for(self, imported: Imported) -> None:
        with pytest.raises(ConfigError, match="how long the contexts were"):
            imported("vllm-steps", json.dumps(STEP_SAMPLES), num_speculative_tokens=7)
        with pytest.raises(ConfigError, match="how many tokens are drafted"):
            imported("vllm-steps", json.dumps(STEP_SAMPLES), context_len=8192)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"full_cudagraph": 1}, "full_cudagraph is 1, expected true or false"),
            ({"full_cudagraph": None}, "no full_cudagraph"),
            ({"forward_ms": 0}, "forward_ms is 0, expected more than 0"),
            ({"num_target_tokens": 7}, "num_tokens: expected at least one per request"),
            ({"drafter_ms": "x"}, "drafter_ms is x"),
        ],
    )
    def test_mistakes_are_named(self, imported: Imported, change: dict[str, Any], message: str) -> None:
        rows = [STEP_SAMPLES[3], {**STEP_SAMPLES[0], **change}]
        with pytest.raises(FileError, match=rf"source0: \[1\]: {message}"):
            imported("vllm-steps", json.dumps(rows), num_speculative_tokens=7, context_len=8192)
