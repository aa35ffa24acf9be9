"""The profile: what steps cost on one device, as raw samples. Facts, not judgements."""

from __future__ import annotations

import hashlib
import os
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from specplan.files._json import encode, read_json, write_json
from specplan.shapes import Layout, Lengths, StepShape

__all__ = [
    "PROFILE_SCHEMA",
    "Environment",
    "Failure",
    "Machinery",
    "ModelInfo",
    "Profile",
    "Reading",
    "Sample",
    "Sentinel",
]

# History of the schema:
#   1  first version
PROFILE_SCHEMA: Final = "specplan.profile/1"

# Bounds far beyond any step, so that a mangled file is refused before it is taken for a size of memory.
Count = Annotated[int, Meta(ge=1, le=2**20)]
CountOrZero = Annotated[int, Meta(ge=0, le=2**31)]
Drafts = Annotated[int, Meta(ge=0, le=2**12)]
Milliseconds = Annotated[float, Meta(ge=1e-6, le=1e9)]
# What was timed: a pass of a model, or what the host does around the passes of a step.
Machinery = Literal["metadata", "bare-metadata", "budget", "admission"]
Timed = Literal["draft", "verify", "head", "draft-prefill", "host"] | Machinery


class Sample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every repetition of one step shape, the warm-ups apart.

    `num_reqs` and `num_tokens` are what was asked for, `executed_*` what ran after padding. `repetitions_ms` prices the
    step; `device_ms` is the device's own interval of each repetition, empty where the host is the device. `model` is

    * "verify": a pass of the target; `k` is null.
    * "head": the end of a verify pass (logits, greedy tokens, mask) over `num_tokens` tokens that are judged; no price
      of its own, but a part of the pass's; `k` is null.
    * "draft": drafting `k` tokens per request; k = 0 is the upkeep of the drafter's state where nothing is drafted. Its
      first pass took `feed_len` tokens of each request, null where nobody knows.
    * "draft-prefill": a pass of the drafter, without its head, over `num_tokens` prompt tokens; `k` is null.
    * "host": what an engine step of `num_reqs` requests and `num_tokens` tokens spends outside its passes (scheduling,
      budget, admission, laying out the batch, committing), one repetition a step. `k` is the drafts per request that
      the step proposes, 0 without a drafter.
    * "metadata", "budget", "admission": what of that can be timed alone, on a step of `num_reqs` requests with K drafts
      each: laying out a verify pass (positions, lengths, cache rows) and its upload, choosing a budget, and admitting
      drafts to it; "bare-metadata" is the layout of a pass without drafts. `k` is null.

    Of these, verify passes and drafts alone are captured; the others' mode is eager, and nothing is padded. `layout` is
    how a pass attends: with a row for each request (multi-query), or in a verify pass with one for each query
    (batch-expansion). `context_len` is the mean over the requests, and `lengths` how alike they are.

    A verify pass of a mixed step has `num_prefilling` of its requests in prefill, which bring `num_prompt_tokens` of
    its tokens and attend to nothing before these; `context_len` is that of the other requests, of as many drafts each,
    or 0 where there is none. It is never captured either.

    `num_drifting` of the repetitions are from times when the machine drifted, see `Profile.sentinels`.
    """

    model: Timed
    mode: Literal["graph", "eager"]
    layout: Layout
    num_reqs: Count
    num_tokens: Count
    executed_num_reqs: Count
    executed_num_tokens: Count
    k: Drafts | None
    context_len: CountOrZero
    warmup_ms: list[Milliseconds]
    repetitions_ms: Annotated[list[Milliseconds], Meta(min_length=1)]
    device_ms: list[Milliseconds] = []
    stop_reason: Literal["converged", "cap", "time-budget", "interrupted", "imported"]
    lengths: Lengths = "even"
    num_prefilling: CountOrZero = 0
    num_prompt_tokens: CountOrZero = 0
    num_drifting: CountOrZero = 0
    feed_len: Count | None = None

    @property
    def host_bound_fraction(self) -> float | None:
        """The share of the median step in which the device waits for the host; null where that is not known.

        1 - median(device_ms / repetitions_ms), and 0 where the device's own interval is the price.
        """
        if not self.device_ms:
            return None
        busy = sorted(device / wall for device, wall in zip(self.device_ms, self.repetitions_ms, strict=True))
        return max(0.0, 1.0 - (busy[len(busy) // 2] + busy[(len(busy) - 1) // 2]) / 2)

    @property
    def shape(self) -> StepShape:
        """What was asked for."""
        return StepShape(
            num_reqs=self.num_reqs,
            num_tokens=self.num_tokens,
            context_len=self.context_len,
            layout=self.layout,
            lengths=self.lengths,
            num_prefilling=self.num_prefilling,
            num_prompt_tokens=self.num_prompt_tokens,
        )

    def __post_init__(self) -> None:
        drafts = self.model in ("draft", "host")
        if not drafts and self.k is not None:
            raise ValueError(f".k: expected null for a {self.model} sample, got {self.k}")
        if drafts and self.k is None:
            raise ValueError(f".k: expected drafts per request for a {self.model} sample, got null")
        if self.model != "draft" and self.feed_len is not None:
            raise ValueError(f".feed_len: expected null for a {self.model} sample, got {self.feed_len}")
        if self.model != "verify" and self.layout != "multi-query":
            raise ValueError(f".layout: expected multi-query for a {self.model} sample, got {self.layout}")
        if self.model != "draft" and self.num_tokens < self.num_reqs:
            raise ValueError(f".num_tokens: expected at least one per request ({self.num_reqs}), got {self.num_tokens}")
        self._check_prompts()
        captures = self.model in ("draft", "verify") and not self.num_prompt_tokens
        if not captures and self.mode != "eager":
            what = "mixed verify" if self.num_prompt_tokens else self.model
            raise ValueError(f".mode: expected eager for a {what} sample, got {self.mode}")
        if self.model == "host" and self.device_ms:
            raise ValueError(f".device_ms: expected none for a host sample, got {len(self.device_ms)}")
        if self.device_ms and len(self.device_ms) != len(self.repetitions_ms):
            raise ValueError(
                f".device_ms: expected none, or one for each of {len(self.repetitions_ms)} repetitions, "
                f"got {len(self.device_ms)}"
            )
        for name in ("num_reqs", "num_tokens"):
            asked, executed = getattr(self, name), getattr(self, f"executed_{name}")
            if executed < asked:
                raise ValueError(f".executed_{name}: expected at least the {asked} asked for, got {executed}")
            if not captures and executed > asked:
                raise ValueError(f".executed_{name}: expected the {asked} asked for, as nothing pads, got {executed}")

    def _check_prompts(self) -> None:
        prefilling, prompt_tokens = self.num_prefilling, self.num_prompt_tokens
        if not prefilling and not prompt_tokens:
            return
        if self.model != "verify":
            raise ValueError(f".num_prompt_tokens: expected 0 for a {self.model} sample, got {prompt_tokens}")
        if not 1 <= prefilling <= min(prompt_tokens, self.num_reqs):
            raise ValueError(
                f".num_prefilling: expected 1 to the {min(prompt_tokens, self.num_reqs)} that {self.num_reqs} requests "
                f"and {prompt_tokens} prompt tokens can be, got {prefilling}"
            )
        verifying = self.num_reqs - prefilling
        drafts = self.num_tokens - prompt_tokens - verifying
        if drafts < 0 or (drafts % verifying if verifying else drafts):
            raise ValueError(
                f".num_tokens: expected {prompt_tokens} prompt tokens and as many for each of {verifying} verifying "
                f"requests, got {self.num_tokens}"
            )


class Failure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step shape that was asked for and could not run, and why."""

    model: Timed
    mode: Literal["graph", "eager"]
    layout: Layout
    num_reqs: Count
    num_tokens: Count
    k: Drafts | None
    context_len: CountOrZero
    lengths: Lengths = "even"
    num_prefilling: CountOrZero = 0
    num_prompt_tokens: CountOrZero = 0
    message: str


