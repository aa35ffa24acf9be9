"""The CPU's cached attention, in both layouts, against dense attention over each request's whole text; how it runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from specplan.errors import ConfigError
from specplan.models import DecoderConfig, DenseAttention, KVCache, RaggedBatch
from specplan.models.attention import ExpandedAttention, PaddedAttention, split_into_runs
from specplan.models.rope import Rope, rotate

LAYER, HEAD_SIZE, MAX_LEN = 1, 8, 160
LAYOUTS = [PaddedAttention, ExpandedAttention]


def make_cache(num_rows: int, *, num_heads: int = 4, kv_heads: int = 2) -> KVCache:
    config = DecoderConfig(
        model_type="llama",
        vocab_size=31,
        hidden_size=num_heads * HEAD_SIZE,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=num_heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=MAX_LEN,
    )
    return KVCache(config, num_rows=num_rows, max_len=MAX_LEN, device=torch.device("cpu"), dtype=torch.float32)


def random_text(cache: KVCache, length: int) -> list[Tensor]:  # query, key, value: [length, heads, head_size]
    config = cache.config
    heads = (config.num_attention_heads, config.kv_heads, config.kv_heads)
    return [torch.randn(length, n, HEAD_SIZE) for n in heads]


def rope_of(positions: Tensor) -> Rope:
    angles = torch.outer(positions.float(), torch.tensor([1.0, 0.3, 0.1, 0.03])).unsqueeze(1)
    return angles.cos(), angles.sin()


def check(
    layout: type[PaddedAttention | ExpandedAttention],
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    rows: Sequence[int] | None = None,
    padding: int = 0,
    num_heads: int = 4,
    kv_heads: int = 2,
) -> None:
    """Each request's last tokens, over a cache that holds the ones before, as dense attention over all has them."""
    torch.manual_seed(0)
    named_rows = range(len(query_lens)) if rows is None else rows
    cache = make_cache(named_rows[-1] + 2, num_heads=num_heads, kv_heads=kv_heads)
    cache.keys.fill_(1e4)  # what no request may see
    cache.values.fill_(1e4)
    texts = [random_text(cache, q + c) for q, c in zip(query_lens, context_lens, strict=True)]
    ropes = [rope_of(torch.arange(len(query))) for query, _, _ in texts]
    turned = [rotate(key, rope) for (_, key, _), rope in zip(texts, ropes, strict=True)]
    for row, key, (_, _, value), context in zip(named_rows, turned, texts, context_lens, strict=True):
        cache.keys[LAYER, row, :context], cache.values[LAYER, row, :context] = key[:context], value[:context]
    ends = [[piece[context:] for piece in text] for text, context in zip(texts, context_lens, strict=True)]
    pieces = [*ends, random_text(cache, padding)]
    query, key, value = (torch.cat(kind) for kind in zip(*pieces, strict=True))

    batch = RaggedBatch(query_lens, context_lens, cache=cache, padded_tokens=len(query), rows=rows)
    got = layout(batch, cache).attend(LAYER, query, key, value, rope_of(batch.positions))

    expected = [
        DenseAttention(1).attend(LAYER, *text, rope)[context:]
        for text, rope, context in zip(texts, ropes, context_lens, strict=True)
    ]
    torch.testing.assert_close(got, torch.cat([*expected, torch.zeros_like(query[:padding])]), atol=1e-5, rtol=0)
    for row, key, (_, _, value) in zip(named_rows, turned, texts, strict=True):
        assert torch.equal(cache.keys[LAYER, row, : len(key)], key)
        assert torch.equal(cache.values[LAYER, row, : len(value)], value)
    untouched = cache.keys[LAYER].flatten(0, 1).index_fill(0, batch.kv_index, 1e4)
    for row, context in zip(named_rows, context_lens, strict=True):
        untouched[row * MAX_LEN : row * MAX_LEN + context] = 1e4
    assert (untouched == 1e4).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("query_lens", "context_lens", "rows"),
    [
        ([1], [0], [0]),
        ([1, 8, 3], [70, 0, 31], [0, 1, 2]),
        ([1, 1, 1, 1], [9, 5, 0, 7], [0, 1, 3, 6]),
        ([1, 100, 1, 1], [9, 20, 0, 7], [0, 1, 2, 3]),  # a chunk of a prompt among requests that decode
        ([100, 1, 8, 40], [0, 50, 31, 90], [1, 2, 4, 5]),
        ([40, 50, 90, 140], [9, 0, 7, 3], [0, 1, 2, 3]),  # prompts
        ([0, 3, 0, 40, 0], [9, 9, 0, 0, 4], [0, 1, 2, 3, 5]),  # requests that bring nothing
        ([0, 0], [9, 0], [0, 1]),
    ],
)
def test_ragged_batches(
    layout: type[PaddedAttention | ExpandedAttention], query_lens: list[int], context_lens: list[int], rows: list[int]
) -> None:
    check(layout, query_lens, context_lens, rows=rows, padding=3)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=60, deadline=None)
