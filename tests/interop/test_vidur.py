from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from foreign_timings import OPERATOR_TIMES, operators

from specplan.costs import tables_from_profile
from specplan.errors import ConfigError, SpecplanError
from specplan.files import Profile
from specplan.interop import Facts, ReadingOptions, import_costs

Imported = Callable[..., Profile]

OPTIONS = {"num_layers": 10, "num_speculative_tokens": 7, "max_num_seqs": 4, "capture_limit": 8}


def test_operators_times_layers(imported: Imported) -> None:
    """10 layers of 0.125 + 1 + 0.25 + 2 ms and two adds of 0.0625 ms, and the embedding once."""
    profile = imported("vidur", OPERATOR_TIMES, tensor_parallel_size=1, **OPTIONS)
    assert [(s.mode, s.num_reqs, s.num_tokens, s.context_len, s.repetitions_ms) for s in profile.samples] == [
        ("graph", 4, 8, 0, [35.5]),
        ("graph", 4, 4, 0, [25.5]),
    ]
    assert profile.source == "imported: Vidur operator times x 10 layers, an approximation, source0"
    for left_out in ("attention", "lm_head", "all-reduce", "gaps"):
        assert left_out in profile.environment.timing_scope
    assert profile.environment.tensor_parallel_size == 1
    assert tables_from_profile(profile).verify_row(2, 4096)[5] == 35.5


def test_workers_are_chosen(imported: Imported) -> None:
    assert imported("vidur", OPERATOR_TIMES, tensor_parallel_size=4, **OPTIONS).samples[0].repetitions_ms == [20.5]
    with pytest.raises(ConfigError, match="holds rows of 1, 4 tensor-parallel workers, and none is chosen"):
        imported("vidur", OPERATOR_TIMES, **OPTIONS)
    with pytest.raises(ConfigError, match="--tensor-parallel-size says 2"):
        imported("vidur", OPERATOR_TIMES, tensor_parallel_size=2, **OPTIONS)
    alone = "\n".join(OPERATOR_TIMES.splitlines()[:3])
    assert imported("vidur", alone, **OPTIONS).environment.tensor_parallel_size == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("num_tokens,num_tensor_parallel_workers\n8,1\n", "no time_stats.mlp_up_proj.median"),
        (OPERATOR_TIMES.replace("num_tokens", "tokens"), "no num_tokens"),
        (OPERATOR_TIMES.replace(",8,1\n", ",0,1\n"), "num_tokens is 0"),
        (OPERATOR_TIMES.replace("99.0,2.0", "99.0,-2.0"), "time_stats.mlp_up_proj.median is -2.0, expected 0 or more"),
        (operators((8, 1, (0.0,) * 6)), "a step of 0 ms"),
    ],
)
def test_mistakes_are_named(imported: Imported, content: str, message: str) -> None:
    with pytest.raises(SpecplanError, match=message):
        imported("vidur", content, tensor_parallel_size=1, **OPTIONS)
    with pytest.raises(ConfigError, match="does not say how many"):
        imported("vidur", OPERATOR_TIMES, **{**OPTIONS, "num_layers": None})


def test_a_real_file_comes_to_the_published_curve(shared_data: Path) -> None:
    """`linear_ms` of the curve counts the same operators, without the embedding."""
    path = shared_data / "vidur_raw" / "h100_llama2_7b_mlp_tp1.csv"
    profile, _ = import_costs(
        [path],
        format="vidur",
        options=ReadingOptions(num_layers=32),
        given=Facts(num_speculative_tokens=7, max_num_seqs=32, capture_limit=512),
    )
    with path.open() as file:
        embedding_ms = {int(row["num_tokens"]): float(row["time_stats.emb.median"]) for row in csv.DictReader(file)}
    found = {s.num_tokens: s.repetitions_ms[0] - embedding_ms[s.num_tokens] for s in profile.samples}
    with (shared_data / "costs" / "vidur_llama2_verify_cost.csv").open() as file:
        curve = {
            int(row["num_tokens"]): float(row["linear_ms"])
            for row in csv.DictReader(file)
            if (row["gpu"], row["model"], row["num_requests"]) == ("H100", "Llama-2-7b-hf", "1")
        }
    assert len(curve) == 131
    assert {size: found[size] for size in curve} == pytest.approx(curve, abs=1e-9)
