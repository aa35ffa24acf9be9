from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import FileError
from specplan.files.trace import Trace, TraceMetadata

SUFFIXES = (".parquet", ".jsonl")
ARRAYS = (
    "request", "position", "confidence", "accepted_len", "verified_len",
    "arrival_s", "prompt_len", "output_len", "row_start",
)  # fmt: skip


def make_trace(
    output_lens: tuple[int, ...] = (3, 1, 4),
    *,
    k: int = 2,
    starts_at: int = 0,
    outcome_only: bool = False,
    seed: int = 0,
) -> Trace:
    rng = np.random.default_rng(seed)
    positions = [np.arange(starts_at, output_len) for output_len in output_lens]
    num_rows = sum(map(len, positions))
    return Trace(
        metadata=TraceMetadata(
            kind="dense",
            sampling="greedy",
            num_speculative_tokens=k,
            target="tiny",
            draft="tiny",
            tokenizer="tiny",
            source="made up",
            provenance={"licence": "none", "requests": len(output_lens), "share": 0.5},
        ),
        request=np.repeat(np.arange(len(output_lens)), [len(p) for p in positions]).astype(np.int32),
        position=np.concatenate(positions).astype(np.int32),
        confidence=None if outcome_only else rng.random((num_rows, k), dtype=np.float32),
        accepted_len=rng.integers(0, k + 1, num_rows).astype(np.int32),
        verified_len=np.full(num_rows, k, dtype=np.int32),
        arrival_s=rng.random(len(output_lens)),
        prompt_len=rng.integers(0, 9, len(output_lens)).astype(np.int32),
        output_len=np.array(output_lens, dtype=np.int32),
    )


def assert_same(found: Trace, expected: Trace) -> None:
    assert found.metadata == expected.metadata
    for name in ARRAYS:
        a, b = getattr(found, name), getattr(expected, name)
        assert (a is None and b is None) or (a.dtype == b.dtype and np.array_equal(a, b)), name


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("outcome_only", [False, True])
@given(
    output_lens=st.lists(st.integers(2, 6), min_size=1, max_size=4).map(tuple),
    k=st.integers(1, 4),
    starts_at=st.integers(0, 1),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    suffix: str,
    outcome_only: bool,
    output_lens: tuple[int, ...],
    k: int,
    starts_at: int,
    seed: int,
) -> None:
    path = tmp_path_factory.mktemp("trace") / f"a{suffix}"
    trace = make_trace(output_lens, k=k, starts_at=starts_at, outcome_only=outcome_only, seed=seed)
    trace.write(path)
    assert_same(Trace.read(path), trace)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_trace_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    make_trace().write(first)
    Trace.read(first).write(second)
    assert first.read_bytes() == second.read_bytes()


def test_rows_of_a_request() -> None:
    trace = make_trace((3, 1, 4))
    assert trace.num_requests == 3
    assert trace.row_start.tolist() == [0, 3, 4, 8]


