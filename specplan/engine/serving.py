"""A continuous-batching engine: small, real, and a judge of the simulator, with which it shares the rules alone.

Each step admits requests, runs prompt chunks and verifies drafts in one multi-query pass of the target over the trimmed
batch, commits what was accepted, retires requests and drafts for the next step. Greedy output; penalties and logit
processors are not supported. A rejected draft leaves keys and values past its request's length in both caches, where
the next pass writes over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from specplan.device import AdaptiveVerifier, VerifyBatch
from specplan.device.graphs import Grapher
from specplan.engine.imposed import ImposedOutcomes
from specplan.engine.passes import FEED_LEN
from specplan.engine.runner import PairRunner, Phase
from specplan.engine.static import Capture, StaticSteps
from specplan.errors import ConfigError
from specplan.models import Decoder
from specplan.planning import EmaController, Policy
from specplan.planning.prices import StepSize
from specplan.shapes import padded_size
from specplan.simulation.scheduler import ClosedLoop, RunningRequest, ScheduledStep, num_to_finish

if TYPE_CHECKING:
    from specplan.files import CostTables

__all__ = ["Engine", "EngineStep", "ServingCase"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingCase:
    """One policy at one concurrency, as a simulator would replay it."""

    policy: Policy
    num_speculative_tokens: int  # K
    concurrency: int
    max_num_batched_tokens: int
    lag: int = 1
    capture_sizes: tuple[int, ...] = ()  # steps up to the largest run padded to one of them; none: nothing pads
    tables: CostTables | None = None  # what budgets are chosen by; `adaptive` and `oracle` need them

    def __post_init__(self) -> None:
        if self.policy.has_budget and self.tables is None:
            raise ConfigError(
                f"policy {self.policy.name} chooses budgets, and no cost tables were given", "pass cost tables"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStep:
    """What one step ran and yielded. The tuples are of its verifying requests, in the order of their admission."""

    size: StepSize
    num_tokens: int  # of the trimmed batch, before padding
    executed_tokens: int  # of the target's pass, padding included
    k: int  # drafts proposed per request, for the next step
    requests: tuple[int, ...]
    emitted: tuple[int, ...]  # output tokens of each before the step
    confidence: tuple[Sequence[float], ...]  # of the drafts offered
    admitted: tuple[int, ...]
    accepted: tuple[int, ...]
    num_output_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)
class Conversation:
    """A running request's place and tokens."""

    slot: int  # its row in both caches, and in the confidence buffer
    tokens: list[int]  # prompt and output so far
    drafts: list[int] = field(default_factory=list)  # to be verified next
    confidence: list[float] = field(default_factory=list)  # of the drafts


