"""Vidur's profile of a model's operators (its `mlp.csv`): times of each operator, by tokens, summed over the layers."""

from __future__ import annotations

import os

from specplan.errors import ConfigError, FileError
from specplan.interop.rows import Row, names, read_table
from specplan.interop.timings import Facts, Timing, Timings

__all__ = ["read_vidur"]

_ONCE = "emb"


def read_vidur(path: str | os.PathLike[str], *, num_layers: int | None, tensor_parallel_size: int | None) -> Timings:
    """An approximation: medians (`time_stats.*.median`, ms) of every operator x `num_layers`, the embedding once.

    Attention and lm_head are not in the file, nor, for GPUs that share a layer, the all-reduce; neither is anything
    between kernels. Without attention neither contexts nor requests matter: the context is 0.

    Args:
        tensor_parallel_size: Which rows to take, where the file holds several.
    """
    if num_layers is None:
        raise ConfigError(
            f"{path}: the file holds the operators of one layer, and does not say how many the model has",
            "give --num-layers N: 32 for Llama-2-7B",
        )
    rows = read_table(path)
    sizes = sorted({row.count("num_tensor_parallel_workers") for row in rows})
    size = sizes[0] if len(sizes) == 1 and tensor_parallel_size is None else tensor_parallel_size
    if size not in sizes:
        raise ConfigError(
            f"{path}: holds rows of {names(map(str, sizes))} tensor-parallel workers, and "
            f"{'none is chosen' if size is None else f'--tensor-parallel-size says {size}'}",
            f"choose one of them: --tensor-parallel-size {sizes[0]}",
        )
    return Timings(
        label=f"Vidur operator times x {num_layers} layers, an approximation",
        timing_scope="kernel times of each operator, summed; attention, lm_head, all-reduce, gaps between kernels, "
        "sampling and the host are left out",
        timings=[_timing(row, num_layers) for row in rows if row.count("num_tensor_parallel_workers") == size],
        told=Facts(tensor_parallel_size=size),
    )


def _timing(row: Row, num_layers: int) -> Timing:
    operators = {
        name.removeprefix("time_stats.").removesuffix(".median"): row.at_least_0(name)
        for name in row.fields
        if name.startswith("time_stats.") and name.endswith(".median")
    }
    if "mlp_up_proj" not in operators:
        raise FileError(
            f"{row.place}: no time_stats.mlp_up_proj.median among its columns ({names(row.fields)})",
            "give Vidur's mlp.csv; its other files are not of whole layers",
        )
    layer_ms = sum(ms for name, ms in operators.items() if name != _ONCE)
    if "post_attention_layernorm" in operators:
        # Such a layer adds to the residual after attention too, where Vidur does not time it.
        layer_ms += operators.get("add", 0.0)
    return Timing(
        place=row.place,
        num_tokens=row.count("num_tokens"),
        context_len=0,
        repetitions_ms=(num_layers * layer_ms + operators.get(_ONCE, 0.0),),
    )