def test_parquet_layout_is_the_documented_one(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    make_trace(k=2).write(path)
    schema = pq.read_schema(path)
    assert schema.names == list(ARRAYS[:-1])
    assert schema.field("confidence").type == pa.list_(pa.float32(), 2)
    assert {schema.field(name).type for name in schema.names} - {schema.field("confidence").type} == {
        pa.int32(),
        pa.float64(),
    }
    assert json.loads(schema.metadata[b"specplan.trace"])["schema"] == "specplan.trace/1"


def test_lists_of_any_length_type_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    trace = make_trace()
    trace.write(path)
    rewrite(
        path, lambda table: set_column(table, "confidence", pa.array(trace.confidence.tolist(), pa.list_(pa.float32())))
    )
    assert_same(Trace.read(path), trace)


Change = Callable[[dict[str, Any]], Any]


def change(**values: Any) -> Change:
    return lambda row: row.update(values)


def change_confidence(index: int, value: object) -> Change:
    return lambda row: row["confidence"].__setitem__(index, value)


# make_trace() has rows (request, position): 0 (0,0) 1 (0,1) 2 (0,2) 3 (1,0) 4 (2,0) 5 (2,1) 6 (2,2) 7 (2,3)
BAD_ROWS: list[tuple[int, Change, str]] = [
    (6, change_confidence(1, 1.2), "row 6: confidence[1] is 1.2, expected within [0, 1]"),
    (2, change_confidence(0, -0.5), "row 2: confidence[0] is -0.5, expected within [0, 1]"),
    (2, change(accepted_len=3), "row 2: accepted_len is 3, expected 0 to verified_len = 2"),
    (2, change(accepted_len=-1), "row 2: accepted_len is -1, expected 0 to verified_len = 2"),
    (5, change(verified_len=3), "row 5: verified_len is 3, expected 0 to K = 2"),
    (5, change(verified_len=1, accepted_len=0), "row 5: verified_len is 1, expected K = 2 everywhere in a dense trace"),
    (1, change(position=2), "row 1: position 2 follows 0, expected 1"),
    (4, change(position=2), "row 4: request 2 begins at position 2, expected 0 or 1"),
    (3, change(request=2), "row 3: request is 2, expected ids ascending from 0 without gaps"),
    (0, change(request=-1), "row 0: request is -1, expected ids ascending from 0 without gaps"),
    (4, change(request=0), "row 4: request is 0, expected ids ascending from 0 without gaps"),
    (5, change(prompt_len=77), "row 5: prompt_len is 77, expected 5 as in its first row"),
    (6, change(confidence=[0.5]), "row 6: confidence is of length 1, expected K = 2 numbers"),
    (6, change(confidence=None), "row 6: confidence is null, expected K = 2 numbers"),
]  # fmt: skip


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("row", "spoil", "message"), BAD_ROWS, ids=[message for *_, message in BAD_ROWS])
def test_bad_rows_are_named(tmp_path: Path, suffix: str, row: int, spoil: Change, message: str) -> None:
    path = tmp_path / f"bad{suffix}"
    trace = make_trace()
    trace = replace(trace, prompt_len=np.array([3, 4, 5], dtype=np.int32))
    trace.write(path)
    spoil_rows(path, {row: spoil})
    with pytest.raises(FileError) as caught:
        Trace.read(path)
    assert caught.value.message == f"{path}: {message}"
    assert caught.value.hint


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"output_len": 5}, "row 7: request 2 ends at position 3, expected output_len - 1 = 4"),
        ({"output_len": 3}, "row 7: request 2 ends at position 3, expected output_len - 1 = 2"),
        ({"prompt_len": -1}, "row 4: prompt_len is -1, expected 0 or more"),
        ({"arrival_s": -0.5}, "row 4: arrival_s is -0.5, expected finite seconds of 0 or more"),
    ],
)
def test_bad_requests_are_named(tmp_path: Path, suffix: str, values: dict[str, Any], message: str) -> None:
    path = tmp_path / f"bad{suffix}"
    make_trace().write(path)
    spoil_rows(path, {row: change(**values) for row in range(4, 8)})
    with pytest.raises(FileError) as caught:
        Trace.read(path)
    assert caught.value.message == f"{path}: {message}"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_parquet_confidences_that_are_no_numbers_are_named(tmp_path: Path, value: float) -> None:
    path = tmp_path / "bad.parquet"
    make_trace().write(path)
    spoil_rows(path, {5: change_confidence(0, value)})
    with pytest.raises(FileError, match=rf"row 5: confidence\[0\] is {value}, expected within \[0, 1\]"):
        Trace.read(path)


