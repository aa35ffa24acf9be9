"""The CUDA kernel: it says what the CPU's attention and a plain softmax say, and compiles for GPUs that are not here.

Without a CUDA device it runs in Triton's interpreter, one program after the other on a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specplan.errors import ConfigError, MeasurementError
from specplan.models import Decoder, DecoderConfig, KVCache, RaggedBatch
from specplan.models.attention import PaddedAttention, cuda_attention
from specplan.models.rope import Rope, rotate
from specplan.shapes import Layout

triton = pytest.importorskip("triton")
split_attention = pytest.importorskip("specplan.models.split_attention")

CPU = torch.device("cpu")
DEVICE = torch.device("cuda") if torch.cuda.is_available() else CPU
LAYER = 1
LAYOUTS = get_args(Layout)


def make_config(num_heads: int, kv_heads: int, head_size: int) -> DecoderConfig:
    return DecoderConfig(
        model_type="llama",
        vocab_size=31,
        hidden_size=num_heads * head_size,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=num_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_size,
        max_position_embeddings=64,
    )


def random_cache(config: DecoderConfig, num_rows: int, max_len: int, dtype: torch.dtype) -> KVCache:
    cache = KVCache(config, num_rows=num_rows, max_len=max_len, device=CPU, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    cache.keys.normal_(generator=generator)
    cache.values.normal_(generator=generator)
    return cache


def on_device(cache: KVCache) -> KVCache:
    """A copy where the kernel runs."""
    copy = KVCache(cache.config, num_rows=cache.num_rows, max_len=cache.max_len, device=DEVICE, dtype=cache.keys.dtype)
    copy.keys.copy_(cache.keys)
    copy.values.copy_(cache.values)
    return copy


def random_inputs(config: DecoderConfig, num_tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Rope]:
    """What a layer hands to its attention: query, key, value, and the pass's rope."""
    generator = torch.Generator().manual_seed(2)
    kinds = (config.num_attention_heads, config.kv_heads, config.kv_heads)
    query, key, value = (torch.randn(num_tokens, n, config.head_size, generator=generator).to(dtype) for n in kinds)
    angles = torch.randn(num_tokens, 1, config.head_size // 2, generator=generator)
    return query, key, value, (angles.cos(), angles.sin())


def moved(query: Tensor, key: Tensor, value: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor, Rope]:
    """The same where the kernel runs."""
    cos, sin = rope
    return query.to(DEVICE), key.to(DEVICE), value.to(DEVICE), (cos.to(DEVICE), sin.to(DEVICE))


def plain_attention(query: Tensor, cache: KVCache, batch: RaggedBatch) -> Tensor:  # [num_tokens, heads, head_size]
    """Token by token and head by head, in float64, of rotated queries over a cache that holds the pass's own keys."""
    group = cache.config.num_attention_heads // cache.config.kv_heads
    keys, values = cache.keys[LAYER].double(), cache.values[LAYER].double()
    tokens = []
    for request, (length, context) in enumerate(zip(batch.query_lens, batch.context_lens, strict=True)):
        row = batch.rows[request]
        for seen in range(context + 1, context + length + 1):
            one = query[len(tokens)].double()
            heads = []
            for head in range(one.shape[0]):
                scores = keys[row, :seen, head // group] @ one[head] / cache.config.head_size**0.5
                heads.append(scores.softmax(0) @ values[row, :seen, head // group])
            tokens.append(torch.stack(heads))
    tokens += [torch.zeros_like(tokens[0])] * (batch.padded_tokens - batch.num_tokens)
    return torch.stack(tokens).float()


def check(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    heads: tuple[int, int, int] = (4, 2, 16),  # attention heads, KV heads, head size
    layout: Layout = "multi-query",
    num_slices: int = 1,
    padding: int = 0,
    rows: Sequence[int] | None = None,
    max_len: int = 256,
    dtype: torch.dtype = torch.float32,
    atol: float = 1e-5,
) -> None:
    config = make_config(*heads)
    cache = random_cache(config, (len(query_lens) if rows is None else rows[-1] + 1) + 1, max_len, dtype)
    copy = on_device(cache)
    num_tokens = sum(query_lens) + padding
    query, key, value, rope = random_inputs(config, num_tokens, dtype)

    batch = RaggedBatch(query_lens, context_lens, cache=cache, padded_tokens=num_tokens, rows=rows)
    padded = PaddedAttention(batch, cache).attend(LAYER, query, key, value, rope)
    on_copy = RaggedBatch(query_lens, context_lens, cache=copy, padded_tokens=num_tokens, rows=rows)
    split = split_attention.SplitAttention(on_copy, copy, layout=layout, num_slices=num_slices)
    got = split.attend(LAYER, *moved(query, key, value, rope)).cpu()

    # What it wrote to the cache, test_rope_kernel.py compares; here, that both sides attended over the same.
    torch.testing.assert_close(copy.keys[:, :-1].cpu(), cache.keys[:, :-1], atol=1e-6, rtol=torch.finfo(dtype).eps)
    assert torch.equal(copy.values[:, :-1].cpu(), cache.values[:, :-1])
    torch.testing.assert_close(got.float(), padded.float(), atol=atol, rtol=0)
    torch.testing.assert_close(got.float(), plain_attention(rotate(query, rope), cache, batch), atol=atol, rtol=0)
    assert (got[sum(query_lens) :] == 0).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_slices", [1, 3])
@pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [
        ([1], [0]),
        ([1, 1, 1], [70, 0, 31]),
        ([8, 3, 1, 5], [100, 0, 33, 7]),
        ([4, 4], [60, 61]),  # ends on a block of keys, and one past it
        ([70, 2, 1], [0, 130, 5]),  # several blocks of rows beside requests of one
        ([0, 3, 0], [9, 9, 0]),  # a request that brings nothing
    ],
)
def test_ragged_batches(query_lens: list[int], context_lens: list[int], num_slices: int, layout: Layout) -> None:
    check(query_lens, context_lens, num_slices=num_slices, layout=layout)


def test_in_batch_expansion_every_token_is_a_request() -> None:
    cache = on_device(random_cache(make_config(4, 2, 16), 4, 64, torch.float32))
    batch = RaggedBatch([2, 0, 3], [7, 9, 0], cache=cache, rows=[0, 1, 3], padded_tokens=7)
    split = split_attention.SplitAttention(batch, cache, layout="batch-expansion", num_slices=1)
    assert split.query_starts.tolist() == [0, 1, 2, 3, 4, 5, 5, 5]
    assert split.used_lens.tolist() == [*(batch.positions[:5] + 1).tolist(), 0, 0] == [8, 9, 1, 2, 3, 0, 0]
    assert split.cache_rows.tolist() == [0, 0, 3, 3, 3, 0, 0]


@pytest.mark.parametrize(
    "heads", [(3, 1, 16), (3, 3, 20), (4, 1, 64), (6, 2, 24), (8, 2, 80), (2, 2, 128), (2, 1, 256), (40, 1, 16)]
)
@pytest.mark.parametrize("num_slices", [1, 2])
def test_groups_and_head_sizes(heads: tuple[int, int, int], num_slices: int) -> None:
    check([3, 1, 4], [40, 0, 5], heads=heads, num_slices=num_slices, padding=2, rows=[1, 2, 5], max_len=64)


def test_more_slices_than_blocks_of_keys() -> None:
    check([3, 1], [200, 2], num_slices=9, padding=5)


def test_long_queries_in_several_blocks_and_slices() -> None:
    """Slices that end where early rows of a block see nothing of them, and blocks that need no mask."""
    check([150, 40], [50, 90], heads=(2, 2, 16), num_slices=4)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_half_precision(num_slices: int) -> None:
    # Weights and the result are rounded to 11 bits.
    check([30, 8, 1], [0, 150, 7], num_slices=num_slices, padding=1, dtype=torch.float16, atol=4e-3)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_bfloat16(num_slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == CPU:
        multiply_bfloat16_in_the_interpreter(monkeypatch)
    # The same in 8 bits.
    check([30, 8, 1], [0, 150, 7], num_slices=num_slices, padding=1, dtype=torch.bfloat16, atol=3e-2)


def multiply_bfloat16_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps bfloat16 as the integers of its bits, and forgets that when it multiplies matrices."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    language = triton.language
    multiply = InterpreterBuilder.create_dot

    def widen(operand: TensorHandle) -> TensorHandle:
        if operand.dtype.scalar != language.bfloat16:
            return operand
        return TensorHandle((operand.data.astype(np.uint32) << 16).view(np.float32), language.float32)

    def create_dot(builder: object, a: TensorHandle, b: TensorHandle, *others: object) -> TensorHandle:
        return multiply(builder, widen(a), widen(b), *others)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def any_batch(*, longest_query: int) -> dict[str, st.SearchStrategy[object]]:
    request = st.tuples(st.integers(1, longest_query), st.integers(0, 60))
    return {
        "requests": st.dictionaries(st.integers(0, 6), request, min_size=1, max_size=4),  # by cache row
        "heads": st.sampled_from([(1, 1, 16), (3, 1, 8), (4, 2, 16), (4, 1, 24)]),
        "num_slices": st.integers(1, 5),
        "padding": st.integers(0, 3),
    }


def check_requests(requests: dict[int, tuple[int, int]], layout: Layout, **options: Any) -> None:
    rows = sorted(requests)
    query_lens, context_lens = zip(*(requests[row] for row in rows), strict=True)
    check(query_lens, context_lens, layout=layout, rows=rows, max_len=100, **options)


@settings(max_examples=25, deadline=None)
@given(**any_batch(longest_query=40))
def test_any_batch(**options: Any) -> None:
    check_requests(**options, layout="multi-query")


@settings(max_examples=15, deadline=None)
@given(**any_batch(longest_query=9))
def test_any_batch_expanded(**options: Any) -> None:
    """Of short queries: the interpreter runs one program for each query, head and slice."""
    check_requests(**options, layout="batch-expansion")


@pytest.mark.parametrize("num_slices", [1, 4])
def test_what_is_past_the_used_length_is_not_read(num_slices: int) -> None:
    cache = on_device(random_cache(make_config(4, 2, 16), 2, 128, torch.float32))
    cache.keys[:, 0, 14:] = cache.values[:, 0, 14:] = torch.nan
    cache.keys[:, 1, 9:] = cache.values[:, 1, 9:] = torch.nan
    batch = RaggedBatch([4, 1], [10, 8], cache=cache)
    split = split_attention.SplitAttention(batch, cache, num_slices=num_slices)
    assert split.attend(LAYER, *moved(*random_inputs(cache.config, 5, torch.float32))).isfinite().all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_slices", [1, 3])
def test_lengths_and_rows_rewritten_in_place_count(num_slices: int, layout: Layout) -> None:
    """What a captured graph relies on: nothing that depends on lengths was decided on the host."""
    config = make_config(4, 2, 16)
    cache = on_device(random_cache(config, 5, 128, torch.float32))
    inputs = moved(*random_inputs(config, 12, torch.float32))

    def make(query_lens: list[int], context_lens: list[int], rows: list[int]) -> split_attention.SplitAttention:
        batch = RaggedBatch(query_lens, context_lens, cache=cache, padded_tokens=12, rows=rows)
        return split_attention.SplitAttention(batch, cache, layout=layout, num_slices=num_slices)

    held = make([2, 8, 1], [5, 0, 100], [0, 1, 2])
    before = held.attend(LAYER, *inputs)
    for query_lens, context_lens, rows in (
        ([8, 1, 2], [100, 30, 0], [0, 1, 2]),
        ([2, 8, 1], [5, 0, 100], [1, 2, 4]),
        ([1, 1, 1], [0, 127, 64], [0, 3, 4]),
        ([4, 0, 8], [3, 9, 40], [2, 3, 4]),
    ):
        other = make(query_lens, context_lens, rows)
        held.query_starts.copy_(other.query_starts)
        held.used_lens.copy_(other.used_lens)
        held.cache_rows.copy_(other.cache_rows)
        held.batch.kv_index.copy_(other.batch.kv_index)
        after = held.attend(LAYER, *inputs)
        assert torch.equal(after, other.attend(LAYER, *inputs))
        assert not torch.equal(after, before)
        assert (after[sum(query_lens) :] == 0).all()


def test_one_object_serves_all_layers() -> None:
    torch.manual_seed(0)
    decoder = Decoder(make_config(4, 2, 16)).requires_grad_(False).eval()
    cache = random_cache(decoder.config, 2, 64, torch.float32)
    copy = on_device(cache)
    ids = torch.arange(7)
    batch = RaggedBatch([5, 1], [12, 30], cache=cache, padded_tokens=7)
    expected = decoder(ids, batch.positions, PaddedAttention(batch, cache))[:6]
    on_copy = RaggedBatch([5, 1], [12, 30], cache=copy, padded_tokens=7)
    split = split_attention.SplitAttention(on_copy, copy, num_slices=2)
    got = decoder.to(DEVICE)(ids.to(DEVICE), on_copy.positions, split)[:6].cpu()
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_a_layer_may_pass_two_to_the_31_elements() -> None:
    """Its memory is asked for and hardly touched."""
    config = make_config(8, 8, 128)
    small = random_cache(config, 1, 1024, torch.float16)
    large = KVCache.__new__(KVCache)
    large.config, large.num_rows, large.max_len = config, 2048 + 1, 1024
    try:
        large.keys, large.values = (
            torch.empty((2, 2048 + 2, 1024, 8, 128), dtype=torch.float16, device=DEVICE) for _ in range(2)
        )
    except RuntimeError:
        pytest.skip("no address space for 17 GB")
    large.keys[LAYER, 2048, :90], large.values[LAYER, 2048, :90] = (
        small.keys[LAYER, 0, :90],
        small.values[LAYER, 0, :90],
    )
    inputs = moved(*random_inputs(config, 2, torch.float16))
    results = []
    for cache, row in ((on_device(small), 0), (large, 2048)):
        batch = RaggedBatch([2], [80], cache=cache, rows=[row])
        split = split_attention.SplitAttention(batch, cache, num_slices=2)
        results.append(split.attend(LAYER, *inputs))
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("num_programs", "max_len", "expected"),
    [
        (256 * 8, 2080, 1),  # the device is full
        (256, 2080, 1),
        (32, 2080, 8),
        (8, 2080, 16),  # not more slices than the keys are worth
        (8, 131072, 33),
        (1, 100, 1),
    ],
)
def test_slices_fill_the_device_once(num_programs: int, max_len: int, expected: int) -> None:
    assert split_attention.choose_num_slices(num_programs, max_len=max_len, at_once=264) == expected


@pytest.mark.parametrize("hopper", [True, False])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_blocks_are_what_tensor_cores_take(element_bytes: int, hopper: bool) -> None:
    for head_size in range(8, 257, 8):
        for num_rows in (1, 4, 16, 17, 32, 36, 71, 4000):
            blocks = split_attention.choose_blocks(num_rows, head_size, element_bytes, hopper=hopper)
            assert blocks.rows in {16, 32, 64, 128}
            assert blocks.keys in {16, 32, 64}
            padded_head = triton.next_power_of_2(head_size)
            assert 2 * blocks.keys * padded_head * element_bytes <= split_attention.STAGE_BYTES
            assert blocks.rows * padded_head <= 64 * 32 * blocks.num_warps  # sums in registers


def test_a_head_that_no_block_holds_is_refused() -> None:
    cache = random_cache(make_config(1, 1, 264), 1, 16, torch.float32)
    with pytest.raises(ConfigError, match="a head of 264 elements"):
        split_attention.SplitAttention(RaggedBatch([1], [0], cache=cache), cache)


def test_without_triton_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = random_cache(make_config(1, 1, 16), 1, 16, torch.float32)
    batch = RaggedBatch([1], [0], cache=cache)
    for module in ("split_attention", "attention_kernel", "rope_kernel"):
        monkeypatch.delitem(sys.modules, f"specplan.models.{module}")
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MeasurementError, match="Triton cannot be imported") as caught:
        cuda_attention(batch, cache)
    assert "--device cpu" in caught.value.hint


POINTERS = {"partials": "*fp32", "maxima": "*fp32", "sums": "*fp32", "query_starts": "*i32"}
LENGTHS = {"used_lens": "*i32", "cache_rows": "*i32", "max_len": "i32", "num_tokens": "i32", "scale": "fp32"}


@pytest.mark.parametrize(
    ("capability", "head_size", "queries", "one_slice"),
    [(90, 128, 8, True), (90, 128, 9, False), (90, 64, 8, True), (80, 128, 9, True), (90, 128, 1, True)],
)
def test_it_compiles_without_spills(
    capability: int,
    head_size: int,
    queries: int,
    one_slice: bool,
    compile_ahead: Callable[..., dict[str, object]],
) -> None:
    """As Llama-3's 8B and 1B verify 7 and 8 drafts, or one query a row: 4 heads to each of 8 KV heads."""
    blocks = split_attention.choose_blocks(queries * 4, head_size, 2, hopper=capability == 90)
    compiled = compile_ahead(
        "specplan.models.attention_kernel",
        "attend_slice",
        signature=POINTERS | LENGTHS | dict.fromkeys(("out", "query", "keys", "values"), "*bf16"),
        constants={
            "HEAD_SIZE": head_size,
            "PADDED_HEAD": head_size,
            "GROUP": 4,
            "KV_HEADS": 8,
            "BLOCK_ROWS": blocks.rows,
            "BLOCK_KEYS": blocks.keys,
            "NUM_STAGES": split_attention.NUM_STAGES,
            "ONE_SLICE": one_slice,
            "ONE_BLOCK": True,
        },
        capability=capability,
        num_warps=blocks.num_warps,
    )
    assert "cp.async.cg" in str(compiled["ptx"])  # keys come 16 bytes at a time, ahead of their use
    assert compiled["spilled_bytes"] == 0
    # Two programs share a multiprocessor of Hopper's (227 KiB, and 1 KiB is kept back for each).
    if capability == 90:
        assert 2 * (int(str(compiled["shared_bytes"])) + 1024) <= 227 * 1024


def test_combining_compiles_without_spills(compile_ahead: Callable[..., dict[str, object]]) -> None:
    compiled = compile_ahead(
        "specplan.models.attention_kernel",
        "combine_slices",
        signature=POINTERS | {"out": "*bf16", "num_reqs": "i32", "num_slices": "i32", "num_tokens": "i32"},
        constants={"HEAD_SIZE": 128, "PADDED_HEAD": 128, "AT_ONCE": split_attention.COMBINED_AT_ONCE},
        capability=90,
    )
    assert compiled["spilled_bytes"] == 0
