"""Decoders built from a Hugging Face `config.json`: what the device runs when a step is measured or recorded."""

from specplan.models.attention import Attention, DenseAttention, RaggedBatch, cached_attention
from specplan.models.cache import KVCache
from specplan.models.config import DecoderConfig, read_config
from specplan.models.decoder import Decoder
from specplan.models.loading import LoadedModel, load_model, load_shared_tokenizer, load_tokenizer

__all__ = [
    "Attention",
    "Decoder",
    "DecoderConfig",
    "DenseAttention",
    "KVCache",
    "LoadedModel",
    "RaggedBatch",
    "cached_attention",
    "load_model",
    "load_shared_tokenizer",
    "load_tokenizer",
    "read_config",
]