def test_jsonl_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    make_trace().write(path)
    lines = path.read_text().split("\n")
    for line, expected in (
        (lines[3].replace('"position":2', '"position":"2"'), "line 4: $.position: expected int"),
        (lines[3].replace('"position":2', '"position":NaN'), "line 4: "),
        (lines[3].replace('"position":2,', ""), "line 4: "),
        ("{", "line 4: not JSON"),
        ("", "line 4: not JSON"),
    ):
        path.write_text("\n".join([*lines[:3], line, *lines[4:]]))
        with pytest.raises(FileError) as caught:
            Trace.read(path)
        assert caught.value.message.startswith(f"{path}: {expected}"), caught.value.message
        assert "\n" not in caught.value.message


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("schema", "message"),
    [("specplan.trace/2", "newer"), ("specplan.profile/1", "expected specplan.trace/1"), (None, "no schema")],
)
def test_other_schemas_are_refused(tmp_path: Path, suffix: str, schema: str | None, message: str) -> None:
    path = tmp_path / f"a{suffix}"
    make_trace().write(path)
    spoil_metadata(path, schema=schema)
    with pytest.raises(FileError, match=message):
        Trace.read(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("values", [{"kind": "sparse"}, {"num_speculative_tokens": 0}, {"targte": "x"}])
def test_malformed_metadata_is_refused(tmp_path: Path, suffix: str, values: dict[str, Any]) -> None:
    path = tmp_path / f"a{suffix}"
    make_trace().write(path)
    spoil_metadata(path, **values)
    with pytest.raises(FileError, match=r"line 1: |metadata: "):
        Trace.read(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_file_is_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(FileError, match="no such file"):
        Trace.read(tmp_path / f"a{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("data", [b"", b"PAR1 not really", b"\xff\xfe"])
def test_another_format_is_refused(tmp_path: Path, suffix: str, data: bytes) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data)
    with pytest.raises(FileError) as caught:
        Trace.read(path)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_trace_without_rows_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    make_trace().write(path)
    if suffix == ".jsonl":
        path.write_text(path.read_text().split("\n")[0] + "\n")
    else:
        rewrite(path, lambda table: table.slice(0, 0))
    with pytest.raises(FileError, match="holds no rows"):
        Trace.read(path)


def test_a_parquet_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(FileError, match=r"no specplan\.trace metadata"):
        Trace.read(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda table: table.drop_columns(["accepted_len"]), "no column accepted_len"),
        (lambda table: table.drop_columns(["confidence"]), "no column confidence"),
        (
            lambda table: set_column(table, "position", table["position"].cast(pa.int64())),
            "column position: expected int32, got int64",
        ),
        (
            lambda table: set_column(table, "prompt_len", pa.nulls(8, pa.int32())),
            "row 0: prompt_len is null, expected int32",
        ),
        (
            lambda table: set_column(table, "confidence", pa.array(["x"] * 8)),
            "column confidence: expected fixed_size_list<item: float>[2], got string",
        ),
    ],
)
def test_wrong_columns_are_named(tmp_path: Path, spoil: Callable[[pa.Table], pa.Table], message: str) -> None:
    path = tmp_path / "a.parquet"
    make_trace().write(path)
    rewrite(path, spoil)
    with pytest.raises(FileError) as caught:
        Trace.read(path)
    assert message in caught.value.message


@pytest.mark.parametrize("name", ["trace.csv", "trace", "trace.parquet.gz"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    for use in (Trace.read, make_trace().write):
        with pytest.raises(FileError, match=r"\.parquet or \.jsonl"):
            use(tmp_path / name)


def test_arrays_of_another_type_are_refused() -> None:
    with pytest.raises(FileError, match="position: expected int32 of shape"):
        replace(make_trace(), position=np.zeros(8, dtype=np.int64))
    with pytest.raises(FileError, match="confidence: expected float32 of shape"):
        replace(make_trace(), confidence=np.zeros((8, 3), dtype=np.float32))


def test_requests_without_rows_are_refused() -> None:
    trace = make_trace((3,))
    with pytest.raises(FileError, match="rows of 1 requests, expected 2"):
        replace(
            trace,
            arrival_s=np.zeros(2),
            prompt_len=np.ones(2, dtype=np.int32),
            output_len=np.array([3, 1], dtype=np.int32),
        )


def test_a_logged_trace_may_have_verified_less() -> None:
    trace = make_trace()
    metadata = msgspec.structs.replace(trace.metadata, kind="logged")
    zeros = np.zeros(8, dtype=np.int32)
    assert replace(trace, metadata=metadata, verified_len=zeros, accepted_len=zeros).metadata.kind == "logged"


def test_nothing_is_left_of_a_write_that_fails(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write"):
        make_trace().write(tmp_path / "absent" / "a.parquet")
    assert list(tmp_path.iterdir()) == []


def spoil_rows(path: Path, changes: dict[int, Change]) -> None:
    """Rewrite a written trace with some of its rows changed, by hands that check nothing."""
    if path.suffix == ".jsonl":
        first, *lines = path.read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        for row, spoil in changes.items():
            spoil(rows[row])
        path.write_text("\n".join([first, *map(json.dumps, rows)]) + "\n")
        return
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row, spoil in changes.items():
        spoil(rows[row])
    fields = [
        pa.field("confidence", pa.list_(pa.float32())) if field.name == "confidence" else field
        for field in table.schema
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(fields, metadata=table.schema.metadata)), path)


def spoil_metadata(path: Path, **values: Any) -> None:
    def spoiled(text: str | bytes) -> str:
        metadata = json.loads(text) | values
        return json.dumps({key: value for key, value in metadata.items() if value is not None})

    if path.suffix == ".jsonl":
        first, rest = path.read_text().split("\n", 1)
        path.write_text(spoiled(first) + "\n" + rest)
    else:
        rewrite(path, lambda table: table.replace_schema_metadata(
            {b"specplan.trace": spoiled(table.schema.metadata[b"specplan.trace"])}
        ))  # fmt: skip


def rewrite(path: Path, alter: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(alter(pq.read_table(path)), path)


def set_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)
