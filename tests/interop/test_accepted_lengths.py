from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specplan.costs import build_cost_tables
from specplan.errors import ConfigError, FileError
from specplan.files import Trace, TraceMetadata
from specplan.interop import import_accepted_lengths, looks_like_steps
from specplan.simulation import simulate


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "steps.jsonl"
    path.write_text(text)
    return path


def test_steps_that_count_the_bonus_token(tmp_path: Path) -> None:
    path = write(tmp_path, '{"steps": [1, 4, 2], "prompt_len": 9}\n{"steps": [3]}\n')
    trace = import_accepted_lengths(path, field="steps", counts_bonus=True)
    assert trace.num_speculative_tokens == 3
    assert trace.request.tolist() == [0, 0, 0, 1]
    assert trace.position.tolist() == [1, 2, 3, 1]
    assert trace.accepted_len.tolist() == [0, 3, 1, 2]
    assert trace.verified_len.tolist() == [3] * 4
    assert trace.output_len.tolist() == [4, 2]
    assert trace.prompt_len.tolist() == [9, 0]
    assert trace.confidence is None
    assert trace.metadata.kind == "dense"
    trace.write(tmp_path / "trace.parquet")
    assert Trace.read(tmp_path / "trace.parquet").accepted_len.tolist() == [0, 3, 1, 2]


def test_accepted_lengths_are_cut_to_k(tmp_path: Path) -> None:
    path = write(tmp_path, '{"a": [0, 9, 2]}')
    trace = import_accepted_lengths(path, field="a", counts_bonus=False, num_speculative_tokens=4)
    assert trace.accepted_len.tolist() == [0, 4, 2]
    assert trace.verified_len.tolist() == [4, 4, 4]


def test_nothing_accepted_still_has_one_draft(tmp_path: Path) -> None:
    path = write(tmp_path, '{"a": [0, 0]}')
    assert import_accepted_lengths(path, field="a", counts_bonus=False).num_speculative_tokens == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[1, 2]", "expected a JSON object, got list"),
        ('{"b": [1]}', "no field 'a'"),
        ('{"a": 3}', "a is int, expected a list of counts"),
        ('{"a": []}', "a is an empty list"),
        ('{"a": [1, 0]}', r"a\[1\] is 0, expected an integer of 1 or more"),
        ('{"a": [1.5]}', r"a\[0\] is 1.5, expected an integer"),
        ('{"a": [true]}', r"a\[0\] is True, expected an integer"),
        ('{"a": ["1"]}', r"a\[0\] is '1', expected an integer"),
        ('{"a": [99999999999]}', r"a\[0\] is 99999999999, expected an integer"),
        ('{"a": [1], "prompt_len": -1}', "prompt_len is -1, expected an integer of 0 or more"),
        ('{"a": [1], "prompt_len": "9"}', "prompt_len is '9'"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, f'{{"a": [1]}}\n{line}\n{{"a": [2]}}\n')
    with pytest.raises(FileError, match=f"line 2: {message}") as caught:
        import_accepted_lengths(path, field="a", counts_bonus=True)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_the_lists_of_a_line_are_offered(tmp_path: Path) -> None:
    path = write(tmp_path, '{"id": 1, "eagle": [1], "ngram": [2]}')
    with pytest.raises(FileError) as caught:
        import_accepted_lengths(path, field="a", counts_bonus=True)
    assert "eagle, ngram" in caught.value.hint


def test_bad_files_and_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        import_accepted_lengths(tmp_path / "absent", field="a", counts_bonus=True)
    with pytest.raises(FileError, match="holds no lines"):
        import_accepted_lengths(write(tmp_path, "\n\n"), field="a", counts_bonus=True)
    with pytest.raises(ConfigError, match="K is 0"):
        import_accepted_lengths(write(tmp_path, '{"a": [1]}'), field="a", counts_bonus=True, num_speculative_tokens=0)


def test_golden_replay_does_not_visit_positions_evenly(shared_data: Path) -> None:
    """The mean over all rows promises 3.00 tokens a step; the walk that replay takes gets 2.75."""
    path = shared_data / "acceptance" / "llama31_8b_gsm8k_accepted.jsonl"
    trace = import_accepted_lengths(path, field="tokens_per_step_eagle3", counts_bonus=True, num_speculative_tokens=7)
    assert not looks_like_steps(trace)
    assert (trace.num_requests, len(trace.request)) == (300, 49_612)
    assert np.minimum(trace.accepted_len, 7).mean() + 1 == pytest.approx(3.00351, abs=1e-5)
    tables = build_cost_tables([(1, 1.0)], [(1, 4.0), (8, 5.0), (512, 6.0)], max_num_reqs=1, max_num_tokens=512)
    result = simulate(trace, tables=tables, policies=["fixed:7"], concurrencies=[1], num_resamples=0)
    assert result.policies[1].mean_accepted_len_plus_1 == pytest.approx(2.74981, abs=1e-5)


def test_a_log_of_steps_is_told_from_a_list_of_positions() -> None:
    rng = np.random.default_rng(0)
    # A drafter right about the next `run` tokens is right about the rest of them one position later.
    runs = [list(range(run, -1, -1)) for run in rng.integers(3, 8, 60)]
    positions = [accepted for run in runs for accepted in run]
    steps = [run[0] if index % 2 else 0 for index, run in enumerate(runs)]

    def trace_of(lengths: list[int]) -> Trace:
        rows = len(lengths)
        return Trace(
            metadata=TraceMetadata(
                kind="dense",
                sampling="greedy",
                num_speculative_tokens=7,
                target="t",
                draft="d",
                tokenizer="t",
                source="s",
            ),
            request=np.zeros(rows, dtype=np.int32),
            position=np.arange(1, rows + 1, dtype=np.int32),
            confidence=None,
            accepted_len=np.array(lengths, dtype=np.int32),
            verified_len=np.full(rows, 7, dtype=np.int32),
            arrival_s=np.zeros(1),
            prompt_len=np.ones(1, dtype=np.int32),
            output_len=np.array([rows + 1], dtype=np.int32),
        )

    assert not looks_like_steps(trace_of(positions))
    assert looks_like_steps(trace_of(steps))
