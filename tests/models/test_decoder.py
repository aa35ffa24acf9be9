"""One decoder, three ways to run it: densely, token by token over a cache, and several queries at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specplan.errors import ConfigError, MeasurementError
from specplan.models import Decoder, DecoderConfig, DenseAttention, KVCache, RaggedBatch, cached_attention
from specplan.models.config import Llama3RopeScaling
from specplan.models.rope import rope_rotation, rotate, stretch_frequencies


def small_config(**changes: object) -> DecoderConfig:
    fields: dict[str, object] = {
        "model_type": "llama",
        "vocab_size": 61,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return DecoderConfig(**(fields | changes))


def make_decoder(config: DecoderConfig, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(config).requires_grad_(False).eval()


def dense_logits(decoder: Decoder, ids: Tensor) -> Tensor:  # [num_tokens] -> [num_tokens, vocab]
    return decoder.logits(decoder(ids, torch.arange(len(ids)), DenseAttention(1)))


def make_cache(config: DecoderConfig, num_rows: int) -> KVCache:
    return KVCache(config, num_rows=num_rows, max_len=64, device=torch.device("cpu"), dtype=torch.float32)


def run_pass(
    decoder: Decoder, cache: KVCache, texts: list[Tensor], contexts: list[int], lens: list[int], padding: int = 0
) -> list[Tensor]:  # per request [its queries, vocab]
    batch = RaggedBatch(lens, contexts, cache=cache, padded_tokens=sum(lens) + padding)
    pieces = [text[start : start + length] for text, start, length in zip(texts, contexts, lens, strict=True)]
    ids = torch.cat([*pieces, torch.full((padding,), 3)])
    logits = decoder.logits(decoder(ids, batch.positions, cached_attention(batch, cache)))
    return list(logits[: sum(lens)].split(lens))


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("tied", [True, False])
@settings(max_examples=15, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    passes=st.lists(st.lists(st.integers(1, 8), min_size=5, max_size=5), min_size=1, max_size=3),
    padding=st.integers(0, 6),
    seed=st.integers(0, 2**31),
)
def test_a_multi_query_pass_says_what_one_token_at_a_time_says(
    kv_heads: int, tied: bool, prompts: list[int], passes: list[list[int]], padding: int, seed: int
) -> None:
    config = small_config(num_key_value_heads=kv_heads, tie_word_embeddings=tied)
    decoder = make_decoder(config)
    generator = torch.Generator().manual_seed(seed)
    num_reqs = len(prompts)
    rounds = [lens[:num_reqs] for lens in passes]
    totals = [prompt + sum(lens[row] for lens in rounds) for row, prompt in enumerate(prompts)]
    texts = [torch.randint(config.vocab_size, (total,), generator=generator) for total in totals]

    single = make_cache(config, num_reqs)
    expected: list[list[Tensor]] = [[] for _ in texts]
    for position in range(max(totals)):
        # Requests that have ended repeat their last token, which changes none of their rows.
        contexts = [min(position, total - 1) for total in totals]
        for row, logits in enumerate(run_pass(decoder, single, texts, contexts, [1] * num_reqs)):
            if position < totals[row]:
                expected[row].append(logits[0])

    multi = make_cache(config, num_reqs)
    contexts = [0] * num_reqs
    for lens in [prompts, *rounds]:
        for row, logits in enumerate(run_pass(decoder, multi, texts, contexts, lens, padding)):
            one_by_one = torch.stack(expected[row][contexts[row] : contexts[row] + lens[row]])
            torch.testing.assert_close(logits, one_by_one, atol=1e-4, rtol=0)
        contexts = [start + length for start, length in zip(contexts, lens, strict=True)]


def test_the_cache_says_what_dense_attention_says() -> None:
    config = small_config()
    decoder = make_decoder(config)
    text = torch.randint(config.vocab_size, (30,))
    (cached,) = run_pass(decoder, make_cache(config, 1), [text], [0], [30])
    torch.testing.assert_close(cached, dense_logits(decoder, text), atol=1e-4, rtol=0)


def test_rolling_back_is_naming_a_shorter_context() -> None:
    config = small_config()
    decoder = make_decoder(config)
    text, wrong = torch.randint(config.vocab_size, (2, 16))
    cache = make_cache(config, 1)
    run_pass(decoder, cache, [text], [0], [6])
    run_pass(decoder, cache, [wrong], [6], [8])  # rejected drafts
    (logits,) = run_pass(decoder, cache, [text], [6], [10])
    torch.testing.assert_close(logits, dense_logits(decoder, text)[6:], atol=1e-4, rtol=0)


def test_padding_tokens_touch_no_request() -> None:
    config = small_config()
    decoder = make_decoder(config)
    cache = make_cache(config, 2)
    texts = list(torch.randint(config.vocab_size, (2, 5)))
    run_pass(decoder, cache, texts, [0, 0], [5, 5], padding=9)
    written = cache.keys.abs().sum(dim=(-1, -2))  # [layers, rows + 1, max_len]
    assert (written[:, :2, :5] > 0).all()
    assert (written[:, :2, 5:] == 0).all()
    assert (written[:, 2, 1:] == 0).all()


def test_a_pass_that_does_not_fit_is_refused() -> None:
    cache = make_cache(small_config(), 2)
    with pytest.raises(ConfigError, match="does not fit a cache of 2 rows of 64"):
        RaggedBatch([1, 1, 1], [0, 0, 0], cache=cache)
    with pytest.raises(ConfigError, match="65 tokens long"):
        RaggedBatch([5], [60], cache=cache)
    with pytest.raises(ConfigError, match="padded from 5 to 4"):
        RaggedBatch([5], [0], cache=cache, padded_tokens=4)


def test_a_cache_without_memory_for_it_is_refused() -> None:
    with pytest.raises(MeasurementError, match="no memory for the KV cache of 1000000000 requests of 64 tokens"):
        make_cache(small_config(), 10**9)


def test_rope_turns_pairs_by_position_times_frequency() -> None:
    config = small_config(rope_theta=100.0, num_attention_heads=12, num_key_value_heads=12)  # head_size 4
    rotation = rope_rotation(config, torch.device("cpu"))
    assert rotation[7].tolist() == pytest.approx([7.0, 7.0 / 10.0])
    turned = rotate(
        torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]), (rotation[None, None, 7].cos(), rotation[None, None, 7].sin())
    )
    assert turned.flatten().tolist() == pytest.approx([math.cos(7), 0, math.sin(7), 0])


def test_llama3_rope_keeps_short_waves_and_stretches_long_ones() -> None:
    scaling = Llama3RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )
    short, between, long = (2 * math.pi * turns / 8192 for turns in (40.0, 2.5, 0.5))
    stretched = stretch_frequencies(torch.tensor([short, between, long], dtype=torch.float64), scaling)
    assert stretched.tolist() == pytest.approx([short, (between / 8 + between) / 2, long / 8])


def test_tied_embeddings_are_counted_once() -> None:
    tied = make_decoder(small_config(tie_word_embeddings=True))
    untied = make_decoder(small_config(tie_word_embeddings=False))
    assert untied.num_params - tied.num_params == 61 * 48
