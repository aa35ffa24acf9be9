"""Steps laid out once and run for any batch that fits them: what an engine replays from CUDA graphs.

A graph launches the same kernels over the same memory. So tokens, lengths and places are not laid out anew for each
step, as in passes.py, but written over those of the step before, in one copy; the kernels read them when they run.
`VerifyPass` and `DraftPasses` say the same, laid out batch by batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from specplan.device import accepted_counts, accepted_prefix_mask
from specplan.device.acceptance import PADDING_TOKEN
from specplan.engine.passes import FEED_LEN
from specplan.errors import ConfigError, MeasurementError
from specplan.models import Decoder, KVCache, RaggedBatch
from specplan.models.attention import cuda_attention
from specplan.planning import Policy
from specplan.shapes import padded_size, request_grid

if TYPE_CHECKING:
    from specplan.models.split_attention import SplitAttention

__all__ = ["Capture", "Ready", "StaticDraft", "StaticSteps", "StaticVerify"]

logger = logging.getLogger(__name__)

# From what a step runs to what runs it again, on whatever its tensors hold by then.
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]

# Where an array may begin, in bytes: what Triton compiles for is the same as for tensors of their own.
ALIGNMENT = 16

Sizes = Mapping[str, tuple[int, torch.dtype]]


class Input(NamedTuple):
    """One array of a step's input: where it is written, and where it is read once uploaded."""

    host: NDArray[Any]
    resident: Tensor