class Environment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the samples were taken, and how. What nobody knows, as of samples from elsewhere, is null.

    `graph_kind` says what mode `graph` is: replay of a captured CUDA graph, or on a CPU a `static`-buffer step padded
    to the capture size. `timing_scope` says what lies between start and stop of the clock.
    """

    device: str | None
    device_type: Literal["cpu", "cuda"] | None
    device_uuid: str | None
    sm_count: Count | None
    num_threads: Count | None
    driver: str | None
    cuda: str | None
    torch: str | None
    python: str | None
    platform: str | None
    dtype: str | None
    graph_kind: Literal["cuda-graph", "static"] | None
    timing_scope: str
    tensor_parallel_size: Count | None = None


class Reading(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the device was like at a moment of the sweep. Null is unknown, never "fine".

    `throttle` names why clocks are lower than they could be; `other_processes` are those on the GPU. `others_share`, of
    a CPU, is the share of all cores' time since the reading before that went to other processes, or to the host of a
    virtual machine.
    """

    at_s: Annotated[float, Meta(ge=0)]  # since the sweep began
    sm_clock_mhz: CountOrZero | None = None
    max_sm_clock_mhz: CountOrZero | None = None
    power_w: Annotated[float, Meta(ge=0)] | None = None
    temperature_c: int | None = None
    throttle: list[str] | None = None
    other_processes: CountOrZero | None = None
    others_share: Annotated[float, Meta(ge=0, le=1)] | None = None


