"""A Llama decoder over flat tokens: every pass is one row of tokens, whatever requests they belong to.

The modules bear Hugging Face's names, so that a checkpoint's tensors load as they are. How queries and keys are turned,
what attends to what, and where keys and values are kept, is the business of the `Attention` handed to a pass
(models/attention.py): training, decoding and multi-query verification differ in nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specplan.models.attention import Attention
from specplan.models.config import DecoderConfig
from specplan.models.rope import Rope, rope_rotation

__all__ = ["Decoder"]


class Decoder(nn.Module):
    """RMSNorm, RoPE, grouped-query attention, SwiGLU; tied or untied embeddings."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie_weights()
        self.rope_cos: Tensor  # [max_position_embeddings, head_size / 2] float32
        self.rope_sin: Tensor
        self.register_buffer("rope_cos", torch.empty(0), persistent=False)
        self.register_buffer("rope_sin", torch.empty(0), persistent=False)
        self.fill_rope()

    def tie_weights(self) -> None:
        """Lets the head share the embedding's weight, if the config says so; needed again after a move off `meta`."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def fill_rope(self) -> None:
        """Computes the rotation tables on the embedding's device; needed again after a move off `meta`."""
        rotation = rope_rotation(self.config, self.model.embed_tokens.weight.device)
        self.rope_cos, self.rope_sin = rotation.cos(), rotation.sin()

    def forward(
        self,
        token_ids: Tensor,  # [num_tokens] int64
        positions: Tensor,  # [num_tokens] int64
        attention: Attention,
    ) -> Tensor:  # [num_tokens, hidden_size]
        """The normed hidden states of one pass; `logits` turns those that are needed into logits."""
        hidden: Tensor = self.model.embed_tokens(token_ids)
        # Moved to another dtype, a decoder takes its tables along: `float` copies nothing where they stayed float32.
        cos, sin = (table[positions].unsqueeze(1).float() for table in (self.rope_cos, self.rope_sin))
        for index, layer in enumerate(self.model.layers):
            hidden = layer(hidden, (cos, sin), index, attention)
        normed: Tensor = self.model.norm(hidden)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:  # [n, hidden_size] -> [n, vocab_size]
        """The language-model head."""
        out: Tensor = self.lm_head(hidden)
        return out

    @property
    def num_params(self) -> int:
        """Parameters, tied ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


class Trunk(nn.Module):
    """The `model.` part of a checkpoint."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class DecoderLayer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config)
        self.mlp = SwiGLU(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: Tensor, rope: Rope, layer: int, attention: Attention) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rope, layer, attention)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class SelfAttention(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        query_size = config.num_attention_heads * config.head_size
        kv_size = config.kv_heads * config.head_size
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, rope: Rope, layer: int, attention: Attention) -> Tensor:
        num_tokens = hidden.shape[0]
        query = self.q_proj(hidden).view(num_tokens, -1, self.head_size)
        key = self.k_proj(hidden).view(num_tokens, -1, self.head_size)
        value = self.v_proj(hidden).view(num_tokens, -1, self.head_size)
        attended = attention.attend(layer, query, key, value, rope)
        out: Tensor = self.o_proj(attended.reshape(num_tokens, -1))
        return out


class SwiGLU(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out
