"""A trace: at which positions of which outputs a draft was made, how sure it was, and how much of it was accepted."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from specplan import __version__
from specplan.errors import FileError

__all__ = ["TRACE_SCHEMA", "Trace", "TraceMetadata", "request_begins", "require_trace_suffix"]

# specplan.trace/1: the first version.
TRACE_SCHEMA = "specplan.trace/1"

_HINT = "correct what the message names, or write the trace again with `specplan record` or `specplan import trace`"
_ROW_TYPES = {"request": np.int32, "position": np.int32, "accepted_len": np.int32, "verified_len": np.int32}
_REQUEST_TYPES = {"arrival_s": np.float64, "prompt_len": np.int32, "output_len": np.int32}


class TraceMetadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What recorded a trace, and from what. Figures and names only: no text, no token ids."""

    schema: str = TRACE_SCHEMA
    kind: Literal["dense", "logged"]
    sampling: Literal["greedy", "sampled"]
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=1024)]  # K
    target: str
    draft: str
    tokenizer: str
    source: str  # of the prompts
    created_by: str = f"specplan {__version__}"
    provenance: dict[str, str | int | float] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Requests in ascending order from 0, and of each the rows of its output positions, without gaps.

    A row at position p is the step taken after p output tokens. Prefill emits the first token, so replay begins at
    position 1; position 0 may be there or not. The last position is output_len - 1.
    """

    metadata: TraceMetadata
    request: NDArray[np.int32]  # [rows]
    position: NDArray[np.int32]  # [rows]
    confidence: NDArray[np.float32] | None = field(repr=False)  # [rows, K]; None: outcome-only
    accepted_len: NDArray[np.int32]  # [rows]
    verified_len: NDArray[np.int32]  # [rows]; K everywhere in a dense trace
    arrival_s: NDArray[np.float64]  # [num_requests]
    prompt_len: NDArray[np.int32]  # [num_requests]
    output_len: NDArray[np.int32]  # [num_requests]

    def __post_init__(self) -> None:
        self._check_arrays()
        self._check_rows()
        self._check_requests()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Trace:
        """The trace at `path`, .parquet or .jsonl."""
        from specplan.files import _trace_formats

        columns = _trace_formats.DECODERS[require_trace_suffix(path)](path)
        try:
            return columns.to_trace()
        except FileError as error:
            raise FileError(f"{path}: {error.message}", error.hint) from error

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write to `path`, .parquet or .jsonl; the same trace gives the same bytes."""
        from specplan.files import _trace_formats
        from specplan.files._atomic import write_atomically

        write_atomically(path, _trace_formats.ENCODERS[require_trace_suffix(path)](self))

    @property
    def num_requests(self) -> int:
        return len(self.output_len)

    @property
    def num_speculative_tokens(self) -> int:
        return self.metadata.num_speculative_tokens

    @cached_property
    def row_start(self) -> NDArray[np.int64]:  # [num_requests + 1]
        """Rows row_start[r] to row_start[r + 1] are those of request r."""
        return np.searchsorted(self.request, np.arange(self.num_requests + 1)).astype(np.int64)

    @cached_property
    def first_row(self) -> NDArray[np.int64]:  # [num_requests]
        """Where position 1 of each request is, or would be: a recorder writes position 0 too."""
        begins = self.row_start[:-1]
        return begins + 1 - self.position[begins]

    def _check_arrays(self) -> None:
        num_rows, num_requests = len(self.request), len(self.output_len)
        if num_rows == 0:
            raise FileError("the trace holds no rows, expected at least one", _HINT)
        for types, length in ((_ROW_TYPES, num_rows), (_REQUEST_TYPES, num_requests)):
            for name, dtype in types.items():
                array: NDArray[Any] = getattr(self, name)
                if array.dtype != dtype or array.shape != (length,):
                    raise FileError(
                        f"{name}: expected {np.dtype(dtype)} of shape ({length},), got {array.dtype} of {array.shape}",
                        _HINT,
                    )
        expected = (num_rows, self.num_speculative_tokens)
        if self.confidence is not None and (self.confidence.dtype != np.float32 or self.confidence.shape != expected):
            raise FileError(
                f"confidence: expected float32 of shape {expected}, "
                f"got {self.confidence.dtype} of {self.confidence.shape}",
                _HINT,
            )

    def _check_rows(self) -> None:
        k = self.num_speculative_tokens
        begins = request_begins(self.request)
        if (num_found := int(begins.sum())) != self.num_requests:
            raise FileError(f"rows of {num_found} requests, expected {self.num_requests}", _HINT)
        _refuse(
            begins & (self.position != 0) & (self.position != 1),
            lambda i: f"request {self.request[i]} begins at position {self.position[i]}, expected 0 or 1",
        )
        _refuse(
            ~begins & (np.diff(self.position, prepend=0) != 1),
            lambda i: (
                f"position {self.position[i]} follows {self.position[i - 1]}, expected {self.position[i - 1] + 1}"
            ),
        )
        ends: NDArray[np.bool_] = np.append(begins[1:], True)
        _refuse(
            ends & (self.position != self.output_len[self.request] - 1),
            lambda i: (
                f"request {self.request[i]} ends at position {self.position[i]}, "
                f"expected output_len - 1 = {self.output_len[self.request[i]] - 1}"
            ),
        )
        _refuse(
            (self.verified_len < 0) | (self.verified_len > k),
            lambda i: f"verified_len is {self.verified_len[i]}, expected 0 to K = {k}",
        )
        if self.metadata.kind == "dense":
            _refuse(
                self.verified_len != k,
                lambda i: f"verified_len is {self.verified_len[i]}, expected K = {k} everywhere in a dense trace",
            )
        _refuse(
            (self.accepted_len < 0) | (self.accepted_len > self.verified_len),
            lambda i: f"accepted_len is {self.accepted_len[i]}, expected 0 to verified_len = {self.verified_len[i]}",
        )
        if self.confidence is not None:
            rows, columns = np.nonzero(~((self.confidence >= 0) & (self.confidence <= 1)))  # NaN among them
            if rows.size:
                found = self.confidence[rows[0], columns[0]]
                raise FileError(
                    f"row {rows[0]}: confidence[{columns[0]}] is {found:.6g}, expected within [0, 1]", _HINT
                )

    def _check_requests(self) -> None:
        first_row = self.row_start
        for name, wrong, expected in (
            ("arrival_s", ~(np.isfinite(self.arrival_s) & (self.arrival_s >= 0)), "finite seconds of 0 or more"),
            ("prompt_len", self.prompt_len < 0, "0 or more"),
        ):
            if wrong.any():
                request = int(np.argmax(wrong))
                raise FileError(
                    f"row {first_row[request]}: {name} is {getattr(self, name)[request]}, expected {expected}", _HINT
                )


def request_begins(request: NDArray[np.int32]) -> NDArray[np.bool_]:  # [rows]
    """In which rows a request begins; ids that do not ascend from 0 without gaps are refused."""
    step = np.diff(request, prepend=-1)  # 0 within a request, 1 where the next begins
    wrong = (step < 0) | (step > 1)
    wrong[:1] |= request[:1] != 0
    _refuse(wrong, lambda i: f"request is {request[i]}, expected ids ascending from 0 without gaps")
    begins: NDArray[np.bool_] = step == 1
    return begins


def _refuse(wrong: NDArray[np.bool_], describe: Callable[[int], str]) -> None:
    """Name the first of the wrong rows."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise FileError(f"row {row}: {describe(row)}", _HINT)


def require_trace_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of `path`, which says how a trace is written; any other than the two known ones is refused."""
    suffix = Path(path).suffix
    if suffix not in (".parquet", ".jsonl"):
        raise FileError(
            f"{path}: a trace ends in .parquet or .jsonl, got {suffix or 'no suffix'}",
            "name the file .parquet (compact) or .jsonl (readable)",
        )
    return suffix
