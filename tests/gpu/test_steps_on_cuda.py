"""The CUDA path against the CPU's: attention, capture and replay, timing, a whole profile."""

from __future__ import annotations

import gc
import statistics
import time
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import torch

from specplan.costs import tables_from_profile
from specplan.device.graphs import Grapher
from specplan.engine import VerifyPass
from specplan.measure import ProfilePlan, StoppingRule, profile_pair
from specplan.measure.clock import time_step
from specplan.measure.steps import StepFactory
from specplan.models import Decoder, DecoderConfig, KVCache, LoadedModel, RaggedBatch, cached_attention
from specplan.models.attention import PaddedAttention
from specplan.shapes import Layout

pytestmark = pytest.mark.gpu

CONFIG = DecoderConfig(
    model_type="llama",
    vocab_size=512,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
)


def make_decoder(device: torch.device, dtype: torch.dtype) -> Decoder:
    torch.manual_seed(0)
    return Decoder(CONFIG).requires_grad_(False).eval().to(device=device, dtype=dtype)


def run_ragged(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Logits of a ragged prefill and a ragged, padded verify pass, as float32 on the host."""
    decoder = make_decoder(device, dtype)
    cache = KVCache(CONFIG, num_rows=3, max_len=256, device=device, dtype=dtype)
    ids = torch.randint(CONFIG.vocab_size, (200,), generator=torch.Generator().manual_seed(1)).to(device)
    logits = []
    contexts = [0, 0, 0]
    for lens, padding in (([40, 1, 7], 0), ([1, 8, 3], 4)):
        batch = RaggedBatch(lens, contexts, cache=cache, padded_tokens=sum(lens) + padding)
        tokens = ids[: sum(lens) + padding]
        hidden = decoder(tokens, batch.positions, cached_attention(batch, cache))
        logits.append(decoder.logits(hidden)[: sum(lens)].float().cpu())
        contexts = [start + length for start, length in zip(contexts, lens, strict=True)]
    return torch.cat(logits)


@torch.inference_mode()
def test_the_kernel_says_what_the_cpus_attention_says(cuda: torch.device) -> None:
    expected = run_ragged(torch.device("cpu"), torch.float32)
    got = run_ragged(cuda, torch.bfloat16)
    # bfloat16 keeps 8 bits: a few percent of the logits' spread, over two layers.
    torch.testing.assert_close(got, expected, atol=0.05 * float(expected.std()) + 0.02, rtol=0.05)
    torch.testing.assert_close(run_ragged(cuda, torch.float32), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize(
    "query_lens", [[1, 1, 1, 1], [4, 1, 2, 3], [8, 3, 1, 5], [9, 9, 2, 1], [300, 1, 40, 8]], ids=str
)
@pytest.mark.parametrize("num_slices", [None, 1])
@torch.inference_mode()
def test_the_kernel_at_the_shapes_of_served_models(
    cuda: torch.device, head_size: int, query_lens: list[int], num_slices: int | None
) -> None:
    """Four heads to each of eight KV heads: every block of rows that such a model's steps compile."""
    from specplan.models.split_attention import SplitAttention

    shape = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": head_size, "hidden_size": 32 * head_size}
    config = msgspec.structs.replace(CONFIG, **shape, num_hidden_layers=1)
    context_lens, num_tokens = [1700, 0, 900, 63], sum(query_lens)
    caches = [
        KVCache(config, num_rows=5, max_len=2080, device=device, dtype=dtype)
        for device, dtype in ((torch.device("cpu"), torch.float32), (cuda, torch.bfloat16))
    ]
    torch.manual_seed(0)
    # Both sides get the numbers that bfloat16 can hold.
    for expected, got in ((caches[0].keys, caches[1].keys), (caches[0].values, caches[1].values)):
        expected.normal_()
        got.copy_(expected)
        expected.copy_(got)
    query, key, value = (torch.randn(num_tokens + 3, n, head_size).bfloat16() for n in (32, 8, 8))
    angles = 100 * torch.rand(num_tokens + 3, 1, head_size // 2)
    cos, sin = angles.cos(), angles.sin()
    on_cpu, on_cuda = (
        RaggedBatch(query_lens, context_lens, cache=cache, padded_tokens=num_tokens + 3, rows=[0, 1, 3, 4])
        for cache in caches
    )
    expected = PaddedAttention(on_cpu, caches[0]).attend(0, query.float(), key.float(), value.float(), (cos, sin))
    split = SplitAttention(on_cuda, caches[1], num_slices=num_slices)
    got = split.attend(0, query.to(cuda), key.to(cuda), value.to(cuda), (cos.to(cuda), sin.to(cuda)))
    torch.testing.assert_close(got.float().cpu(), expected, atol=0.02, rtol=0.02)
    assert (got[num_tokens:] == 0).all()
    for written, wanted in ((caches[1].keys, caches[0].keys), (caches[1].values, caches[0].values)):
        # All but the scratch row; keys are rounded to 8 bits once they are turned.
        torch.testing.assert_close(written[:, :-1].float().cpu(), wanted[:, :-1], atol=1e-6, rtol=2**-8)


@torch.inference_mode()
def test_a_replay_reads_what_is_in_its_buffers_now(cuda: torch.device) -> None:
    decoder = make_decoder(cuda, torch.bfloat16)
    cache = KVCache(CONFIG, num_rows=4, max_len=256, device=cuda, dtype=torch.bfloat16)
    cache.keys.normal_()
    cache.values.normal_()
    verify = VerifyPass(decoder, cache, query_lens=[8, 3, 1, 4], context_lens=[50, 7, 100, 9], padded_tokens=24)
    buffer = torch.randint(CONFIG.vocab_size, (24,), device=cuda)
    for _ in range(3):
        verify.run(buffer)
    replay = Grapher(cuda).capture(lambda: verify.run(buffer)[1])
    for seed in range(3):
        torch.manual_seed(seed)
        buffer.copy_(torch.randint(CONFIG.vocab_size, (24,), device=cuda))
        replayed = replay().clone()
        assert torch.equal(replayed, verify.run(buffer)[1])


@torch.inference_mode()
def test_both_layouts_accept_and_sample_the_same(cuda: torch.device) -> None:
    """Of requests that verify 3 and 7 drafts beside a chunk of a prompt and a request that decodes."""
    decoder = make_decoder(cuda, torch.float32)
    cache = KVCache(CONFIG, num_rows=6, max_len=512, device=cuda, dtype=torch.float32)
    cache.keys.normal_()
    cache.values.normal_()
    ids = torch.randint(CONFIG.vocab_size, (90,), device=cuda)

    def make(layout: Layout) -> VerifyPass:
        return VerifyPass(
            decoder,
            cache,
            query_lens=[4, 70, 1, 8],
            context_lens=[60, 0, 13, 400],
            num_drafts=[3, 0, 0, 7],
            rows=[0, 1, 3, 4],
            padded_tokens=90,
            layout=layout,
        )

    multi_query, expanded = (make(layout) for layout in get_args(Layout))
    for _ in range(3):  # makes the target's own tokens of three more drafts, one at a time
        sampled = multi_query.run(ids)[1]
        ids[1:4], ids[76:83] = sampled[0, :3], sampled[3, :7]
    accepted, sampled = multi_query.run(ids)
    assert accepted[:3].tolist() == [3, 0, 0]
    assert accepted[3] >= 3
    hidden = multi_query.forward(ids)[:83]
    torch.testing.assert_close(expanded.forward(ids)[:83], hidden, atol=1e-3, rtol=1e-3)

    def say() -> torch.Tensor:
        counts, tokens = expanded.run(ids)
        return torch.cat((counts.unsqueeze(1), tokens), dim=1)

    expected = torch.cat((accepted.unsqueeze(1), sampled), dim=1)
    assert torch.equal(say(), expected)
    assert torch.equal(Grapher(cuda).capture(say)(), expected)


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("num_slices", [None, 1])
@torch.inference_mode()
def test_a_captured_pass_follows_lengths_and_rows_rewritten_in_place(
    cuda: torch.device, num_slices: int | None, layout: Layout
) -> None:
    from specplan.models.split_attention import SplitAttention

    decoder = make_decoder(cuda, torch.bfloat16)
    cache = KVCache(CONFIG, num_rows=7, max_len=512, device=cuda, dtype=torch.bfloat16)
    cache.keys.normal_()
    cache.values.normal_()
    ids = torch.randint(CONFIG.vocab_size, (20,), device=cuda)

    def make(query_lens: list[int], context_lens: list[int], rows: list[int]) -> SplitAttention:
        batch = RaggedBatch(query_lens, context_lens, cache=cache, padded_tokens=20, rows=rows)
        return SplitAttention(batch, cache, layout=layout, num_slices=num_slices)

    def run(attention: SplitAttention) -> torch.Tensor:
        return decoder(ids, attention.batch.positions, attention)

    held = make([8, 3, 1, 4], [50, 7, 100, 9], [0, 1, 2, 3])
    assert (held.num_slices > 1) == (num_slices is None)
    run(held)
    replay = Grapher(cuda).capture(lambda: run(held))
    before = replay().clone()
    # Lengths as long as those that were captured, the same ones in other rows, and shorter ones over longer contexts.
    for query_lens, context_lens, rows in (
        ([1, 4, 8, 3], [450, 0, 31, 64], [0, 1, 2, 3]),
        ([8, 3, 1, 4], [50, 7, 100, 9], [1, 2, 4, 6]),
        ([1, 1, 1, 1], [511, 0, 127, 128], [0, 3, 5, 6]),
    ):
        other = make(query_lens, context_lens, rows)
        held.query_starts.copy_(other.query_starts)
        held.used_lens.copy_(other.used_lens)
        held.cache_rows.copy_(other.cache_rows)
        held.batch.positions.copy_(other.batch.positions)
        held.batch.kv_index.copy_(other.batch.kv_index)
        replayed = replay().clone()
        num_tokens = sum(query_lens)
        # Blocks follow the longest query of the pass that was captured: sums may be taken in another order.
        torch.testing.assert_close(replayed[:num_tokens], run(other)[:num_tokens], atol=0.03, rtol=0.03)
        assert not torch.allclose(replayed[:num_tokens], before[:num_tokens], atol=0.03, rtol=0.03)


@torch.inference_mode()
def test_a_captured_step_keeps_what_it_reads(cuda: torch.device) -> None:
    """A graph keeps none of its inputs alive: freed, they would be handed to whoever allocates next."""
    plan = ProfilePlan(max_num_seqs=8, num_speculative_tokens=3, max_num_batched_tokens=512, contexts=(128,))
    decoder = make_decoder(cuda, torch.bfloat16)
    factory = StepFactory(decoder, decoder, plan)
    for point in (plan.verify_point("graph", 8, 24, 128), plan.draft_point("graph", 8, 3)):
        step = factory.make(point)
        before = step.run().clone()
        gc.collect()
        others = [torch.full((1 << size,), -1, device=cuda) for size in range(3, 20) for _ in range(8)]
        assert torch.equal(step.run(), before)
        del others


@torch.inference_mode()
def test_events_agree_with_a_synchronised_wall_clock(cuda: torch.device) -> None:
    """On a graph of some milliseconds, so that what a launch takes is no part of it worth speaking of."""
    left = torch.randn(8192, 8192, device=cuda, dtype=torch.bfloat16)
    replay = Grapher(cuda).capture(lambda: (left @ left @ left)[:4, 0].float())
    device_ms, wall_ms = [], []
    for _ in range(20):
        device_ms.append(time_step(replay, cuda, queued=True).device_ms)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):  # back to back: no gap between them
            replay()
        torch.cuda.synchronize()
        wall_ms.append((time.perf_counter() - start) * 1e3 / 5)
    assert statistics.median(device_ms) == pytest.approx(statistics.median(wall_ms), rel=0.05)


def test_a_profile_of_captured_and_eager_steps(cuda: torch.device, tmp_path: Path) -> None:
    model = LoadedModel(
        name="small",
        folder=tmp_path,
        decoder=make_decoder(cuda, torch.bfloat16),
        weights="random",
        config_sha256="0" * 64,
    )
    plan = ProfilePlan(
        max_num_seqs=4,
        num_speculative_tokens=2,
        max_num_batched_tokens=48,
        context_len=64,
        layouts=get_args(Layout),
    )
    profile = profile_pair(model, model, plan, StoppingRule(min_busy_s=0.0, time_budget_s=60))
    assert profile.complete
    assert profile.environment.graph_kind == "cuda-graph"
    assert profile.environment.sm_count
    for sample in profile.samples:
        assert len(sample.device_ms) == len(sample.repetitions_ms)
    compared = {(costs.num_reqs, costs.k) for costs in tables_from_profile(profile).layout_costs}
    assert compared == {(n, k) for n in (1, 2, 4) for k in range(3)}
