"""The commands, run by a bench of the documented form and imported, come to the points that they are for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.files import Profile, Sample
from specplan.interop import Facts, ReadingOptions, import_costs
from specplan.interop.vllm_commands import BenchCommands, bench_forward_commands
from specplan.measure import ProfilePlan
from specplan.measure.grid import MeasuredPoint
from specplan.report.bench_commands import bench_script


def plan_of(**changes: Any) -> ProfilePlan:
    limits = {"max_num_seqs": 6, "num_speculative_tokens": 3, "max_num_batched_tokens": 64, "contexts": (40,)}
    return ProfilePlan(**{**limits, **changes})


def commands_of(points: Iterable[MeasuredPoint], k: int = 3) -> BenchCommands:
    return bench_forward_commands(
        points, target="a/target", draft="a draft", num_speculative_tokens=k, output="profile.json"
    )


def requests_of(text: str, k: int) -> list[dict[str, Any]]:
    """[N*]Q[@K][:D], as vLLM reads them."""
    requests = []
    for part in text.split(","):
        count, times, rest = part.rpartition("*")
        rest, _, drafts = rest.partition(":")
        query, _, keys = rest.partition("@")
        assert int(drafts or 0) <= k
        request = {"query_len": int(query), "kv_len": int(keys or query), "num_draft_tokens": int(drafts or 0)}
        requests += (int(count) if times else 1) * [request | {"chunked": False}]
    return requests


def forward_us(requests: list[dict[str, Any]]) -> float:
    return 1000.0 + sum(10 * request["query_len"] + request["kv_len"] for request in requests)


def bench(command: list[str], folder: Path) -> Path:
    """What `vllm bench forward` would do: here a step takes what a formula says, and drafting 100 us a token more."""
    values = {name: command[at + 1] for at, name in enumerate(command) if name.startswith("--") and name != "--case"}
    assert command[:3] == ["vllm", "bench", "forward"]
    assert (values["--model"], values["--kv-len-jitter"]) == ("a/target", "0")
    config = json.loads(values["--speculative-config"])
    assert config["model"] == "a draft"
    k = config["num_speculative_tokens"]
    named = [command[at + 1].partition("=") for at, name in enumerate(command) if name == "--case"]
    assert len({name for name, _, _ in named}) == len(named)
    more_us = 0.0 if "--exclude-drafter" in command else 100.0 * k
    results = []
    for name, _, text in named:
        requests = requests_of(text, k)
        latency = {"samples_us": [forward_us(requests) + more_us]}
        results.append({"case": name, "requests": requests, "ranks": [{"latency_us": latency}]})
    path = folder / values["--output-json"]
    path.write_text(json.dumps(results))
    return path


def filled(commands: BenchCommands, folder: Path) -> Profile:
    verify, *drafted = [bench(command, folder) for command in commands.runs]
    importing = commands.importing
    drafters = [importing[at + 1].split("=") for at, name in enumerate(importing) if name == "--with-drafter"]
    assert [file for _, file in drafters] == [path.name for path in drafted]
    values = dict(pairwise(importing))
    profile, notes = import_costs(
        [verify],
        format=values["--format"],
        options=ReadingOptions(drafters={int(k): folder / file for k, file in drafters} or None),
        given=Facts(
            num_speculative_tokens=int(values["-k"]),
            capture_limit=int(values["--capture-limit"]),
            draft=values["--draft"] if drafters else None,
        ),
    )
    assert notes == ()
    return profile


def key_of(timed: Sample | MeasuredPoint) -> tuple[object, ...]:
    """What a step is; its mode apart, and the tokens of drafting: the bench replays graphs, of steps of its own.

    Of a request on its own nobody can tell whether it is one of unlike ones, nor of queries that differ by a token.
    """
    shape = timed.shape
    tokens = shape.num_tokens if timed.model == "verify" else None
    is_even = shape.lengths == "even" or shape.num_verifying < 2
    return timed.model, shape.num_reqs, tokens, shape.context_len, timed.k, is_even, shape.num_prompt_tokens


def is_for_the_bench(point: MeasuredPoint, plan: ProfilePlan) -> bool:
    shape = point.shape
    if point.model == "draft":
        is_narrow = shape.num_tokens == plan.draft_point("graph", shape.num_reqs, point.k or 0).shape.num_tokens
        return point.mode == "graph" and point.k != 0 and shape.lengths == "even" and is_narrow
    fits = shape.is_mixed or -(-shape.num_tokens // shape.num_reqs) <= 1 + plan.num_speculative_tokens
    is_eager_double = point.mode == "eager" and shape.num_tokens <= plan.capture_sizes[-1] and not shape.is_mixed
    return point.model == "verify" and shape.layout == "multi-query" and fits and not is_eager_double


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_seqs": 1},
        {"num_speculative_tokens": 1, "max_num_batched_tokens": 6},
        {"max_num_seqs": 64, "num_speculative_tokens": 7, "max_num_batched_tokens": 2048}
        | {"contexts": (128, 512), "draft_context_len": 512},
        {"lengths": ("even", "spread", "ragged")},
        {"layouts": ("multi-query", "batch-expansion")},
    ],
)
def test_their_output_fills_the_points(tmp_path: Path, changes: dict[str, Any]) -> None:
    plan = plan_of(**changes)
    commands = commands_of(plan.points(), plan.num_speculative_tokens)
    wanted = [point for point in plan.points() if is_for_the_bench(point, plan)]
    assert (commands.num_filled, sum(commands.unfilled.values())) == (len(wanted), len(plan.points()) - len(wanted))
    profile = filled(commands, tmp_path)
    assert {key_of(sample) for sample in profile.samples} == {key_of(point) for point in wanted}


def test_costs_are_those_of_the_steps(tmp_path: Path) -> None:
    profile = filled(commands_of(plan_of().points()), tmp_path)
    for sample in profile.samples:
        if sample.model == "draft":
            assert sample.repetitions_ms == pytest.approx([0.1 * (sample.k or 0)])
        elif not sample.shape.is_mixed:
            keys = sample.num_reqs * sample.context_len + sample.num_tokens
            assert sample.repetitions_ms == pytest.approx([1.0 + 0.01 * sample.num_tokens + 0.001 * keys])
    assert profile.capture_sizes == [1, 2, 4, 8, 16, 24]
    assert (profile.num_speculative_tokens, profile.max_num_seqs) == (3, 6)


@given(
    max_num_seqs=st.integers(1, 40),
    k=st.integers(1, 9),
    tokens=st.integers(1, 400),
    context_len=st.integers(2, 300),
    lengths=st.sampled_from([("even",), ("even", "ragged"), ("even", "spread")]),
)
def test_of_any_plan_every_case_is_one_the_importer_knows(
    tmp_path_factory: pytest.TempPathFactory, max_num_seqs: int, k: int, tokens: int, context_len: int, lengths: Any
) -> None:
    plan = plan_of(
        max_num_seqs=max_num_seqs,
        num_speculative_tokens=k,
        max_num_batched_tokens=max_num_seqs + tokens,
        contexts=(context_len,),
        lengths=lengths,
    )
    filled(commands_of(plan.points(), k), tmp_path_factory.mktemp("bench"))


def test_a_drafter_of_requests_that_verify_nothing_has_a_case(tmp_path: Path) -> None:
    plan = plan_of()
    points = [point for point in plan.points() if point.model == "draft" or point.shape.num_reqs == 1]
    profile = filled(commands_of(points), tmp_path)
    drafted = {(sample.num_reqs, sample.k) for sample in profile.samples if sample.model == "draft"}
    assert drafted == {(n, k) for n in (1, 2, 4, 6) for k in (1, 2, 3)}


def test_the_script_is_the_commands() -> None:
    commands = commands_of(plan_of(layouts=("multi-query", "batch-expansion")).points())
    lines = list(bench_script(commands))
    script = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    assert [shlex.split(line) for line in script.splitlines()] == [*commands.runs, commands.importing]
    told = [line for line in lines if line.startswith("# not filled")]
    assert len(told) == len(commands.unfilled) >= 5
    assert lines[0].startswith(f"# 4 runs fill {commands.num_filled} of ")
