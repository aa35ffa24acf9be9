"""RoPE and the cache write in one launch: what `rotate` and `KVCache.write` do in a dozen, for GPUs that are not here.

Without a CUDA device the kernel runs in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specplan.models import DecoderConfig, KVCache
from specplan.models.rope import rotate

triton = pytest.importorskip("triton")
rope_kernel = pytest.importorskip("specplan.models.rope_kernel")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAYER, MAX_LEN = 1, 32
POSITIONS = [[0, 3], [2, 0], [2, 31], [0, 4]]  # cache row and position of each token; row 1 is no part of the pass
PADDING = 2


def make_cache(num_heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> KVCache:
    config = DecoderConfig(
        model_type="llama",
        vocab_size=31,
        hidden_size=num_heads * head_size,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=num_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_size,
        max_position_embeddings=MAX_LEN,
    )
    cache = KVCache(config, num_rows=3, max_len=MAX_LEN, device=DEVICE, dtype=dtype)
    cache.keys.fill_(7)
    cache.values.fill_(7)
    return cache


def assert_close_to_rounding(got: Tensor, expected: Tensor) -> None:
    """A compiled kernel multiplies and adds at once, which may tip the one rounding of a result."""
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=torch.finfo(got.dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "heads",
    [(4, 2, 16), (1, 1, 2), (3, 1, 20), (6, 6, 8), (5, 5, 80), (32, 8, 64), (32, 8, 128), (40, 10, 128)],
    ids=str,
)
def test_it_is_rotate_and_the_caches_write(heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    num_heads, kv_heads, head_size = heads
    num_owned, num_tokens = len(POSITIONS), len(POSITIONS) + PADDING
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(num_tokens, n, head_size, device=DEVICE).to(dtype) for n in (num_heads, kv_heads, kv_heads)
    )
    angles = 40 * torch.rand(num_tokens, 1, head_size // 2, device=DEVICE)
    rope = angles.cos(), angles.sin()
    expected, got = make_cache(*heads, dtype), make_cache(*heads, dtype)
    index = [row * MAX_LEN + position for row, position in POSITIONS]
    kv_index = torch.tensor(index + [got.scratch_index] * PADDING, device=DEVICE)
    out = torch.full_like(query, 7)

    rotated = rope_kernel.rotate_and_cache(
        query,
        key,
        value,
        rope,
        keys=got.keys[LAYER],
        values=got.values[LAYER],
        kv_index=kv_index,
        query_starts=torch.tensor([0, 1, 1, num_owned], dtype=torch.int32, device=DEVICE),
        padded_out=out,
    )

    expected.write(LAYER, kv_index, rotate(key, rope), value)
    assert rotated.dtype == dtype
    assert_close_to_rounding(rotated, rotate(query, rope))
    # Of the scratch row only that it was no other that padding tokens went to: which of them is there is chance.
    assert_close_to_rounding(got.keys[:, :-1], expected.keys[:, :-1])
    assert torch.equal(got.values[:, :-1], expected.values[:, :-1])
    assert (got.values[LAYER, -1, 0] != 7).all()
    assert (got.values[LAYER, -1, 1:] == 7).all()
    assert (out[:num_owned] == 7).all()
    assert (out[num_owned:] == 0).all()


def test_it_rounds_once() -> None:
    """Cosine and sine of bfloat16, as some engines have them, or bfloat16 between the steps, would be off by more."""
    torch.manual_seed(0)
    heads = torch.randn(64, 2, 128).bfloat16()
    angles = 1000 * torch.rand(64, 1, 64)
    exact = rotate(heads.double(), (angles.cos().double(), angles.sin().double()))
    got = rotate(heads, (angles.cos(), angles.sin()))
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), exact, atol=1e-6, rtol=torch.finfo(torch.bfloat16).eps / 2)


@pytest.mark.parametrize(("num_pairs", "expected"), [(1, 1), (256, 1), (1024, 4), (2048, 8), (4096, 16), (16384, 16)])
def test_warps_hold_their_pairs_in_registers(num_pairs: int, expected: int) -> None:
    assert rope_kernel.choose_num_warps(num_pairs) == expected


@pytest.mark.parametrize(("capability", "head_size"), [(90, 128), (90, 64), (80, 128)])
def test_it_compiles_without_spills(
    capability: int, head_size: int, compile_ahead: Callable[..., dict[str, object]]
) -> None:
    """With the heads of Llama-3's 8B and 1B."""
    compiled = compile_ahead(
        "specplan.models.rope_kernel",
        "rotate_and_cache_kernel",
        signature={
            **dict.fromkeys(("rotated", "keys", "values", "padded_out", "query", "key", "value"), "*bf16"),
            **dict.fromkeys(("cos", "sin"), "*fp32"),
            "kv_index": "*i64",
            "query_starts": "*i32",
            "num_reqs": "i32",
        },
        constants={
            "NUM_HEADS": 32,
            "KV_HEADS": 8,
            "HEAD_SIZE": head_size,
            "PADDED_HEADS": 32,
            "PADDED_KV_HEADS": 8,
            "PADDED_HALF": head_size // 2,
        },
        capability=capability,
        num_warps=rope_kernel.choose_num_warps(32 * head_size // 2),
    )
    assert compiled["spilled_bytes"] == 0
    ptx = str(compiled["ptx"])
    # 16 bytes at a time, and every load is under way before the first store.
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx
    assert ptx.rindex("ld.global") < ptx.index("st.global")
