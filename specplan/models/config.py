"""A decoder's shape, read from a Hugging Face `config.json` of the Llama family."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import msgspec

from specplan.errors import ConfigError, FileError

__all__ = ["CONFIG_FILE", "DecoderConfig", "Llama3RopeScaling", "config_sha256", "read_config"]

CONFIG_FILE = "config.json"
# Mistral without a sliding window is Llama under another name.
SUPPORTED_MODEL_TYPES = ("llama", "mistral")


class Llama3RopeScaling(msgspec.Struct, frozen=True, kw_only=True, tag="llama3", tag_field="rope_type"):
    """Llama 3.1's stretch of the low RoPE frequencies to contexts longer than it was trained on."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `config.json` that decide what runs; names are Hugging Face's, other fields are ignored."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Llama3RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self) -> None:
        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.max_position_embeddings,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}, expected at least 1")
        for name, value in (("rms_norm_eps", self.rms_norm_eps), ("rope_theta", self.rope_theta)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}, expected a positive number")
        if self.model_type not in SUPPORTED_MODEL_TYPES:
            raise ValueError(f"model_type is {self.model_type!r}, expected one of {', '.join(SUPPORTED_MODEL_TYPES)}")
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(f"{self.num_attention_heads} attention heads do not divide over {self.kv_heads} KV heads")
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} does not divide over {self.num_attention_heads} heads")
        if self.head_size < 2 or self.head_size % 2:
            raise ValueError(f"head_dim is {self.head_size}, expected an even number, for RoPE turns pairs")
        if self.hidden_act != "silu":
            raise ValueError(f"hidden_act is {self.hidden_act!r}, expected 'silu'")
        for name in ("attention_bias", "mlp_bias", "sliding_window"):
            if getattr(self, name):
                raise ValueError(f"{name} is {getattr(self, name)!r}, which is not supported")

    @property
    def kv_heads(self) -> int:
        """KV heads; as many as attention heads where the file names none."""
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end an output."""
        ids = [] if self.eos_token_id is None else self.eos_token_id
        return frozenset([ids] if isinstance(ids, int) else ids)

    @property
    def head_size(self) -> int:
        """Elements per head."""
        return self.hidden_size // self.num_attention_heads if self.head_dim is None else self.head_dim


def read_config(folder: Path) -> DecoderConfig:
    """Reads `folder/config.json`; anything that cannot run here is refused with the field named."""
    path = folder / CONFIG_FILE
    try:
        raw: Any = msgspec.json.decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise FileError(
            f"no model at {folder}: expected a folder with a {CONFIG_FILE}",
            "give a Hugging Face style model folder, or 'tiny' for the embedded pair",
        ) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read as JSON: {error}", "restore the model's config.json") from None
    if not isinstance(raw, dict):
        raise FileError(f"{path}: expected a JSON object, got {type(raw).__name__}", "restore the model's config.json")
    try:
        return msgspec.convert(_without_dialects(raw), DecoderConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}", "specplan runs decoders of the Llama family (docs/models.md)") from None


def config_sha256(folder: Path) -> str:
    """Digest of the model's `config.json`, which binds a profile to the model it was measured on."""
    return hashlib.sha256((folder / CONFIG_FILE).read_bytes()).hexdigest()


def _without_dialects(raw: dict[str, Any]) -> dict[str, Any]:
    """One spelling for RoPE: newer files hold `rope_parameters`, older ones `rope_theta` and `rope_scaling`."""
    fields = dict(raw)
    rope = fields.pop("rope_parameters", None) or fields.pop("rope_scaling", None)
    fields["rope_scaling"] = rope
    if isinstance(rope, dict):
        fields["rope_scaling"] = None
        rope = dict(rope)
        if "rope_theta" in rope:
            fields["rope_theta"] = rope.pop("rope_theta")
        rope.setdefault("rope_type", rope.pop("type", "default"))
        if rope["rope_type"] != "default":
            fields["rope_scaling"] = rope
    return fields
