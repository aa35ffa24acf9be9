"""What a user can get wrong: one line that says what was found, one that says what to do, and the exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from refusal import refused
from typer.testing import Result

from specplan.files import Trace

Run = Callable[..., Result]


def edited(path: Path, **fields: object) -> Path:
    content = json.loads(path.read_text()) | fields
    changed = path.with_name(f"edited-{path.name}")
    changed.write_text(json.dumps(content))
    return changed


class TestTablesFile:
    def test_missing(self, run: Run, trace_file: Path, tmp_path: Path) -> None:
        refused(run, 3, "nowhere.json", "simulate", trace_file, "--tables", tmp_path / "nowhere.json")

    def test_not_json(self, run: Run, trace_file: Path, tmp_path: Path) -> None:
        path = tmp_path / "tables.json"
        path.write_text("{'verify_ms': 1}")
        refused(run, 3, "JSON", "simulate", trace_file, "--tables", path)

    def test_another_schema(self, run: Run, trace_file: Path, tables_file: Path) -> None:
        other = edited(tables_file, schema="specplan.simulation/1")
        refused(run, 3, "specplan.simulation/1", "simulate", trace_file, "--tables", other)

    def test_a_newer_version(self, run: Run, trace_file: Path, tables_file: Path) -> None:
        newer = edited(tables_file, schema="specplan.tables/9")
        assert "upgrade" in refused(run, 3, "newer", "simulate", trace_file, "--tables", newer).lower()

    def test_nan_in_costs(self, run: Run, trace_file: Path, tables_file: Path) -> None:
        costs = json.loads(tables_file.read_text())["verify_ms"]
        costs[0][0][5] = float("nan")
        holed = edited(tables_file, verify_ms=costs)
        refused(run, 3, "$.verify_ms[0][0][5]", "simulate", trace_file, "--tables", holed)

    def test_negative_costs(self, run: Run, trace_file: Path, tables_file: Path) -> None:
        costs = json.loads(tables_file.read_text())["verify_ms"]
        costs[0][0][5] = -1.0
        refused(
            run, 3, "$.verify_ms[0][0][5]", "simulate", trace_file, "--tables", edited(tables_file, verify_ms=costs)
        )

    def test_a_profile_where_tables_belong(self, run: Run, tables_file: Path) -> None:
        refused(run, 3, "specplan.tables/1", "tables", tables_file)


class TestTrace:
    def test_missing(self, run: Run, tables_file: Path, tmp_path: Path) -> None:
        refused(run, 3, "nowhere.parquet", "simulate", tmp_path / "nowhere.parquet", "--tables", tables_file)

    def test_not_parquet(self, run: Run, tables_file: Path, tmp_path: Path) -> None:
        path = tmp_path / "trace.parquet"
        path.write_text("hello")
        refused(run, 3, "trace.parquet", "simulate", path, "--tables", tables_file)

    @pytest.mark.parametrize("wrong", ["1.2", "-0.1", "NaN"])
    def test_a_confidence_that_is_no_probability(
        self, run: Run, trace: Trace, tables_file: Path, tmp_path: Path, wrong: str
    ) -> None:
        path = tmp_path / "trace.jsonl"
        trace.write(path)
        lines = path.read_text().splitlines()
        row = json.loads(lines[18])  # the first line is the metadata: this is row 17
        row["confidence"][2] = float(wrong)
        lines[18] = json.dumps(row)
        path.write_text("\n".join(lines) + "\n")
        result = run("simulate", path, "--tables", tables_file)
        assert (result.exit_code, result.stdout) == (3, "")
        assert "17" in result.stderr or "line 19" in result.stderr

    def test_k_larger_than_the_traces(self, run: Run, trace_file: Path, tables_file: Path) -> None:
        hint = refused(run, 2, "k is 9", "simulate", trace_file, "--tables", tables_file, "-k", "9")
        assert "-k 3" in hint
        refused(run, 2, "fixed:9", "simulate", trace_file, "--tables", tables_file, "--policy", "fixed:9")


class TestOptions:
    @pytest.mark.parametrize("concurrency", ["0", "1,0", "-1", "four", "", "1,,2", "²"])
    def test_concurrency(self, run: Run, trace_file: Path, tables_file: Path, concurrency: str) -> None:
        args = ("simulate", trace_file, "--tables", tables_file, f"--concurrency={concurrency}")
        refused(run, 2, "concurrency", *args)

    def test_concurrency_past_the_tables(self, run: Run, trace_file: Path, tables_file: Path) -> None:
        refused(run, 3, "16", "simulate", trace_file, "--tables", tables_file, "--concurrency", "17")

    def test_unknown_policy(self, run: Run, trace_file: Path, tables_file: Path) -> None:
        args = ("simulate", trace_file, "--tables", tables_file, "--policy", "clever")
        hint = refused(run, 2, "'clever'", *args)
        for known in ("none", "fixed", "adaptive", "oracle"):
            assert known in hint

    @pytest.mark.parametrize(
        ("option", "value"), [("--lag", "x"), ("--calibration", "y"), ("--seed", "-1"), ("--bogus", "1")]
    )
    def test_what_the_parser_refuses(
        self, run: Run, trace_file: Path, tables_file: Path, option: str, value: str
    ) -> None:
        hint = refused(run, 2, option, "simulate", trace_file, "--tables", tables_file, option, value)
        assert "simulate --help" in hint

    @pytest.mark.parametrize("args", [("--bogus",), ("bogus",), ("bogus", "--help")])
    def test_what_no_command_is_asked(self, run: Run, args: tuple[str, ...]) -> None:
        assert "specplan --help" in refused(run, 2, "bogus", *args).replace("root", "specplan")

    @pytest.mark.parametrize("lag", ["-1", "3"])
    def test_lag(self, run: Run, trace_file: Path, tables_file: Path, lag: str) -> None:
        refused(run, 2, f"lag is {lag}", "simulate", trace_file, "--tables", tables_file, "--lag", lag)

    def test_time_budget(self, run: Run, tmp_path: Path) -> None:
        args = ("profile", "--target", "tiny", "--draft", "tiny", "--time-budget", "0", "-o", tmp_path / "p.json")
        refused(run, 2, "--time-budget", *args)


class TestPaths:
    def test_no_such_folder(self, run: Run, trace_file: Path, tables_file: Path, tmp_path: Path) -> None:
        args = ("simulate", trace_file, "--tables", tables_file, "-o", tmp_path / "no" / "result.json")
        assert "mkdir" in refused(run, 3, "No such file or directory", *args)

    def test_the_output_is_a_folder(self, run: Run, model_folder: Path, tmp_path: Path) -> None:
        args = ("profile", "--target", model_folder, "--draft", model_folder, "-o", tmp_path)
        refused(run, 3, "it is a directory", *args)

    def test_a_device_is_refused_before_the_work(self, run: Run, model_folder: Path) -> None:
        args = ("profile", "--target", model_folder, "--draft", model_folder, "-o", "/dev/null")
        refused(run, 3, "not a regular file", *args)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_an_unwritable_folder(self, run: Run, model_folder: Path, tmp_path: Path) -> None:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        args = ("profile", "--target", model_folder, "--draft", model_folder, "-o", locked / "profile.json")
        refused(run, 3, "cannot write", *args)

    def test_a_trace_of_another_suffix_is_refused_before_the_work(self, run: Run, tmp_path: Path) -> None:
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text('{"prompt": "x"}\n')
        args = ("record", "--target", "tiny", "--draft", "tiny", "--prompts", prompts, "-o", tmp_path / "trace.csv")
        refused(run, 3, ".parquet or .jsonl", *args)
        assert not (tmp_path / "trace.csv").exists()

    def test_an_output_that_is_an_input(self, run: Run, trace_file: Path, tables_file: Path) -> None:
        before = tables_file.read_bytes()
        refused(run, 2, "is also an input", "tables", tables_file, "-o", tables_file)
        refused(run, 2, "is also an input", "simulate", trace_file, "--tables", tables_file, "-o", trace_file)
        assert tables_file.read_bytes() == before

    def test_a_path_no_file_system_takes(self, run: Run, trace_file: Path, tables_file: Path, tmp_path: Path) -> None:
        loop = tmp_path / "loop"
        loop.symlink_to(loop)
        for output in (tmp_path / ("a" * 300), loop):
            refused(run, 3, "cannot write", "simulate", trace_file, "--tables", tables_file, "-o", output)

    def test_an_input_no_file_system_opens(self, run: Run, tmp_path: Path) -> None:
        loop, output = tmp_path / "loop", tmp_path / "out.json"
        loop.symlink_to(loop)
        refused(run, 3, "symbolic links", "tables", loop, "-o", output)
        refused(run, 3, "symbolic links", "import", "costs", loop, "--format", "steps", "-o", output)


class TestModels:
    def test_no_such_folder(self, run: Run, tmp_path: Path) -> None:
        args = ("profile", "--target", tmp_path / "nowhere", "--draft", "tiny", "-o", tmp_path / "p.json")
        assert "tiny" in refused(run, 3, "no model at", *args)

    def test_another_family(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
        args = ("profile", "--target", tmp_path, "--draft", "tiny", "-o", tmp_path / "p.json")
        refused(run, 2, "config.json", *args)

    def test_weights_in_another_form_are_not_none(self, run: Run, model_folder: Path, tmp_path: Path) -> None:
        (model_folder / "pytorch_model.bin").write_bytes(b"")
        args = ("profile", "--target", model_folder, "--draft", model_folder, "-o", tmp_path / "p.json")
        assert "convert" in refused(run, 3, "pytorch_model.bin", *args)

    @pytest.mark.parametrize("change", [{"rms_norm_eps": -1.0}, {"rope_theta": 0.0}, {"rope_scaling": "x"}])
    def test_configs_that_cannot_be_meant(self, run: Run, model_folder: Path, tmp_path: Path, change: object) -> None:
        config = json.loads((model_folder / "config.json").read_text())
        (model_folder / "config.json").write_text(json.dumps(config | change))
        args = ("profile", "--target", model_folder, "--draft", model_folder, "-o", tmp_path / "p.json")
        refused(run, 2, "config.json", *args)

    def test_a_model_larger_than_memory(self, run: Run, model_folder: Path, tmp_path: Path) -> None:
        config = json.loads((model_folder / "config.json").read_text()) | {"vocab_size": 10**12}
        (model_folder / "config.json").write_text(json.dumps(config))
        args = ("profile", "--target", model_folder, "--draft", model_folder, "-o", tmp_path / "p.json")
        refused(run, 5, "no memory", *args)

    def test_recording_random_weights(self, run: Run, model_folder: Path, tmp_path: Path) -> None:
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text('{"prompt": "x"}\n')
        args = ("record", "--target", model_folder, "--draft", "tiny", "--prompts", prompts, "-o", tmp_path / "t.jsonl")
        refused(run, 2, "has no weights", *args)

    def test_no_cuda_device(self, run: Run, tmp_path: Path) -> None:
        args = ("profile", "--target", "tiny", "--draft", "tiny", "--device", "cuda:99", "-o", tmp_path / "p.json")
        refused(run, 2, "cuda:99", *args)


class TestPrompts:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "holds no prompts"),
            ('{"prompt": "x"}\n{"text": "y"}\n', "line 2"),
            ('{"prompt": 3}\n', "line 1"),
            ("not json\n", "line 1"),
            ('{"prompt": ""}\n', "prompt 0 has no tokens"),
        ],
    )
    def test_lines_are_named(self, run: Run, tmp_path: Path, content: str, message: str) -> None:
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text(content)
        result = run(
            "record", "--target", "tiny", "--draft", "tiny", "--prompts", prompts, "-o", tmp_path / "trace.jsonl"
        )
        assert result.exit_code in (2, 3)
        assert message in result.stderr
        assert not (tmp_path / "trace.jsonl").exists()

    def test_missing(self, run: Run, tmp_path: Path) -> None:
        args = ("record", "--target", "tiny", "--draft", "tiny", "--prompts", tmp_path / "no.jsonl")
        refused(run, 3, "no prompts file", *args, "-o", tmp_path / "trace.jsonl")


def test_a_failed_command_leaves_the_old_file_alone(run: Run, trace_file: Path, tables_file: Path) -> None:
    before = trace_file.read_bytes()
    refused(run, 3, "", "import", "trace", tables_file, "--field", "x", "-o", trace_file)
    assert trace_file.read_bytes() == before
    assert Trace.read(trace_file).num_requests == 24


def test_costs_of_other_models_warn_and_where_strict_are_refused(
    run: Run, trace: Trace, tables_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    known = msgspec.structs.replace(trace.metadata, provenance={"target_config_sha256": "aa"})
    replace(trace, metadata=known).write(path)
    target = {"name": "other", "num_params": 1, "config_sha256": "bb", "weights": "loaded"}
    of_others = edited(tables_file, target=target)
    args = ("simulate", path, "--tables", of_others, "--policy", "fixed:1", "--concurrency", "1")
    result = run(*args)
    assert result.exit_code == 0
    warning = "the trace's target, target (config aa), is not the one whose steps are priced, other (config bb)"
    assert f"warning: {warning}" in " ".join(result.stdout.split())
    hint = refused(run, 2, warning, *args, "--strict")
    assert "profiled for the trace's pair" in hint
    assert run("simulate", path, "--tables", tables_file, *args[4:], "--strict").exit_code == 0