class InputBlock:
    """Arrays side by side in one piece of device memory, so that one copy rewrites them all."""

    def __init__(self, groups: Sequence[Sizes], device: torch.device) -> None:
        lengths = [
            -(-size * dtype.itemsize // ALIGNMENT) * ALIGNMENT for sizes in groups for size, dtype in sizes.values()
        ]
        self._host = torch.zeros(sum(lengths), dtype=torch.uint8)
        self._resident = torch.zeros(sum(lengths), dtype=torch.uint8, device=device)
        starts = iter(np.cumsum([0, *lengths]).tolist())
        self.groups = [
            {name: self._input(next(starts), size, dtype) for name, (size, dtype) in sizes.items()} for sizes in groups
        ]

    def _input(self, start: int, size: int, dtype: torch.dtype) -> Input:
        place = slice(start, start + size * dtype.itemsize)
        return Input(self._host[place].view(dtype).numpy(), self._resident[place].view(dtype))

    def upload(self) -> None:
        """Queued on the current stream: the host does not wait, and may write again at once."""
        # A pinned copy is not handed out again before it has been read.
        host = self._host.pin_memory() if self._resident.is_cuda else self._host
        self._resident.copy_(host, non_blocking=True)


class StaticPass:
    """One pass of a decoder over as many requests and tokens as `fill` says, up to what it was made for.

    Rows of the pass past its requests bring no queries, and tokens past theirs are padding, written to the cache's
    scratch row.
    """

    def __init__(self, cache: KVCache, inputs: Mapping[str, Input], *, longest_query: int) -> None:
        self.cache = cache
        self.longest_query = longest_query
        self.num_reqs, self.num_tokens = len(inputs["used_lens"].host), len(inputs["positions"].host)
        self.inputs = {name: each.host for name, each in inputs.items()}
        # The longest query decides which kernels are launched, the numbers of requests and tokens on how large a grid.
        query_lens = [longest_query, *[0] * (self.num_reqs - 1)]
        self.batch = RaggedBatch(query_lens, [0] * self.num_reqs, cache=cache, padded_tokens=self.num_tokens)
        self.attention = cast("SplitAttention", cuda_attention(self.batch, cache))
        self.batch.positions, self.batch.kv_index = inputs["positions"].resident, inputs["kv_index"].resident
        self.attention.query_starts = inputs["query_starts"].resident
        self.attention.used_lens = inputs["used_lens"].resident
        self.attention.cache_rows = inputs["cache_rows"].resident

    @staticmethod
    def sizes(num_reqs: int, num_tokens: int) -> Sizes:
        """Of the inputs."""
        return {
            "positions": (num_tokens, torch.int64),
            "kv_index": (num_tokens, torch.int64),
            "query_starts": (num_reqs + 1, torch.int32),
            "used_lens": (num_reqs, torch.int32),
            "cache_rows": (num_reqs, torch.int32),
        }

    def fill(
        self,
        query_lens: NDArray[np.int64],  # [requests of the batch]
        context_lens: NDArray[np.int64],  # likewise, tokens in the cache before the pass
        slots: NDArray[np.int64],  # likewise, their rows of the cache
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # each [tokens of the batch]: its request, its place in the query
        """Writes down where everything of a batch is. What it does not fill, it leaves to no one.

        Raises ConfigError for what does not fit: the kernels would write it into another request's cache.
        """
        num_reqs, num_tokens, ends = len(query_lens), int(query_lens.sum()), query_lens + context_lens
        longest, furthest = query_lens.max(initial=0), ends.max(initial=0)
        fits = num_reqs <= self.num_reqs and num_tokens <= self.num_tokens and longest <= self.longest_query
        last_slot = slots.max(initial=-1)
        if not fits or furthest > self.cache.max_len or last_slot >= self.cache.num_rows:
            raise ConfigError(
                f"a batch of {num_reqs} requests, {num_tokens} tokens, queries of up to {longest}, {furthest} tokens "
                f"long and in slots up to {last_slot}, does not fit a step made for {self.num_reqs} requests, "
                f"{self.num_tokens} tokens and queries of up to {self.longest_query} in a cache of "
                f"{self.cache.num_rows} rows of {self.cache.max_len}",
                "make the step for the largest batch",
            )
        starts = query_lens.cumsum() - query_lens
        owner = np.repeat(np.arange(num_reqs), query_lens)
        offsets = np.arange(num_tokens) - starts[owner]
        positions = context_lens[owner] + offsets
        write(self.inputs["positions"], positions, rest=0)
        write(self.inputs["kv_index"], slots[owner] * self.cache.max_len + positions, rest=self.cache.scratch_index)
        write(self.inputs["query_starts"], starts, rest=num_tokens)
        write(self.inputs["used_lens"], ends, rest=0)
        write(self.inputs["cache_rows"], slots, rest=0)
        return owner, offsets


class StaticVerify:
    """A verify step over `padded_tokens` tokens, whichever requests bring them. The head runs over all of them.

    The reference is `VerifyPass`, padded to as many tokens.
    """

    def __init__(
        self, decoder: Decoder, cache: KVCache, *, num_reqs: int, padded_tokens: int, most_drafts: int
    ) -> None:
        self.decoder = decoder
        self.num_columns = 1 + most_drafts
        own: Sizes = {
            "token_ids": (padded_tokens, torch.int64),
            "said_at": (padded_tokens, torch.int64),  # where in `sampled` what follows each token goes
            "draft_index": (padded_tokens, torch.int64),  # which tokens are drafts, one after the other
            "num_drafts": (num_reqs, torch.int64),
        }
        self.block = InputBlock([own, StaticPass.sizes(num_reqs, padded_tokens)], cache.keys.device)
        own_inputs, pass_inputs = self.block.groups
        self.inputs = {name: each.host for name, each in own_inputs.items()}
        self.token_ids, self.said_at, self.draft_index, self.num_drafts = (
            own_inputs[name].resident for name in ("token_ids", "said_at", "draft_index", "num_drafts")
        )
        self.step = StaticPass(cache, pass_inputs, longest_query=min(self.num_columns, padded_tokens))
        self.num_loaded = 0
        self.load([], context_lens=[], slots=[])  # no warm-up, nor a capture, touches a request

    def load(
        self,
        tokens: Sequence[Sequence[int]],  # [requests of the batch], of each its newest token and its drafts
        *,
        context_lens: Sequence[int],
        slots: Sequence[int],
    ) -> None:
        """The batch of the next run, in place of the one before. Waits for nothing."""
        query_lens = np.array([len(row) for row in tokens], dtype=np.int64)
        owner, offsets = self.step.fill(query_lens, as_array(context_lens), as_array(slots))
        scratch = self.step.num_reqs * self.num_columns  # the first place of a row past the last request's
        write(self.inputs["token_ids"], as_array([token for row in tokens for token in row]), rest=0)
        write(self.inputs["said_at"], owner * self.num_columns + offsets, rest=scratch)
        write(self.inputs["draft_index"], np.flatnonzero(offsets), rest=0)  # past their number nothing is a draft
        write(self.inputs["num_drafts"], query_lens - 1, rest=0)
        self.num_loaded = len(tokens)
        self.block.upload()

    def run(self) -> Tensor:  # [num_reqs, 2 + most_drafts]: accepted drafts, then the target's own tokens
        hidden = self.decoder(self.token_ids, self.step.batch.positions, self.step.attention)
        greedy = self.decoder.logits(hidden).argmax(-1)
        num_rows = self.step.num_reqs + 1
        said = torch.full((num_rows * self.num_columns,), PADDING_TOKEN, dtype=greedy.dtype, device=greedy.device)
        said.scatter_(0, self.said_at, greedy)
        sampled = said.view(num_rows, self.num_columns)[:-1]
        mask = accepted_prefix_mask(self.token_ids[self.draft_index], sampled, self.num_drafts)
        return torch.cat((accepted_counts(mask, self.num_drafts).unsqueeze(1), sampled), dim=1)

    def read(self, result: Tensor) -> tuple[list[int], list[list[int]]]:  # [requests of the batch], and of each
        """Accepted drafts of each request, and the target's own token after each of its. Waits for the device."""
        rows = result[: self.num_loaded].tolist()
        return [row[0] for row in rows], [row[1:] for row in rows]


class StaticDraft:
    """The drafter's passes for one step of up to `num_reqs` requests, `k` drafts each, whichever they are.

    The reference is `DraftPasses`.
    """

    def __init__(self, decoder: Decoder, cache: KVCache, *, num_reqs: int, k: int) -> None:
        self.decoder = decoder
        self.k = k
        own: Sizes = {"feed_ids": (FEED_LEN * num_reqs, torch.int64), "last_tokens": (num_reqs, torch.int64)}
        lengths = [FEED_LEN, *[1] * (k - 1)]  # the most that a request brings to each pass
        passes = [StaticPass.sizes(num_reqs, length * num_reqs) for length in lengths]
        self.block = InputBlock([own, *passes], cache.keys.device)
        own_inputs, *pass_inputs = self.block.groups
        self.inputs = {name: each.host for name, each in own_inputs.items()}
        self.feed_ids, self.last_tokens = own_inputs["feed_ids"].resident, own_inputs["last_tokens"].resident
        self.passes = [
            StaticPass(cache, inputs, longest_query=length) for inputs, length in zip(pass_inputs, lengths, strict=True)
        ]
        self.num_loaded = 0
        self.load([], committed_lens=[], slots=[])

    def load(
        self,
        feeds: Sequence[Sequence[int]],  # [requests of the batch], the last `FEED_LEN` committed tokens of each, or all
        *,
        committed_lens: Sequence[int],
        slots: Sequence[int],
    ) -> None:
        """The batch of the next run, in place of the one before. Waits for nothing."""
        feed_lens = np.array([len(feed) for feed in feeds], dtype=np.int64)
        committed, rows, ones = as_array(committed_lens), as_array(slots), np.ones(len(feeds), dtype=np.int64)
        first, *rest = self.passes
        first.fill(feed_lens, committed - feed_lens, rows)
        for index, each in enumerate(rest):
            each.fill(ones, committed + index, rows)
        write(self.inputs["feed_ids"], as_array([token for feed in feeds for token in feed]), rest=0)
        write(self.inputs["last_tokens"], feed_lens.cumsum() - 1, rest=0)
        self.num_loaded = len(feeds)
        self.block.upload()

    def run(self) -> Tensor:  # [num_reqs, 2 k] int32: the drafts, then the bits of how sure the drafter is of each
        first = self.passes[0]
        hidden = self.decoder(self.feed_ids, first.batch.positions, first.attention)[self.last_tokens]
        drafts = self.feed_ids.new_zeros(hidden.shape[0], self.k)
        confidence = torch.zeros(drafts.shape, dtype=torch.float32, device=drafts.device)
        for index in range(self.k):
            if index:
                later = self.passes[index]
                hidden = self.decoder(drafts[:, index - 1], later.batch.positions, later.attention)
            probability = F.softmax(self.decoder.logits(hidden).float(), dim=-1)
            confidence[:, index], drafts[:, index] = probability.max(dim=-1)
        return torch.cat((drafts.int(), confidence.view(torch.int32)), dim=1)  # the host waits for one copy, not two

    def read(self, result: Tensor) -> tuple[list[list[int]], list[list[float]]]:  # both [requests of the batch, k]
        """The drafts of each request, and the drafter's probability of each. Waits for the device."""
        rows = result[: self.num_loaded].cpu().numpy()
        confidence = np.ascontiguousarray(rows[:, self.k :]).view(np.float32)
        return rows[:, : self.k].tolist(), confidence.tolist()


Step = TypeVar("Step", StaticVerify, StaticDraft)


class Ready(NamedTuple, Generic[Step]):
    """A step, and what runs it: a replay of its `run`, over what was loaded last."""

    step: Step
    replay: Callable[[], Tensor]


class StaticSteps:
    """The steps of one served case that can be replayed, all made ready at once: a capture takes many steps' time.

    Verify steps by padded tokens, up to the first that holds all requests with all their drafts; the drafter's by
    padded requests and k. One that cannot be captured is reported and missing; all others still replay.
    """

    def __init__(
        self,
        target: Decoder,
        target_cache: KVCache,
        draft: Decoder,
        draft_cache: KVCache,
        *,
        policy: Policy,
        num_speculative_tokens: int,
        concurrency: int,
        capture_sizes: Sequence[int],  # at least one, ascending
        capture: Capture,
    ) -> None:
        self.capture = capture
        self.capture_sizes, self.request_sizes = capture_sizes, request_grid(concurrency)
        most_drafts = policy.num_drafts(num_speculative_tokens)
        largest = padded_size(concurrency * (1 + most_drafts), capture_sizes)
        # The largest first: smaller ones fit in the memory that its capture took.
        self.verify_steps: dict[int, Ready[StaticVerify]] = {}
        for size in reversed([size for size in capture_sizes if size <= largest]):
            make_verify = partial(
                StaticVerify, target, target_cache, num_reqs=concurrency, padded_tokens=size, most_drafts=most_drafts
            )
            if verify := self._made_ready(f"verify steps of {size} tokens", make_verify):
                self.verify_steps[size] = verify
        self.draft_steps: dict[tuple[int, int], Ready[StaticDraft]] = {}
        if not policy.loads_drafter:
            return
        ks = range(policy.fewest_drafts(num_speculative_tokens), most_drafts + 1)
        for num_reqs, k in product(reversed(self.request_sizes), reversed(ks)):
            make_draft = partial(StaticDraft, draft, draft_cache, num_reqs=num_reqs, k=k)
            if drafting := self._made_ready(f"the drafter's steps of {num_reqs} requests and k = {k}", make_draft):
                self.draft_steps[num_reqs, k] = drafting

    def verify(self, num_tokens: int) -> Ready[StaticVerify] | None:
        """The step that holds so many tokens of decoding requests; None where none was captured."""
        return self.verify_steps.get(padded_size(num_tokens, self.capture_sizes))

    def draft(self, num_reqs: int, k: int) -> Ready[StaticDraft] | None:
        """The step that drafts k tokens for so many requests; None where none was captured."""
        return self.draft_steps.get((padded_size(num_reqs, self.request_sizes), k))

    def _made_ready(self, what: str, make: Callable[[], Step]) -> Ready[Step] | None:
        try:
            step = make()
            with torch.inference_mode():
                return Ready(step, self.capture(step.run))
        except (MeasurementError, torch.OutOfMemoryError) as error:
            logger.warning("%s run without a graph: %s", what, error)
            return None


def as_array(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def write(array: NDArray[Any], values: NDArray[np.int64], *, rest: int) -> None:
    """`values` from the start, and `rest` after them."""
    array[: len(values)] = values
    array[len(values) :] = rest
