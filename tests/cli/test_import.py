"""`specplan import costs`, as a user types it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from foreign_timings import FORWARD_CASES, case, request
from refusal import refused
from typer.testing import Result

from specplan.files import CostTables, Profile

Run = Callable[..., Result]
PAGE = Path(__file__).parents[2] / "docs" / "importing.md"


@pytest.fixture
def steps_file(tmp_path: Path) -> Path:
    path = tmp_path / "steps.csv"
    path.write_text("num_reqs,num_tokens,context_len,mode,ms\n1,1,64,graph,2\n4,16,64,graph,3\n4,32,64,graph,5\n")
    return path


def test_from_a_file_to_a_plan(run: Run, steps_file: Path, trace_file: Path, tmp_path: Path) -> None:
    profile, tables = tmp_path / "profile.json", tmp_path / "tables.json"
    done = run("import", "costs", steps_file, "--format", "steps", "-k", "3", "-o", profile)
    assert done.exit_code == 0, done.output
    assert run("tables", profile, "-o", tables).exit_code == 0
    assert CostTables.read(tables).source == "imported: step timings, steps.csv"
    replayed = run("simulate", trace_file, "--tables", tables, "--policy", "fixed:3", "--concurrency", "1,4")
    assert replayed.exit_code == 0, replayed.output


def test_what_a_bench_replays_unpadded_is_padded_as_the_engine_would(run: Run, tmp_path: Path) -> None:
    """5 requests with 4 drafts each are 25 tokens: vLLM runs them at 32, on the line between 20 and 512."""
    verify, profile, tables = (tmp_path / name for name in ("verify.json", "profile.json", "tables.json"))
    batches = [(1, 1), (5, 1), (6, 2), (5, 4), (128, 4)]
    cases = [
        case(f"{n}x{q}", n * [request(q, 1024 + q, q - 1)], [1000.0 * (5 + 0.02 * n * q)] * 20) for n, q in batches
    ]
    verify.write_text(json.dumps(cases))
    done = run("import", "costs", verify, "--format", "vllm-forward", "-k", "4", "-o", profile)
    assert done.exit_code == 0, done.output
    assert "capture limit 512 tokens" in done.output
    assert run("tables", profile, "-o", tables).exit_code == 0
    read = CostTables.read(tables)
    assert read.verify_row(5, 1024)[25] == pytest.approx(5 + 0.02 * 32)
    told = run("check", tables).output
    assert "no graph is of" not in told
    assert "capture sizes were not measured" not in told
    # An engine that captures 25 tokens as well.
    run(
        "import", "costs", verify, "--format", "vllm-forward", "-k", "4", "--capture-sizes", "1,8,25,512", "-o", profile
    )
    assert run("tables", profile, "-o", tables).exit_code == 0
    assert CostTables.read(tables).verify_row(5, 1024)[25] == pytest.approx(5 + 0.02 * 25)


def test_capture_sizes_that_are_none(run: Run, steps_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    import_steps = ("import", "costs", steps_file, "--format", "steps", "-k", "3", "-o", output)
    for wrong in ("8,4", "4,4"):
        refused(run, 2, "ascending and distinct", *import_steps, "--capture-sizes", wrong)
    refused(run, 2, "--capture-sizes holds 'x'", *import_steps, "--capture-sizes", "4,x")
    for wrong in (5000 * "9", "0", "1_6", str(2**20 + 1)):  # Python reads no int of more than 4300 digits
        done = run(*import_steps, "--capture-sizes", f"1,{wrong}")
        assert (done.exit_code, len(done.stderr) < 200) == (2, True)
        assert "expected whole numbers of 1 to 1048576" in done.stderr
    import_forward = (*import_steps[:4], "vllm-forward", *import_steps[5:])
    steps_file.write_text(json.dumps(FORWARD_CASES))
    limit = ("--capture-sizes", "4,64", "--capture-limit", "32")
    refused(run, 2, "--capture-limit is 32, expected the largest of --capture-sizes, 64", *import_forward, *limit)
    assert not output.exists()


def test_requests_that_tables_cover(run: Run, steps_file: Path, tmp_path: Path) -> None:
    profile, tables = tmp_path / "profile.json", tmp_path / "tables.json"
    import_steps = ("import", "costs", steps_file, "--format", "steps", "-k", "3", "-o", profile)
    assert "K = 3, up to 4 requests, capture limit" in run(*import_steps).output
    told = run(*import_steps, "--max-num-seqs", "64").output
    assert "K = 3, up to 4 requests, capture limit" in told
    assert "tables cover 4 of 64 requests: no even verify steps of more were timed" in told
    assert run("tables", profile, "-o", tables).exit_code == 0
    assert CostTables.read(tables).max_num_reqs == 4
    assert "up to 2 requests, capture limit" in run(*import_steps, "--max-num-seqs", "2").output


def test_json_is_all_there_is_on_stdout(run: Run, steps_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    done = run("import", "costs", steps_file, "--format", "steps", "-k", "3", "-o", output, "--json")
    told = json.loads(done.stdout)
    assert (told["samples"], told["digest"]) == (3, Profile.read(output).digest())


def test_nothing_is_written_for_what_is_refused(run: Run, steps_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    import_steps = ("import", "costs", steps_file, "--format", "steps", "-o", output)
    assert "--num-speculative-tokens" in refused(run, 2, "does not say how many tokens", *import_steps)
    refused(run, 2, "expected two words with =", *import_steps, "--column", "num_reqs")
    refused(run, 2, "expected two words with =", *import_steps, "--where", "=x")
    twice = ("--column", "ms=ms", "--column", "ms=us")
    refused(run, 2, "--column maps ms twice, to ms and us", *import_steps, *twice)
    refused(run, 2, "-k", *import_steps, "-k", "0")
    refused(run, 3, "No such file", "import", "costs", "nowhere", *import_steps[3:])
    assert "import costs --help" in refused(run, 2, "--format", "import", "costs", steps_file, "--format", "x")
    assert not output.exists()
    before = steps_file.read_bytes()
    refused(run, 2, "is also an input", *import_steps[:-1], steps_file, "-k", "3")
    assert steps_file.read_bytes() == before


def test_the_page_shows_what_is_printed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example of docs/importing.md: the file it shows, the command, and what that prints."""
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"```\n(\$ cat .*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert shown
    for example in shown:
        file, command, printed = re.fullmatch(r"(\$ cat .*?)\$ specplan (.*?)\n(\S.*)", example, re.DOTALL).groups()
        for name, content in re.findall(r"\$ cat (\S+)\n(.*?)(?=\$ cat|\Z)", file, flags=re.DOTALL):
            Path(name).write_text(content)
        done = run(*command.replace("\\\n", " ").split())
        assert done.output == printed, done.output


