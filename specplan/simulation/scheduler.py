"""A closed loop of requests, and which tokens of which of them each step runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specplan.errors import ConfigError
from specplan.planning.prices import StepSize

__all__ = ["ClosedLoop", "RunningRequest", "ScheduledStep", "num_to_finish"]


@dataclass(slots=True, kw_only=True, eq=False)
class RunningRequest:
    """A request with a place in the loop. It verifies once its prompt is processed."""

    request: int  # its id
    prompt_len: int  # at least 1
    output_len: int
    prefilled_len: int = 0
    emitted_len: int = 0

    @property
    def is_prefilled(self) -> bool:
        return self.prefilled_len == self.prompt_len

    @property
    def is_finished(self) -> bool:
        return self.emitted_len == self.output_len

    @property
    def context_len(self) -> int:
        """Tokens in its cache: all but the newest one, which the next step brings as a query."""
        return self.prefilled_len + max(self.emitted_len - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStep:
    """The rows of one step, in the order in which their requests were admitted."""

    verifying: tuple[RunningRequest, ...]
    prefilling: tuple[tuple[RunningRequest, int], ...]  # with the prompt tokens it runs in this step
    completing: tuple[RunningRequest, ...]  # whose last prompt token runs: each emits its first output token
    size: StepSize  # before it runs


@dataclass(slots=True, kw_only=True)
class ClosedLoop:
    """`concurrency` places, taken by the requests of `order` over and over; a freed place is taken at the next step.

    Requests that verify come first, and each reserves 1 + num_drafts tokens: a scheduler hands out its tokens before
    the budget is known. What is left of `max_num_batched_tokens` goes to prefill chunks, first come first served.
    """

    prompt_len: Sequence[int]  # [num_requests]
    output_len: Sequence[int]  # [num_requests]
    order: Sequence[int]
    concurrency: int
    num_drafts: int
    max_num_batched_tokens: int
    running: list[RunningRequest] = field(default_factory=list)
    num_admitted: int = 0  # requests that have taken a place so far

    def __post_init__(self) -> None:
        reserved = self.concurrency * (1 + self.num_drafts)
        if self.concurrency < 1:
            raise ConfigError(f"concurrency is {self.concurrency}, expected 1 or more", "pass --concurrency 1 or more")
        if reserved > self.max_num_batched_tokens:
            raise ConfigError(
                f"{self.concurrency} requests with {self.num_drafts} drafts each reserve {reserved} tokens a step, "
                f"and a step holds {self.max_num_batched_tokens}",
                "lower --concurrency or -k, or profile larger steps and rebuild the tables",
            )

    def next_step(self) -> ScheduledStep:
        """Drop what has finished, refill, and schedule."""
        self.running = [request for request in self.running if not request.is_finished]
        while len(self.running) < self.concurrency:
            self.running.append(self._admit())
        verifying = tuple(request for request in self.running if request.is_prefilled)
        tokens_left = self.max_num_batched_tokens - len(verifying) * (1 + self.num_drafts)
        prefilling = []
        for request in self.running:
            chunk = min(request.prompt_len - request.prefilled_len, tokens_left)
            if chunk > 0:
                prefilling.append((request, chunk))
                tokens_left -= chunk
        completing = tuple(
            request for request, chunk in prefilling if request.prefilled_len + chunk == request.prompt_len
        )
        contexts = [request.context_len for request in verifying or [request for request, _ in prefilling]]
        return ScheduledStep(
            verifying=verifying,
            prefilling=tuple(prefilling),
            completing=completing,
            size=StepSize(
                num_reqs=len(verifying) + len(prefilling),
                num_verifying=len(verifying),
                num_sampling=len(verifying) + len(completing),
                num_prompt_tokens=sum(chunk for _, chunk in prefilling),
                context_len=sum(contexts) / len(contexts),
            ),
        )

    def _admit(self) -> RunningRequest:
        request = self.order[self.num_admitted % len(self.order)]
        self.num_admitted += 1
        prompt_len = max(self.prompt_len[request], 1)  # a step has to run something to sample the first token
        return RunningRequest(request=request, prompt_len=prompt_len, output_len=self.output_len[request])


def num_to_finish(num_requests: int, concurrency: int) -> int:
    """How many requests finish before measuring stops: max(trace, 8 x concurrency)."""
    return max(num_requests, 8 * concurrency)