class Engine:
    """Serves `prompts` over and over in a closed loop, until max(prompts, 8 x concurrency) of them have finished.

    With `imposed`, drafts are as sure and as often accepted as the trace says, whatever the models say.

    Up to the capture limit, steps that hold no prompt tokens are padded to a capture size, and on CUDA replayed from
    graphs, as the drafter's passes are; prompt chunks, and what is verified beside them, run eagerly and unpadded.
    """

    def __init__(
        self,
        target: Decoder,
        draft: Decoder,
        prompts: Sequence[Sequence[int]],  # token ids
        case: ServingCase,
        *,
        max_output_tokens: int,
        eos_token_ids: frozenset[int] = frozenset(),
        imposed: ImposedOutcomes | None = None,
        oracle: ImposedOutcomes | None = None,
        on_phase: Callable[[Phase], None] = lambda phase: None,
        capture: Capture | None = None,
    ) -> None:
        """`oracle`: where the policy `oracle` looks up what will be accepted; `imposed` where that is given.

        `on_phase` is told each phase of a step as it begins. `capture` takes the place of CUDA graphs, also on a CPU.
        Raises ConfigError for what cannot be served.
        """
        self.case = case
        self.prompts = prompts
        self.eos_token_ids = eos_token_ids if imposed is None else frozenset()
        self.imposed = imposed
        self.oracle = imposed or oracle
        self.on_phase = on_phase
        if case.policy.kind == "oracle" and self.oracle is None:
            raise ConfigError("policy oracle needs a trace of what will be accepted", "record one, or impose one")
        self.most_drafts = case.policy.num_drafts(case.num_speculative_tokens)
        self.ema = EmaController.at_start(self.most_drafts) if case.policy.kind == "ema" else None
        self.loop = ClosedLoop(
            prompt_len=[len(prompt) for prompt in prompts],
            output_len=[max_output_tokens] * len(prompts) if imposed is None else imposed.output_len,
            order=range(len(prompts)),
            concurrency=case.concurrency,
            num_drafts=self.most_drafts,
            max_num_batched_tokens=case.max_num_batched_tokens,
        )
        # The last pass may draft and verify past the last output.
        longest = max(
            prompt + output for prompt, output in zip(self.loop.prompt_len, self.loop.output_len, strict=True)
        )
        self.runner = PairRunner(
            target, draft, num_slots=case.concurrency, max_len=longest + self.most_drafts + 1, on_phase=on_phase
        )
        self.device = self.runner.device
        if capture is None and self.device.type == "cuda":
            capture = Grapher(self.device).capture
        if capture is not None and case.capture_sizes:
            self.runner.static = StaticSteps(
                target,
                self.runner.target_cache,
                draft,
                self.runner.draft_cache,
                policy=case.policy,
                num_speculative_tokens=case.num_speculative_tokens,
                concurrency=case.concurrency,
                capture_sizes=case.capture_sizes,
                capture=capture,
            )
        self.verifier = self._new_verifier() if case.policy.has_budget else None
        self.conversations: dict[RunningRequest, Conversation] = {}
        self.free_slots = list(range(case.concurrency))
        self.served: list[tuple[int, list[int]]] = []  # every prompt served, as often as it was, and its output

    @property
    def outputs(self) -> dict[int, list[int]]:
        """Of each prompt that has been served, the first time."""
        return dict(reversed(self.served))

    @property
    def is_done(self) -> bool:
        return len(self.served) >= num_to_finish(len(self.prompts), self.case.concurrency)

    def steps(self) -> Iterator[EngineStep]:
        """Runs the loop to its end."""
        while not self.is_done:
            yield self.step()

    @torch.inference_mode()
    def step(self) -> EngineStep:
        self.on_phase("schedule")
        step = self.loop.next_step()
        requests = [*step.verifying, *(request for request, _ in step.prefilling)]
        for request in requests:
            self._seat(request)
        self.on_phase("plan")
        batch = self._batch(step, requests)
        admitted = self._admit(batch)[: len(step.verifying)]

        self.on_phase("layout")
        # In the pass rows stand by slot, as the cache does; the step's own order is that of admission.
        kept = dict(zip(step.verifying, admitted, strict=True))
        chunks = dict(step.prefilling)
        order = sorted(requests, key=lambda request: self.conversations[request].slot)
        tokens = [self._queries(request, kept.get(request, 0), chunks.get(request, 0)) for request in order]
        num_tokens = sum(map(len, tokens))
        # A mixed step is never captured, and nothing pads.
        padded_tokens = num_tokens if chunks else padded_size(num_tokens, self.case.capture_sizes)
        accepted, sampled = self.runner.verify(
            tokens,
            context_lens=[request.context_len for request in order],
            slots=[self.conversations[request].slot for request in order],
            num_drafts=[kept.get(request, 0) for request in order] if chunks else None,
            padded_tokens=padded_tokens,
        )

        self.on_phase("commit")
        emitted = tuple(request.emitted_len for request in step.verifying)
        confidence = tuple(self.conversations[request].confidence for request in step.verifying)
        said = dict(zip(order, zip(accepted, sampled, strict=True), strict=True))
        counts = [self._accepted(request, said[request][0], kept[request]) for request in step.verifying]
        num_output_tokens = 0
        for request, count in zip(step.verifying, counts, strict=True):
            num_output_tokens += self._commit(request, said[request][1][: count + 1])
        for request, chunk in step.prefilling:
            request.prefilled_len += chunk
            if request in step.completing:
                num_output_tokens += self._commit(request, said[request][1][:1])
        if self.ema is not None:
            self.ema = self.ema.after(num_accepted=sum(counts), num_verified=sum(admitted))

        k = self._draft(step, order)
        self.on_phase("record")
        if self.verifier is not None:
            self.verifier.record_confidences(batch, self._confidences(requests, k))
        for request in self.loop.running:
            if request.is_finished:
                self._retire(request)
        return EngineStep(
            size=step.size,
            num_tokens=num_tokens,
            executed_tokens=padded_tokens,
            k=k,
            requests=tuple(request.request for request in step.verifying),
            emitted=emitted,
            confidence=confidence,
            admitted=tuple(admitted),
            accepted=tuple(counts),
            num_output_tokens=num_output_tokens,
        )

    def _seat(self, request: RunningRequest) -> None:
        """Gives a new request a slot. The lowest free one: the rows in use stay together at the cache's start."""
        if request not in self.conversations:
            slot = min(self.free_slots)
            self.free_slots.remove(slot)
            self.conversations[request] = Conversation(slot=slot, tokens=list(self.prompts[request.request]))
            if self.verifier is not None:
                self.verifier.add_request(slot)

    def _retire(self, request: RunningRequest) -> None:
        conversation = self.conversations.pop(request)
        self.free_slots.append(conversation.slot)
        self.served.append((request.request, conversation.tokens[request.prompt_len :]))

    def _batch(self, step: ScheduledStep, requests: Sequence[RunningRequest]) -> VerifyBatch:
        """The step as the verifier is told of it, in order of admission: ties between drafts are broken by it."""
        num_verifying = len(step.verifying)
        completing = set(step.completing)
        return VerifyBatch(
            slots=np.array([self.conversations[request].slot for request in requests], dtype=np.int64),
            scheduled=np.array([len(self.conversations[request].drafts) for request in requests], dtype=np.int64),
            num_non_draft_tokens=np.array(
                [1] * num_verifying + [chunk for _, chunk in step.prefilling], dtype=np.int64
            ),
            is_prefill=np.array([False] * num_verifying + [True] * len(step.prefilling)),
            is_sampling=np.array([True] * num_verifying + [request in completing for request, _ in step.prefilling]),
            context_lens=np.array([request.context_len for request in requests], dtype=np.int64),
        )

    def _admit(self, batch: VerifyBatch) -> list[int]:
        """Drafts of each row that are verified: all of them, or the best of a budget."""
        if self.verifier is None:
            scheduled: list[int] = batch.scheduled.tolist()
            return scheduled
        admitted: list[int] = self.verifier.reallocate(batch, self.verifier.choose_budget(batch)).admitted.tolist()
        return admitted

    def _queries(self, request: RunningRequest, num_drafts: int, chunk: int) -> list[int]:
        """What a request brings to the target's pass: its newest token and drafts, or a chunk of its prompt."""
        conversation = self.conversations[request]
        if chunk:
            return conversation.tokens[request.prefilled_len : request.prefilled_len + chunk]
        return [conversation.tokens[-1], *conversation.drafts[:num_drafts]]

    def _accepted(self, request: RunningRequest, counted: int, admitted: int) -> int:
        if self.imposed is None:
            return counted
        return self.imposed.accepted(request.request, request.emitted_len, admitted)

    def _commit(self, request: RunningRequest, said: list[int]) -> int:
        """Appends what is left of the output, up to its end-of-text token; how many tokens that was."""
        said = said[: request.output_len - request.emitted_len]
        ends = [place for place, token in enumerate(said) if token in self.eos_token_ids]
        if ends:
            said = said[: ends[0] + 1]
            request.output_len = request.emitted_len + len(said)
        conversation = self.conversations[request]
        conversation.tokens += said
        conversation.drafts, conversation.confidence = [], []
        request.emitted_len += len(said)
        return len(said)

    def _draft(self, step: ScheduledStep, order: Sequence[RunningRequest]) -> int:
        """Runs the drafter for the next step; the drafts proposed per request."""
        if not self.case.policy.loads_drafter:
            return 0
        k = self.most_drafts if self.ema is None else self.ema.k
        chunks = dict(step.prefilling)
        prompts = [request for request in order if request in chunks]
        if prompts:
            self._prefill_draft([(request, chunks[request]) for request in prompts])
        sampling = {*step.verifying, *step.completing}
        drafting = [request for request in order if request in sampling and not request.is_finished]
        if drafting:
            self.on_phase("layout")
            conversations = [self.conversations[request] for request in drafting]
            drafts, confidence = self.runner.propose(
                [conversation.tokens[-FEED_LEN:] for conversation in conversations],
                committed_lens=[len(conversation.tokens) for conversation in conversations],
                slots=[conversation.slot for conversation in conversations],
                k=k,
            )
            self.on_phase("record")
            for request, conversation, proposed, sure in zip(drafting, conversations, drafts, confidence, strict=True):
                conversation.drafts = proposed
                conversation.confidence = self._confidence(request, sure)
        return k

    def _prefill_draft(self, chunks: Sequence[tuple[RunningRequest, int]]) -> None:
        """The drafter's pass over the same prompt chunks, without its head."""
        self.on_phase("layout")
        conversations = [self.conversations[request] for request, _ in chunks]
        starts = [request.prefilled_len - chunk for request, chunk in chunks]
        pieces = zip(conversations, starts, chunks, strict=True)
        self.runner.prefill_draft(
            [conversation.tokens[start : start + length] for conversation, start, (_, length) in pieces],
            context_lens=starts,
            slots=[conversation.slot for conversation in conversations],
        )

    def _confidence(self, request: RunningRequest, sure: list[float]) -> list[float]:
        """How sure of its drafts a request is said to be: by the drafter, by the trace imposed, or by an oracle."""
        if self.case.policy.kind == "oracle":
            assert self.oracle is not None
            return self.oracle.outcome(request.request, request.emitted_len, len(sure))
        if self.imposed is not None:
            return self.imposed.confidence(request.request, request.emitted_len, len(sure))
        return sure

    def _confidences(self, requests: Sequence[RunningRequest], k: int) -> torch.Tensor:  # [num_reqs, k]
        """Of every row of the step; zeros where nothing was drafted."""
        rows = [self.conversations[request].confidence or [0.0] * k for request in requests]
        return torch.tensor(rows, dtype=torch.float32).reshape(len(requests), k).to(self.device)

    def _new_verifier(self) -> AdaptiveVerifier:
        return AdaptiveVerifier(
            max_num_seqs=self.case.concurrency,
            num_speculative_tokens=self.most_drafts,
            max_num_batched_tokens=self.case.max_num_batched_tokens,
            tables=self.case.tables,
            lag=0 if self.case.policy.kind == "oracle" else self.case.lag,
            device=self.device,
        )
