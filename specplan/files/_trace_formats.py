"""The two encodings of a trace: Parquet, compact, and JSONL, readable. Both hold one row per (request, position)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from specplan.errors import FileError
from specplan.files import _json
from specplan.files.trace import TRACE_SCHEMA, Trace, TraceMetadata, request_begins

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DECODERS", "ENCODERS", "TraceColumns"]

_METADATA_KEY = b"specplan.trace"
_AGAIN = "write the trace again with `specplan record` or `specplan import trace`"
_INT_COLUMNS = ("request", "position", "accepted_len", "verified_len", "prompt_len", "output_len")
_COLUMNS = (
    "request",
    "position",
    "confidence",
    "accepted_len",
    "verified_len",
    "arrival_s",
    "prompt_len",
    "output_len",
)

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request: _Int32
    position: _Int32
    confidence: list[float] | None
    accepted_len: _Int32
    verified_len: _Int32
    arrival_s: float
    prompt_len: _Int32
    output_len: _Int32


_decoder = msgspec.json.Decoder(_Row)


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceColumns:
    """A trace as both files lay it out: what belongs to a request stands in each of its rows."""

    metadata: TraceMetadata
    values: dict[str, NDArray[Any]]  # [rows] each; every column but the confidences
    confidence: NDArray[np.float32] | None  # [rows, K]

    def to_trace(self) -> Trace:
        request = self.values["request"]
        begins = request_begins(request)
        first_row = np.flatnonzero(begins)[np.cumsum(begins) - 1]
        per_request = {}
        for name in ("arrival_s", "prompt_len", "output_len"):
            column = self.values[name]
            if (differs := column != column[first_row]).any():
                row = int(np.argmax(differs))
                raise FileError(
                    f"row {row}: {name} is {column[row]}, expected {column[first_row[row]]} as in its first row",
                    _AGAIN,
                )
            per_request[name] = column[begins]
        return Trace(
            metadata=self.metadata,
            request=request,
            position=self.values["position"],
            confidence=self.confidence,
            accepted_len=self.values["accepted_len"],
            verified_len=self.values["verified_len"],
            **per_request,
        )


def encode_jsonl(trace: Trace) -> bytes:
    columns = _per_row(trace)
    lists = trace.confidence.tolist() if trace.confidence is not None else [None] * len(trace.request)
    rows = zip(*(lists if name == "confidence" else columns[name].tolist() for name in _COLUMNS), strict=True)
    encode = msgspec.json.encode
    lines = [encode(trace.metadata), *(encode(dict(zip(_COLUMNS, row, strict=True))) for row in rows)]
    return b"\n".join(lines) + b"\n"


def decode_jsonl(path: str | os.PathLike[str]) -> TraceColumns:
    first, *lines = _json.read_bytes(path, TRACE_SCHEMA).rstrip(b"\n").split(b"\n")
    metadata = _json.decode(first, TraceMetadata, schema=TRACE_SCHEMA, dec_hook=None, where=f"{path}: line 1")
    rows = [_decode_row(line, f"{path}: line {number}") for number, line in enumerate(lines, start=2)]
    return TraceColumns(
        metadata=metadata,
        values={
            name: np.array([getattr(row, name) for row in rows], dtype=np.float64 if name == "arrival_s" else np.int32)
            for name in _COLUMNS
            if name != "confidence"
        },
        confidence=_stack([row.confidence for row in rows], metadata.num_speculative_tokens, path),
    )


def _decode_row(line: bytes, where: str) -> _Row:
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError as error:
        raise FileError(f"{where}: {_json.with_place(str(error), line)}", _AGAIN) from error
    except msgspec.DecodeError as error:
        raise FileError(f"{where}: {_json.malformed(line, str(error))}", _AGAIN) from error


def encode_parquet(trace: Trace) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    num_rows, k = len(trace.request), trace.num_speculative_tokens
    list_type = pa.list_(pa.float32(), k)
    confidence = (
        pa.nulls(num_rows, list_type)
        if trace.confidence is None
        else pa.FixedSizeListArray.from_arrays(pa.array(trace.confidence.ravel()), k)
    )
    columns = _per_row(trace)
    arrays = [confidence if name == "confidence" else pa.array(columns[name]) for name in _COLUMNS]
    metadata = {_METADATA_KEY: msgspec.json.encode(trace.metadata)}
    fields = [pa.field(name, array.type) for name, array in zip(_COLUMNS, arrays, strict=True)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata)),
        sink,
        compression="zstd",
        use_dictionary=list(_INT_COLUMNS),
        use_byte_stream_split=["confidence.list.element"],  # leaves the exponents side by side, which zstd packs
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_parquet(path: str | os.PathLike[str]) -> TraceColumns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = _json.read_bytes(path, TRACE_SCHEMA)
    try:
        table = pq.read_table(pa.BufferReader(data))
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # a mangled name is not UTF-8
        reason = str(error).partition("\n")[0]
        raise FileError(f"{path}: not a Parquet file: {reason}", f"give a .parquet trace, or {_AGAIN}") from error
    metadata_json = (table.schema.metadata or {}).get(_METADATA_KEY)
    if metadata_json is None:
        raise FileError(f"{path}: no {_METADATA_KEY.decode()} metadata, expected {TRACE_SCHEMA}", _AGAIN)
    metadata = _json.decode(metadata_json, TraceMetadata, schema=TRACE_SCHEMA, dec_hook=None, where=f"{path}: metadata")
    for name in _COLUMNS:
        if name not in names:
            raise FileError(f"{path}: no column {name}, expected {', '.join(_COLUMNS)}", _AGAIN)
    return TraceColumns(
        metadata=metadata,
        values={name: _column(table, name, path) for name in _COLUMNS if name != "confidence"},
        confidence=_confidence_column(table, metadata.num_speculative_tokens, path),
    )


def _per_row(trace: Trace) -> dict[str, NDArray[Any]]:
    return {
        "request": trace.request,
        "position": trace.position,
        "accepted_len": trace.accepted_len,
        "verified_len": trace.verified_len,
        "arrival_s": trace.arrival_s[trace.request],
        "prompt_len": trace.prompt_len[trace.request],
        "output_len": trace.output_len[trace.request],
    }


def _column(table: pa.Table, name: str, path: str | os.PathLike[str]) -> NDArray[Any]:  # [rows]
    import pyarrow as pa

    column, expected = table.column(name), pa.float64() if name == "arrival_s" else pa.int32()
    if column.type != expected:
        raise FileError(f"{path}: column {name}: expected {expected}, got {column.type}", _AGAIN)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise FileError(f"{path}: row {row}: {name} is null, expected {expected}", _AGAIN)
    values: NDArray[Any] = column.to_numpy()
    return values


def _confidence_column(table: pa.Table, k: int, path: str | os.PathLike[str]) -> NDArray[np.float32] | None:
    import pyarrow as pa

    column = table.column("confidence").combine_chunks()
    expected = pa.list_(pa.float32(), k)
    if column.type == expected and column.null_count == 0 and column.flatten().null_count == 0:
        confidence: NDArray[np.float32] = column.flatten().to_numpy().reshape(-1, k)
        return confidence
    is_list = pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)
    if not (is_list and pa.types.is_float32(column.type.value_type)) and not pa.types.is_null(column.type):
        raise FileError(f"{path}: column confidence: expected {expected}, got {column.type}", _AGAIN)
    return _stack(column.to_pylist(), k, path)


def _stack(
    lists: Sequence[list[float] | None], k: int, path: str | os.PathLike[str]
) -> NDArray[np.float32] | None:  # [rows, K]
    """Rows of confidences as one array; None where no row has any."""
    if all(confidence is None for confidence in lists):
        return None
    for row, confidence in enumerate(lists):
        if confidence is None or len(confidence) != k or None in confidence:
            found = "null" if confidence is None or None in confidence else f"of length {len(confidence)}"
            raise FileError(f"{path}: row {row}: confidence is {found}, expected K = {k} numbers", _AGAIN)
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused as out of [0, 1]
        return np.array(lists, dtype=np.float64).astype(np.float32)


DECODERS = {".parquet": decode_parquet, ".jsonl": decode_jsonl}
ENCODERS = {".parquet": encode_parquet, ".jsonl": encode_jsonl}
