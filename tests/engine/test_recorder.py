"""A dense trace against a recorder that does everything the slow way: whole texts, one position at a time, no cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specplan.engine.passes import DraftPasses, VerifyPass, prefill
from specplan.engine.recorder import record_pair
from specplan.errors import ConfigError
from specplan.models import Decoder, DecoderConfig, DenseAttention, KVCache

K, OUTPUT = 3, 12
PROMPTS = [[1, 2, 3], [4], [5] * 20, [9, 8, 7, 6, 5, 4]]


def make_decoder(hidden: int, layers: int, seed: int) -> Decoder:
    torch.manual_seed(seed)
    config = DecoderConfig(
        model_type="llama",
        vocab_size=7,  # small, so that a random draft is accepted now and then
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    decoder = Decoder(config)
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.5)  # far apart logits: no ties that rounding decides
    return decoder.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def pair() -> tuple[Decoder, Decoder]:
    return make_decoder(32, 2, seed=0), make_decoder(16, 1, seed=1)


def greedy(decoder: Decoder, text: list[int], count: int) -> tuple[list[int], list[float]]:
    text = list(text)
    confidence = []
    for _ in range(count):
        hidden = decoder(torch.tensor(text), torch.arange(len(text)), DenseAttention(1))
        probability, token = decoder.logits(hidden[-1]).softmax(-1).max(-1)
        text.append(int(token))
        confidence.append(float(probability))
    return text[-count:], confidence


def prompts() -> list[list[int]]:
    return [[token % 7 for token in prompt] for prompt in PROMPTS]


def test_records_what_the_slow_way_records(pair: tuple[Decoder, Decoder]) -> None:
    target, draft = pair
    recorded = record_pair(target, draft, prompts(), k=K, max_output_tokens=OUTPUT, eos_token_ids=frozenset())
    accepted_in_all = 0
    for prompt, request in zip(prompts(), recorded, strict=True):
        output, _ = greedy(target, prompt, OUTPUT + K)
        assert request.prompt_len == len(prompt)
        assert request.confidence.shape == (OUTPUT, K)
        for position in range(OUTPUT):
            drafts, confidence = greedy(draft, prompt + output[:position], K)
            matches = [drafted == said for drafted, said in zip(drafts, output[position:], strict=False)]
            assert request.accepted_len[position] == [*matches, False].index(False)
            np.testing.assert_allclose(request.confidence[position], confidence, atol=1e-5)
        accepted_in_all += int(request.accepted_len.sum())
    assert accepted_in_all > 0  # otherwise the comparison above would say little


def test_an_output_ends_with_its_first_end_of_text(pair: tuple[Decoder, Decoder]) -> None:
    target, draft = pair
    outputs = [greedy(target, prompt, OUTPUT)[0] for prompt in prompts()]
    end = outputs[0][4]
    recorded = record_pair(target, draft, prompts(), k=K, max_output_tokens=OUTPUT, eos_token_ids=frozenset({end}))
    for output, request in zip(outputs, recorded, strict=True):
        expected = output.index(end) + 1 if end in output else OUTPUT
        assert len(request.accepted_len) == expected
    # What is past the end changes nothing before it.
    whole = record_pair(target, draft, prompts(), k=K, max_output_tokens=OUTPUT, eos_token_ids=frozenset())
    for request, longer in zip(recorded, whole, strict=True):
        assert np.array_equal(request.accepted_len, longer.accepted_len[: len(request.accepted_len)])


def test_progress_ends_where_it_said(pair: tuple[Decoder, Decoder]) -> None:
    told: list[tuple[int, int]] = []
    record_pair(
        *pair,
        prompts(),
        k=K,
        max_output_tokens=OUTPUT,
        eos_token_ids=frozenset(),
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_prompts_without_room_or_tokens_are_refused_by_number(pair: tuple[Decoder, Decoder]) -> None:
    with pytest.raises(ConfigError, match="prompt 1 has no tokens"):
        record_pair(*pair, [[1], []], k=K, max_output_tokens=OUTPUT, eos_token_ids=frozenset())
    with pytest.raises(ConfigError, match=r"prompt 0 has 50 tokens; with 15 more .* the models' 64 positions"):
        record_pair(*pair, [[1] * 50], k=K, max_output_tokens=OUTPUT, eos_token_ids=frozenset())


def test_a_verify_pass_accepts_what_the_target_would_say(pair: tuple[Decoder, Decoder]) -> None:
    target, _ = pair
    said = [greedy(target, prompt, 4)[0] for prompt in prompts()]
    # Three right drafts, a wrong second one, a wrong first one, none at all.
    drafts = [said[0][1:4], [said[1][1], (said[1][2] + 1) % 7], [(said[2][1] + 1) % 7, said[2][2]], []]
    cache = KVCache(target.config, num_rows=4, max_len=32, device=torch.device("cpu"), dtype=torch.float32)
    first = prefill(target, cache, prompts(), chunk_tokens=21)
    assert first.tolist() == [output[0] for output in said]
    tokens = [token for output, row in zip(said, drafts, strict=True) for token in (output[0], *row)]
    verify = VerifyPass(
        target,
        cache,
        query_lens=[1 + len(row) for row in drafts],
        context_lens=[len(prompt) for prompt in prompts()],
        padded_tokens=len(tokens) + 3,
    )
    accepted, sampled = verify.run(torch.tensor([*tokens, 0, 0, 0]))
    assert accepted.tolist() == [3, 1, 0, 0]
    assert [sampled[row, count].item() for row, count in enumerate(accepted.tolist())][1:] == [
        said[1][2],
        said[2][1],
        said[3][1],
    ]


def test_feeding_the_last_two_tokens_covers_every_outcome(pair: tuple[Decoder, Decoder]) -> None:
    """Also when all drafts were accepted, the last of which never went through the drafter."""
    _, draft = pair
    cache = KVCache(draft.config, num_rows=1, max_len=32, device=torch.device("cpu"), dtype=torch.float32)
    text = [1, 2, 3]
    prefill(draft, cache, [text], chunk_tokens=32)
    for _ in range(3):
        passes = DraftPasses(draft, cache, committed_lens=[len(text)], k=K)
        drafts, _ = passes.run(torch.tensor(text[-2:]))
        assert drafts[0].tolist() == greedy(draft, text, K)[0]
        text += [*drafts[0].tolist(), 6]  # all accepted, and a bonus token


def test_upkeep_alone_drafts_nothing_and_keeps_the_cache_true(pair: tuple[Decoder, Decoder]) -> None:
    _, draft = pair
    cache = KVCache(draft.config, num_rows=1, max_len=32, device=torch.device("cpu"), dtype=torch.float32)
    text = [1, 2, 3]
    prefill(draft, cache, [text], chunk_tokens=32)
    for token in (4, 5, 6):
        text.append(token)
        drafts, confidence = DraftPasses(draft, cache, committed_lens=[len(text)], k=0).run(torch.tensor(text[-2:]))
        assert drafts.shape == confidence.shape == (1, 0)
    drafts, _ = DraftPasses(draft, cache, committed_lens=[len(text)], k=K).run(torch.tensor(text[-2:]))
    assert drafts[0].tolist() == greedy(draft, text, K)[0]
