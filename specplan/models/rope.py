"""Rotary position embedding (RoPE): by how much a model turns each pair of elements, and the turning."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from specplan.models.config import DecoderConfig, Llama3RopeScaling

__all__ = ["Rope", "rope_rotation", "rotate", "stretch_frequencies"]

# Cosine and sine of a pass's tokens, each [num_tokens, 1, head_size / 2] float32.
Rope: TypeAlias = tuple[Tensor, Tensor]


def rotate(
    heads: Tensor,  # [num_tokens, num_heads, head_size]
    rope: Rope,
) -> Tensor:  # as heads
    """Turns pairs in the half-split order of Hugging Face checkpoints: element i with element i + head_size / 2.

    out_i = x_i cos_i - x_j sin_i and out_j = x_j cos_i + x_i sin_i, j = i + head_size / 2, in float32 and rounded once.
    """
    cos, sin = rope
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)


def rope_rotation(config: DecoderConfig, device: torch.device) -> Tensor:  # [max_position_embeddings, head_size / 2]
    """The angle by which each pair turns at each position: position * theta^(-2i / head_size), in float32."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.float32, device=device) / config.head_size
    frequencies = config.rope_theta**-exponents
    if config.rope_scaling is not None:
        frequencies = stretch_frequencies(frequencies, config.rope_scaling)
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float32, device=device)
    return torch.outer(positions, frequencies)


def stretch_frequencies(frequencies: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Llama 3.1: waves longer than the trained context slow down by `factor`, short ones stay, those between blend."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)  # over the trained context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(frequencies / scaling.factor, frequencies, blend.clamp(0, 1))
