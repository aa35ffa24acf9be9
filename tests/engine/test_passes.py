"""A verify pass in both layouts: the same logits, and the same tokens accepted and sampled."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specplan.engine import VerifyPass
from specplan.models import Decoder, DecoderConfig, KVCache
from specplan.shapes import Layout

MAX_LEN = 96


def make_decoder(dtype: torch.dtype) -> Decoder:
    """Of so few tokens that drafts made up at random are accepted now and then."""
    torch.manual_seed(0)
    config = DecoderConfig(
        model_type="llama",
        vocab_size=3,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LEN,
    )
    return Decoder(config).requires_grad_(False).eval().to(dtype)


DECODERS = {dtype: make_decoder(dtype) for dtype in (torch.float32, torch.float64)}


def run_pass(
    layout: Layout,
    dtype: torch.dtype,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    num_drafts: Sequence[int],
    rows: Sequence[int],
    padding: int,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor, KVCache]:
    """Logits of all tokens, accepted counts, sampled tokens, and the cache afterwards."""
    decoder = DECODERS[dtype]
    cache = KVCache(decoder.config, num_rows=rows[-1] + 2, max_len=MAX_LEN, device=torch.device("cpu"), dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    for cached in (cache.keys, cache.values):
        cached.copy_(torch.randn(cached.shape, generator=generator))
    verify = VerifyPass(
        decoder,
        cache,
        query_lens=query_lens,
        context_lens=context_lens,
        num_drafts=num_drafts,
        rows=rows,
        padded_tokens=sum(query_lens) + padding,
        layout=layout,
    )
    ids = torch.randint(decoder.config.vocab_size, (verify.executed_num_tokens,), generator=generator)
    hidden = verify.forward(ids)
    return decoder.logits(hidden[: sum(query_lens)]), *verify.judge(hidden, ids), cache


def check(
    query_lens: Sequence[int], context_lens: Sequence[int], num_drafts: Sequence[int], rows: Sequence[int], padding: int
) -> Tensor:
    batch = (query_lens, context_lens, num_drafts, rows, padding)
    logits, _, _, cache = run_pass("multi-query", torch.float32, *batch)
    expanded, _, _, expanded_cache = run_pass("batch-expansion", torch.float32, *batch)
    torch.testing.assert_close(expanded, logits, atol=1e-4, rtol=0)
    for written, wanted in ((expanded_cache.keys, cache.keys), (expanded_cache.values, cache.values)):
        torch.testing.assert_close(written[:, :-1], wanted[:, :-1], atol=1e-4, rtol=0)  # all but the scratch row
    # In float32 a tie may fall either way; in float64 there is none.
    _, accepted, sampled, _ = run_pass("multi-query", torch.float64, *batch)
    _, expanded_accepted, expanded_sampled, _ = run_pass("batch-expansion", torch.float64, *batch)
    assert torch.equal(expanded_accepted, accepted)
    assert torch.equal(expanded_sampled, sampled)
    return accepted


@pytest.mark.parametrize(
    ("query_lens", "context_lens", "num_drafts", "rows", "padding"),
    [
        ([1], [0], [0], [0], 0),
        ([4, 1, 8], [60, 0, 13], [3, 0, 7], [0, 1, 2], 3),
        ([4, 1, 8], [60, 0, 13], [3, 0, 7], [1, 2, 15], 3),  # gaps between rows
        ([4, 50, 1, 20], [60, 0, 13, 40], [3, 0, 0, 0], [0, 1, 2, 3], 5),  # chunks of prompts among verifying requests
    ],
)
def test_both_layouts_say_the_same(
    query_lens: list[int], context_lens: list[int], num_drafts: list[int], rows: list[int], padding: int
) -> None:
    check(query_lens, context_lens, num_drafts, rows, padding)


@given(
    requests=st.dictionaries(
        st.integers(0, 12),
        st.tuples(st.integers(0, 7), st.integers(0, 40), st.none() | st.integers(2, 40)),
        min_size=1,
        max_size=5,
    ),  # by cache row: drafts, context, the chunk of a prompt where it is one
    padding=st.integers(0, 5),
)
def test_both_layouts_say_the_same_of_any_batch(requests: dict[int, tuple[int, int, int | None]], padding: int) -> None:
    rows = sorted(requests)
    drafts = [0 if requests[row][2] else requests[row][0] for row in rows]
    query_lens = [requests[row][2] or 1 + requests[row][0] for row in rows]
    check(query_lens, [requests[row][1] for row in rows], drafts, rows, padding)


def test_the_passes_compared_accept_some_drafts_and_reject_others() -> None:
    accepted = check([8] * 16, [20] * 16, [7] * 16, range(16), 0)
    assert 0 < int(accepted.sum()) < 16 * 7
    assert len(accepted.unique()) > 2


def test_the_kernels_say_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter, or on a GPU's machine not at all: tests/gpu has it there."""
    split_attention = pytest.importorskip("specplan.models.split_attention")
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here")
    batch = ([4, 12, 1, 3], [60, 0, 13, 5], [3, 0, 0, 2], [0, 1, 3, 5], 2)
    expected = run_pass("multi-query", torch.float32, *batch)
    made = []

    def attention(batch: object, cache: object, layout: Layout) -> object:
        made.append(layout)
        return split_attention.SplitAttention(batch, cache, layout=layout, num_slices=2)

    monkeypatch.setattr("specplan.engine.passes.cached_attention", attention)
    layouts: tuple[Layout, ...] = ("multi-query", "batch-expansion")
    for layout in layouts:
        logits, accepted, sampled, _ = run_pass(layout, torch.float32, *batch)
        torch.testing.assert_close(logits, expected[0], atol=1e-4, rtol=0)
        assert torch.equal(accepted, expected[1])
        assert torch.equal(sampled, expected[2])
    assert made == [*layouts]
