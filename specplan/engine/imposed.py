"""Outcomes taken from a trace in place of the models' own, so that a pair with random weights runs as a trained one."""

from __future__ import annotations

from specplan.errors import ConfigError
from specplan.files.trace import Trace

__all__ = ["ImposedOutcomes"]


class ImposedOutcomes:
    """How sure the drafter is said to be, and how much of its drafts is said to be accepted, at each output position.

    Every tensor operation still runs; only what is read from their results is replaced.
    """

    def __init__(self, trace: Trace) -> None:
        if trace.metadata.kind != "dense":
            raise ConfigError(
                f"the trace to impose is {trace.metadata.kind}, expected a dense one",
                "record one with `specplan record`",
            )
        self._first_row = trace.first_row
        self._end_row = trace.row_start[1:]
        self._accepted_len = trace.accepted_len
        self._confidence = trace.confidence
        self.num_speculative_tokens = trace.num_speculative_tokens
        self.output_len: list[int] = trace.output_len.tolist()
        self.prompt_len: list[int] = trace.prompt_len.tolist()

    def accepted(self, request: int, emitted_len: int, admitted: int) -> int:
        """Accepted of the `admitted` drafts of a step that starts after `emitted_len` output tokens."""
        return min(int(self._accepted_len[self._row(request, emitted_len)]), admitted)

    def confidence(self, request: int, emitted_len: int, k: int) -> list[float]:  # [k]
        """Of the drafts after `emitted_len` output tokens; 1.0 where the trace holds none."""
        if self._confidence is None:
            return [1.0] * k
        confidence: list[float] = self._confidence[self._row(request, emitted_len), :k].tolist()
        return confidence

    def outcome(self, request: int, emitted_len: int, k: int) -> list[float]:  # [k]
        """1.0 for each draft that will be accepted, as an oracle says."""
        accepted = int(self._accepted_len[self._row(request, emitted_len)])
        return [1.0] * min(k, accepted) + [0.0] * max(k - accepted, 0)

    def _row(self, request: int, emitted_len: int) -> int:
        """The last where an output goes on past the trace's, as a tie that moves an end of text can make it."""
        return min(int(self._first_row[request]) + emitted_len - 1, int(self._end_row[request]) - 1)
