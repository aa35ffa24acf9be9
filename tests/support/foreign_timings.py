"""Files of step timings in the forms that other tools write, made up and small, and what builds them."""

from __future__ import annotations

from typing import Any

STEP_ROWS = """\
num_reqs,num_tokens,context_len,mode,ms
1,1,512,graph,2.0
1,1,512,graph,2.5
4,8,512,graph,3.0
4,16,512,eager,7.0
4,32,512,eager,9.0
"""


def request(query_len: int, kv_len: int, num_draft_tokens: int = 0, chunked: bool = False) -> dict[str, Any]:
    return {"query_len": query_len, "kv_len": kv_len, "num_draft_tokens": num_draft_tokens, "chunked": chunked}


def case(name: str, requests: list[dict[str, Any]], *ranks_us: list[float]) -> dict[str, Any]:
    """One of `vllm bench forward --output-json`."""
    ranks = [
        {
            "num_tokens": sum(each["query_len"] for each in requests),
            "timing_scope": "model",
            "latency_us": {"median": sorted(samples)[len(samples) // 2], "samples_us": samples, "count": len(samples)},
            "graph_vs_eager": 0.5,
        }
        for samples in ranks_us
    ]
    return {"case": name, "requests": requests, "median_us": ranks[0]["latency_us"]["median"], "ranks": ranks}


FORWARD_CASES = [
    case("decode", 4 * [request(1, 1025)], [2000.0, 2010.0, 2020.0]),
    case("verify", 4 * [request(4, 1028, 3)], [2400.0, 2420.0, 2410.0]),
    case("large", 4 * [request(8, 1032, 7)], [3000.0]),
]


def step(num_target_tokens: int, forward_ms: float, drafter_ms: float | None, full_cudagraph: object) -> dict[str, Any]:
    return {
        "forward_ms": forward_ms,
        "drafter_ms": drafter_ms,
        "num_target_tokens": num_target_tokens,
        "num_reqs": min(num_target_tokens, 64),
        "full_cudagraph": full_cudagraph,
    }


STEP_SAMPLES = [
    *(step(8, ms, 0.5, True) for ms in (2.0, 2.1, 9.0)),
    step(128, 4.0, 0.75, True),
    step(192, 6.0, 3.0, False),
    step(256, 8.0, 3.5, False),
]


SPS_BY_TOKENS = {
    "sample_batch_tokens": [8, 16, 32, 64],
    "sample_steps_per_sec": [1000.0, 800.0, 500.0, 400.0],
    "max_batch_tokens": 128,
}
SPS_ADDITIVE = {
    "bias_seconds": 0.1,
    "bs_probes": [4, 8],
    "alpha_seconds": [0.0, 0.008],
    "m_probes": [4, 8, 32],
    "theta_seconds": [0.0, 0.02, 0.1],
}


def record(forward_ct: int, bs: int, tokens: int, **fields: object) -> dict[str, Any]:
    return {"forward_ct": forward_ct, "bs": bs, "num_verify_tokens": tokens, "verify_tokens_graph_key": tokens} | fields


def reqs(*prefix_lens: int) -> dict[str, Any]:
    return {"reqs": [{"rid": str(index), "prefix_len": length} for index, length in enumerate(prefix_lens)]}


DUMP_RECORDS = [
    record(1, 2, 10, verify_tokens_graph_key=16, draft_gpu_ms=0.5, target_verify_gpu_ms=2.0, **reqs(100, 200)),
    record(2, 2, 10, verify_tokens_graph_key=16, draft_gpu_ms=0.6, target_verify_gpu_ms=2.2, **reqs(102, 202)),
    record(3, 1, 3, verify_tokens_graph_key=-1, draft_gpu_ms=0.7, target_verify_gpu_ms=3.0, **reqs(106)),
    record(4, 1, 3, verify_tokens_graph_key=-1, **reqs(106)),
]
DUMP = {"mode": "compact", "gamma": 5, "verify_num_draft_tokens": 6, "components": [], "records": DUMP_RECORDS}

COSTS_ADDITIVE = {
    "token_counts": [0, 64, 160],
    "step_time_ms": [2.0, 3.0, 5.0],
    "fixed_overhead_ms": 10.0,
    "batch_sizes": [8, 32],
    "batch_overhead_ms": [0.0, 1.5],
    "_meta": {"encoding": "decomposed"},
}
COSTS_EXACT = {
    "schema_version": 2,
    "minimum_predicted_gain": 0.02,
    "cost_tables": {
        "64": {"token_counts": [0, 352, 384], "step_time_ms": [6.0, 5.2, 6.5]},
        "128": {"token_counts": [0, 704, 736], "step_time_ms": [8.0, 7.0, 7.2]},
    },
    "engine_fingerprint": {"gpu": "B300", "gpu_count": 8, "max_draft_len": 5, "topology": "DEP8"},
    "engine_fingerprint_sha256": "0" * 64,
    "measurements": [],
}

OPERATORS = ("emb", "input_layernorm", "attn_pre_proj", "post_attention_layernorm", "mlp_up_proj", "add")


def operators(*rows: tuple[int, int, tuple[float, ...]]) -> str:
    """Rows of (tokens, workers, median of each operator)."""
    header = [f"time_stats.{name}.{statistic}" for name in OPERATORS for statistic in ("max", "median")]
    lines = [",".join([*header, "n_head", "num_tokens", "num_tensor_parallel_workers"])]
    for num_tokens, workers, medians in rows:
        cells = [str(ms) for median in medians for ms in (99.0, median)]
        lines.append(",".join([*cells, "32", str(num_tokens), str(workers)]))
    return "\n".join(lines) + "\n"


OPERATOR_TIMES = operators(
    (8, 1, (0.5, 0.125, 1.0, 0.25, 2.0, 0.0625)),
    (4, 1, (0.5, 0.125, 1.0, 0.25, 1.0, 0.0625)),
    (8, 4, (0.5, 0.125, 0.5, 0.25, 1.0, 0.0625)),
)