class Sentinel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A verify step, replayed, that was timed again and again between blocks of points: medians, and when."""

    num_reqs: Count
    num_tokens: Count
    at_s: Annotated[list[Annotated[float, Meta(ge=0)]], Meta(min_length=1)]  # since the sweep began
    median_ms: Annotated[list[Milliseconds], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if len(self.at_s) != len(self.median_ms):
            raise ValueError(f".median_ms: expected one for each of {len(self.at_s)} times, got {len(self.median_ms)}")


class ModelInfo(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ran; null where nobody knows. `random` weights cost what trained ones do, and draft nothing of worth."""

    name: str
    num_params: Annotated[int, Meta(ge=0)] | None
    config_sha256: str | None
    weights: Literal["loaded", "random"] | None = "loaded"


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Samples of one target, and of one draft where there is one, on one device.

    `created` is ISO 8601 in UTC; `source` is "measured" or where the samples came from; `complete` is False where a
    point of the sweep has no sample, or the user stopped it. `capture_sizes` are the engine's: a verify pass of another
    size runs padded to the next, though it may have been timed as it is. `verification` prices nothing: what a new
    process measured afterwards, some of it again and some between what `samples` hold, so that tables can say how far
    they are off.
    """

    schema: Literal["specplan.profile/1"] = PROFILE_SCHEMA
    specplan_version: str
    created: str
    source: str
    environment: Environment
    target: ModelInfo
    draft: ModelInfo | None
    num_speculative_tokens: Drafts
    max_num_seqs: Count
    max_num_batched_tokens: Count
    capture_sizes: list[Count]
    complete: bool
    samples: list[Sample]
    failures: list[Failure] = []
    readings: list[Reading] = []
    sentinels: list[Sentinel] = []
    verification: list[Sample] = []

    def __post_init__(self) -> None:
        for index, (size, following) in enumerate(zip(self.capture_sizes, self.capture_sizes[1:], strict=False), 1):
            if following <= size:
                raise ValueError(f".capture_sizes[{index}]: expected more than {size} (ascending), got {following}")
        for index, sample in enumerate(self.samples):
            if sample.k is not None and sample.k > self.num_speculative_tokens:
                raise ValueError(
                    f".samples[{index}].k: expected at most num_speculative_tokens ({self.num_speculative_tokens}), "
                    f"got {sample.k}"
                )

    @property
    def is_measured(self) -> bool:
        """By a sweep of specplan's own, and not by another tool."""
        return self.source == "measured"

    @property
    def capture_limit(self) -> int:
        """The largest capture size, in tokens; 0 where nothing was captured."""
        return self.capture_sizes[-1] if self.capture_sizes else 0

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Profile:
        return read_json(path, cls, schema=PROFILE_SCHEMA)

    def write(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self, schema=PROFILE_SCHEMA)

    def digest(self) -> str:
        """sha256 of the bytes that `write` writes."""
        return hashlib.sha256(encode(self)).hexdigest()
