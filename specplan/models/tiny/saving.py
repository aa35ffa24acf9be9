"""A model's folder as Hugging Face and specplan both read it: config.json, model.safetensors, tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from safetensors.torch import save
from tokenizers import Tokenizer

from specplan.files._atomic import write_atomically
from specplan.models.decoder import Decoder
from specplan.models.tiny.corpus import END_OF_TEXT

__all__ = ["save_model", "write_json"]


def save_model(folder: Path, model: Decoder, tokenizer: Tokenizer) -> None:
    """Writes the three files; weights are rounded to bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    shape = {name: value for name, value in msgspec.to_builtins(model.config).items() if value is not None}
    write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            **shape,
            "bos_token_id": end_of_text,
            "eos_token_id": end_of_text,
            "torch_dtype": "bfloat16",
        },
    )
    write_atomically(folder / "tokenizer.json", tokenizer.to_str().encode())
    tensors = {name: tensor.bfloat16().contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    write_atomically(folder / "model.safetensors", save(tensors, metadata={"format": "pt"}))


def write_json(path: Path, content: object) -> None:
    write_atomically(path, json.dumps(content, indent=2).encode() + b"\n")