@given(
    requests=st.dictionaries(
        st.integers(0, 9),
        st.tuples(st.integers(1, 9) | st.integers(30, 100), st.integers(0, 60)),
        min_size=1,
        max_size=6,
    ),  # by cache row
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (4, 4)]),
    padding=st.integers(0, 4),
)
def test_any_batch(
    layout: type[PaddedAttention | ExpandedAttention],
    requests: dict[int, tuple[int, int]],
    heads: tuple[int, int],
    padding: int,
) -> None:
    rows = sorted(requests)
    query_lens, context_lens = zip(*(requests[row] for row in rows), strict=True)
    check(layout, query_lens, context_lens, rows=rows, padding=padding, num_heads=heads[0], kv_heads=heads[1])


@pytest.mark.parametrize(
    ("query_lens", "rows", "run_lens"),
    [
        ([1] * 6, range(6), [6]),
        ([8, 1, 1, 8, 0, 2], range(3, 9), [6]),  # none idles for more than a call is worth
        ([1, 8, 1], range(3), [3]),
        ([1, 1, 8, 1], range(4), [2, 2]),
        ([1, 10, 1], range(3), [1, 1, 1]),
        ([1, 1, 1, 1], [0, 1, 3, 4], [4]),  # an idle row rides along
        ([1, 1, 1], [0, 9, 10], [3]),
        ([1, 1, 1], [0, 10, 11], [1, 2]),
        ([40, 40], [0, 2], [1, 1]),
        ([1, 1, 100, 1, 1], range(5), [2, 1, 2]),
        ([8] * 5 + [32] + [8] * 5, range(11), [5, 1, 5]),  # the rest of a prompt may be short
        ([100, 92, 100, 91], range(4), [3, 1]),
    ],
)
def test_a_run_is_of_close_rows_with_queries_alike(
    query_lens: list[int], rows: Sequence[int], run_lens: list[int]
) -> None:
    runs = split_into_runs(query_lens, rows)
    assert [run.stop - run.start for run in runs] == run_lens
    assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])]


@pytest.mark.parametrize("query_lens", [[1, 1, 1, 1], [4, 1, 2, 4], [8, 0, 8, 3]])
def test_a_pure_decode_batch_is_attended_in_one_call(query_lens: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache(6)
    attention = PaddedAttention(RaggedBatch(query_lens, [5, 0, 9, 3], cache=cache, rows=[1, 2, 3, 4]), cache)
    attend, calls = F.scaled_dot_product_attention, []
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **b: calls.append(a[0].shape) or attend(*a, **b))
    attention.attend(LAYER, *random_text(cache, sum(query_lens)), rope_of(attention.batch.positions))
    assert calls == [(4, 2, 2 * max(query_lens), HEAD_SIZE)]


@pytest.mark.parametrize(("copied_bytes", "in_blocks_of"), [(1 << 20, [7]), (3 * 14 * 64, [3, 3, 1]), (1, [1] * 7)])
def test_batch_expansion_attends_single_queries_over_keys_of_their_own(
    monkeypatch: pytest.MonkeyPatch, copied_bytes: int, in_blocks_of: list[int]
) -> None:
    monkeypatch.setattr("specplan.models.attention.COPIED_BYTES", copied_bytes)
    cache = make_cache(6)
    batch = RaggedBatch([4, 1, 0, 2], [5, 0, 14, 3], cache=cache, rows=[1, 2, 3, 5], padded_tokens=9)
    attend, calls = F.scaled_dot_product_attention, []
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **b: calls.append(a) or attend(*a, **b))
    ExpandedAttention(batch, cache).attend(LAYER, *random_text(cache, 9), rope_of(batch.positions))
    assert [query.shape for query, _, _ in calls] == [(n, 2, 2, HEAD_SIZE) for n in in_blocks_of]  # a group's heads
    for place, cached in ((1, cache.keys), (2, cache.values)):
        copies = [copy for call in calls for copy in call[place]]
        for copy, row, seen in zip(copies, [1, 1, 1, 1, 2, 5, 5], [6, 7, 8, 9, 1, 4, 5], strict=True):
            assert copy.shape[1] >= seen
            assert torch.equal(copy.transpose(0, 1), cached[LAYER, row, : copy.shape[1]])
        for call in calls:
            assert call[place].untyped_storage().nbytes() == call[place].numel() * 4  # each query's own, none shared


def test_requests_that_decode_do_not_pay_for_a_prompt_beside_them() -> None:
    cache = make_cache(17)
    batch = RaggedBatch([1] * 8 + [100] + [1] * 8, [40] * 17, cache=cache)
    layouts = [tuple(run.mask.shape) for run in PaddedAttention(batch, cache).runs]
    assert layouts == [(8, 1, 2, 41), (1, 1, 200, 140), (8, 1, 2, 41)]


@pytest.mark.parametrize("rows", [[1, 0], [0, 0], [-1, 0], [0], [0, 1, 2]])
def test_rows_that_do_not_ascend_one_to_a_request_are_refused(rows: list[int]) -> None:
    with pytest.raises(ConfigError, match="expected as many in ascending order"):
        RaggedBatch([1, 1], [0, 0], cache=make_cache(3), rows=rows)


def test_a_row_that_the_cache_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the last in row 3, .* does not fit a cache of 3 rows"):
        RaggedBatch([1, 1], [0, 0], cache=make_cache(3), rows=[0, 3])