class TestCommandsForVllm:
    ARGS = ("profile", "--target", "some/model", "--draft", "other", "-k", "3", "--max-num-seqs", "4", "-o", "p.json")

    def test_are_printed_without_loading_a_model(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        done = run(*self.ARGS, "--dry-run", "--engine", "vllm")
        assert done.exit_code == 0, done.output
        assert done.output.count("vllm bench forward") == 4
        assert "--case 'verify-n4-t16-c2048=4*4@2052:3'" in done.output
        assert "specplan import costs verify.json" in done.output
        assert list(tmp_path.iterdir()) == []

    def test_as_json(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        told = json.loads(run(*self.ARGS, "--dry-run", "--engine", "vllm", "--json").stdout)
        assert [command[:3] for command in told["runs"]] == 4 * [["vllm", "bench", "forward"]]
        assert told["importing"][:3] == ["specplan", "import", "costs"]

    def test_are_not_run(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert "--dry-run" in refused(run, 2, "--engine vllm without --dry-run", *self.ARGS, "--engine", "vllm")


def test_drafters_are_given_with_their_k(run: Run, steps_file: Path, tmp_path: Path) -> None:
    import_forward = ("import", "costs", steps_file, "--format", "vllm-forward", "-o", tmp_path / "p.json")
    for wrong in ("x=a.json", "0=a.json", "a.json"):
        refused(run, 2, "--with-drafter", *import_forward, "--with-drafter", wrong)
    refused(run, 2, "each number once", *import_forward, "--with-drafter", "7=a", "--with-drafter", "7=b")
    hint = refused(run, 2, "--num-layers says nothing to the format vllm-forward", *import_forward, "--num-layers", "2")
    assert "vidur" in hint
