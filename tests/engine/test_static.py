"""Static steps against the passes laid out batch by batch, on a CPU: their kernels run in Triton's interpreter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specplan.costs import build_cost_tables
from specplan.engine import Engine, ServingCase
from specplan.engine.passes import DraftPasses, VerifyPass
from specplan.engine.recorder import decode_alone
from specplan.engine.static import Capture, StaticDraft, StaticSteps, StaticVerify
from specplan.errors import ConfigError, MeasurementError
from specplan.models import Decoder, DecoderConfig, KVCache
from specplan.planning import parse_policy

pytest.importorskip("triton")
# Where there is a GPU, kernels are compiled for it, and tests/gpu runs them.
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")

SLOTS = 5
MAX_LEN = 24
VOCAB = 5  # so few that a random draft is often right


def make_decoder(seed: int = 0, *, vocab_size: int = VOCAB, num_layers: int = 2) -> Decoder:
    config = DecoderConfig(
        model_type="llama",
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=96,
    )
    torch.manual_seed(seed)
    decoder = Decoder(config)
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.4)
    return decoder.requires_grad_(False).eval()


def two_caches(decoder: Decoder) -> tuple[KVCache, KVCache]:
    """Alike, and full of what other requests may have left there."""
    caches = [
        KVCache(decoder.config, num_rows=SLOTS, max_len=MAX_LEN, device=torch.device("cpu"), dtype=torch.float32)
        for _ in range(2)
    ]
    caches[0].keys.normal_()
    caches[0].values.normal_()
    caches[1].keys.copy_(caches[0].keys)
    caches[1].values.copy_(caches[0].values)
    return caches[0], caches[1]


def assert_alike(got: KVCache, expected: KVCache) -> None:
    """Everywhere but in the scratch row."""
    torch.testing.assert_close(got.keys[:, :-1], expected.keys[:, :-1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.values[:, :-1], expected.values[:, :-1], atol=1e-5, rtol=1e-5)


def random_slots(rng: np.random.Generator, most: int) -> list[int]:
    """From one request to `most`, in whichever slots, by slot."""
    return sorted(rng.choice(SLOTS, size=rng.integers(1, most, endpoint=True), replace=False).tolist())


@pytest.mark.parametrize("padded_tokens", [4, 9, 20])
@torch.inference_mode()
def test_a_verify_step_says_what_the_pass_says(padded_tokens: int) -> None:
    """Load after load: larger ones and smaller ones, in these slots and in those."""
    decoder, most_drafts, rng = make_decoder(), 3, np.random.default_rng(padded_tokens)
    cache, expected_cache = two_caches(decoder)
    step = StaticVerify(decoder, cache, num_reqs=SLOTS, padded_tokens=padded_tokens, most_drafts=most_drafts)
    num_accepted, sizes = 0, set()
    for _ in range(12):
        slots = random_slots(rng, min(SLOTS, padded_tokens))
        lengths = rng.integers(1, 1 + most_drafts, len(slots), endpoint=True)
        while lengths.sum() > padded_tokens:
            lengths[lengths.argmax()] -= 1
        contexts = [int(rng.integers(0, MAX_LEN - length, endpoint=True)) for length in lengths]
        tokens = [rng.integers(0, VOCAB, length).tolist() for length in lengths]
        step.load(tokens, context_lens=contexts, slots=slots)
        accepted, sampled = step.read(step.run())

        reference = VerifyPass(decoder, expected_cache, query_lens=lengths.tolist(), context_lens=contexts, rows=slots)
        counts, said = reference.run(torch.tensor([token for row in tokens for token in row]))
        assert accepted == counts.tolist()
        nothing = [-1] * (most_drafts - reference.most_drafts)
        assert sampled == [row + nothing for row in said.tolist()]
        assert_alike(cache, expected_cache)
        num_accepted += sum(accepted)
        sizes.add((len(slots), int(lengths.sum())))
    assert num_accepted > 0
    assert len(sizes) > 3


@pytest.mark.parametrize("k", [0, 1, 3])
@torch.inference_mode()
def test_the_drafters_step_says_what_its_passes_say(k: int) -> None:
    decoder, num_reqs, rng = make_decoder(), 4, np.random.default_rng(k)
    cache, expected_cache = two_caches(decoder)
    step = StaticDraft(decoder, cache, num_reqs=num_reqs, k=k)
    for _ in range(8):
        slots = random_slots(rng, num_reqs)
        committed = rng.integers(1, MAX_LEN - k, len(slots), endpoint=True).tolist()  # 1: a single token to feed
        feeds = [rng.integers(0, VOCAB, min(2, length)).tolist() for length in committed]
        step.load(feeds, committed_lens=committed, slots=slots)
        drafts, confidence = step.read(step.run())

        reference = DraftPasses(decoder, expected_cache, committed_lens=committed, rows=slots, k=k)
        expected = reference.run(torch.tensor([token for feed in feeds for token in feed]))
        assert drafts == expected[0].tolist()
        torch.testing.assert_close(torch.tensor(confidence), expected[1], atol=1e-5, rtol=0)
        assert_alike(cache, expected_cache)


@torch.inference_mode()
def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    decoder = make_decoder()
    cache, expected_cache = two_caches(decoder)
    step = StaticVerify(decoder, cache, num_reqs=2, padded_tokens=6, most_drafts=3)
    for tokens, contexts, slots in (
        ([[1]] * 3, [0, 0, 0], [0, 1, 2]),
        ([[1] * 4, [1] * 3], [0, 0], [0, 1]),
        ([[1] * 5], [0], [0]),
        ([[1, 2]], [MAX_LEN - 1], [0]),
        ([[1]], [0], [SLOTS]),
    ):
        with pytest.raises(ConfigError, match="does not fit a step made for 2 requests, 6 tokens"):
            step.load(tokens, context_lens=contexts, slots=slots)
    step.run()
    assert_alike(cache, expected_cache)


class Captures:
    """Runs steps as they are, as a CPU can, and counts; what `refuse` names cannot be captured."""

    def __init__(self, refuse: Callable[[Any], Exception | None] = lambda step: None) -> None:
        self.refuse = refuse
        self.order: list[tuple[int, ...]] = []  # padded tokens; or padded requests and k
        self.num_replays = {"verify": 0, "draft": 0}

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        step: Any = run.__self__  # type: ignore[attr-defined]
        if error := self.refuse(step):
            raise error
        is_verify = isinstance(step, StaticVerify)
        self.order.append((len(step.token_ids),) if is_verify else (len(step.last_tokens), step.k))

        def replay() -> Tensor:
            self.num_replays["verify" if is_verify else "draft"] += 1
            return run()

        return replay


def make_steps(capture: Capture, policy: str, *, concurrency: int = 3, k: int = 4) -> StaticSteps:
    decoder = make_decoder()
    cache, draft_cache = two_caches(decoder)
    return StaticSteps(
        decoder,
        cache,
        decoder,
        draft_cache,
        policy=parse_policy(policy),
        num_speculative_tokens=k,
        concurrency=concurrency,
        capture_sizes=(1, 4, 8, 12, 24, 48),
        capture=capture,
    )


def test_what_can_run_is_captured_the_largest_first() -> None:
    captures = Captures()
    make_steps(captures, "fixed:2")
    assert captures.order == [(12,), (8,), (4,), (1,), (3, 2), (2, 2), (1, 2)]
    captures = Captures()
    steps = make_steps(captures, "ema", concurrency=1)  # between max(1, K // 4) and K drafts
    assert captures.order == [(8,), (4,), (1,), (1, 4), (1, 3), (1, 2), (1, 1)]
    captures = Captures()
    without_drafter = make_steps(captures, "none")
    assert captures.order == [(4,), (1,)]

    held = steps.verify(5)
    assert held is not None
    assert len(held.step.token_ids) == 8
    assert steps.verify(9) is None
    assert steps.draft(1, 3) is not None
    assert steps.draft(1, 0) is None
    assert without_drafter.draft(1, 0) is None


def test_what_cannot_be_captured_is_reported_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(step: Any) -> Exception | None:
        if isinstance(step, StaticDraft):
            return torch.OutOfMemoryError("no room") if len(step.last_tokens) == 2 else None
        return MeasurementError("capture failed", "") if len(step.token_ids) == 8 else None

    with caplog.at_level(logging.WARNING):
        steps = make_steps(Captures(refuse), "fixed:2")
    assert [record.getMessage() for record in caplog.records] == [
        "verify steps of 8 tokens run without a graph: capture failed",
        "the drafter's steps of 2 requests and k = 2 run without a graph: no room",
    ]
    assert sorted(steps.verify_steps) == [1, 4, 12]
    assert steps.verify(7) is None
    assert sorted(steps.draft_steps) == [(1, 2), (3, 2)]


PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5], [3, 5, 8, 9, 7, 9, 3]]
OUTPUT = 15
TABLES = build_cost_tables(
    [(1, 0.2), (3, 0.3)],
    [(1, 1.0), (4, 1.1), (8, 1.6), (12, 3.0), (32, 9.0)],
    max_num_reqs=3,
    max_num_tokens=32,
    capture_limit=12,
)


def serve(policy: str, capture: Capture | None, *, num_steps: int) -> tuple[Engine, list[Any], list[list[int]]]:
    """A target of more tokens than ten, a drafter that is nearly the target, and what the target says alone."""
    target, draft = (make_decoder(3, vocab_size=31, num_layers=1) for _ in range(2))
    for parameter in draft.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.03)
    parsed = parse_policy(policy)
    case = ServingCase(
        policy=parsed,
        num_speculative_tokens=2,
        concurrency=3,
        max_num_batched_tokens=32,
        capture_sizes=(1, 2, 4, 8, 12),
        tables=TABLES if parsed.has_budget else None,
    )
    engine = Engine(target, draft, PROMPTS, case, max_output_tokens=OUTPUT, capture=capture)
    steps = [engine.step() for _ in range(num_steps)]
    return engine, steps, decode_alone(target, PROMPTS, OUTPUT)


def check_outputs(outputs: dict[int, list[int]], alone: Sequence[Sequence[int]]) -> None:
    assert len(outputs) == len(PROMPTS)
    assert outputs == dict(enumerate(map(list, alone)))


@pytest.mark.parametrize("policy", ["none", "fixed:2", "adaptive"])
def test_an_engine_of_static_steps_says_what_the_target_says_alone(policy: str) -> None:
    num_steps = 33 if policy == "none" else 28
    captures = Captures()
    engine, steps, alone = serve(policy, captures, num_steps=num_steps)
    check_outputs(engine.outputs, alone)
    decoding = [step for step in steps if not step.size.num_prompt_tokens]
    assert len(decoding) > num_steps // 2
    assert captures.num_replays == {"verify": len(decoding), "draft": 0 if policy == "none" else num_steps}
    assert {step.executed_tokens for step in decoding} <= {1, 2, 4, 8, 12}
    if policy != "none":
        assert sum(sum(step.accepted) for step in steps) > 0


def test_sizes_without_a_graph_run_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(step: Any) -> Exception | None:
        return MeasurementError("capture failed", "") if isinstance(step, StaticVerify) else None

    captures = Captures(refuse)
    with caplog.at_level(logging.WARNING):
        engine, _, alone = serve("fixed:2", captures, num_steps=28)
    assert captures.num_replays == {"verify": 0, "draft": 28}
    assert len(caplog.records) == 5
    check_outputs(engine.outputs, alone)


def test_a_cpu_captures_nothing_unless_told_to() -> None:
    engine, _, _ = serve("fixed:2", None, num_steps=1)
    assert engine.runner.static is None
