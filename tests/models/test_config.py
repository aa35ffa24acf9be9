"""config.json as it comes, and as it must not come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specplan.errors import ConfigError, FileError, SpecplanError
from specplan.models.config import Llama3RopeScaling, read_config

LLAMA_31_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def write_config(folder: Path, config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_reads_llama_31(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, LLAMA_31_8B))
    assert (config.kv_heads, config.head_size, config.eos_token_ids) == (8, 128, frozenset({128001, 128008, 128009}))
    assert config.rope_scaling == Llama3RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )


def test_both_spellings_of_rope_are_one(tmp_path: Path) -> None:
    newer = {key: value for key, value in LLAMA_31_8B.items() if not key.startswith("rope_")}
    newer["rope_parameters"] = {"rope_theta": 500000.0, **LLAMA_31_8B["rope_scaling"]}
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    assert read_config(write_config(tmp_path / "old", LLAMA_31_8B)) == read_config(
        write_config(tmp_path / "new", newer)
    )


def test_optional_fields_fall_back_as_in_hugging_face(tmp_path: Path) -> None:
    bare = {key: LLAMA_31_8B[key] for key in ("model_type", "vocab_size", "hidden_size", "intermediate_size")}
    config = read_config(write_config(tmp_path, {**bare, "num_hidden_layers": 1, "num_attention_heads": 32}))
    assert (config.kv_heads, config.head_size, config.eos_token_ids) == (32, 128, frozenset())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2', expected one of llama, mistral"),
        ({"num_key_value_heads": 5}, "32 attention heads do not divide over 5 KV heads"),
        ({"head_dim": 127}, "head_dim is 127, expected an even number"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"attention_bias": True}, "attention_bias is True, which is not supported"),
        ({"sliding_window": 4096}, "sliding_window is 4096, which is not supported"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected at least 1"),
        ({"hidden_size": "wide"}, "Expected `int`, got `str` - at `$.hidden_size`"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "Invalid value 'yarn' - at `$.rope_scaling.rope_type`",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_the_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(write_config(tmp_path, LLAMA_31_8B | change))
    assert message in caught.value.message
    assert "config.json" in caught.value.message


def test_no_model_no_json_no_object(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no model at"):
        read_config(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FileError, match="cannot be read as JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(FileError, match="expected a JSON object, got list"):
        read_config(tmp_path)


def test_every_refusal_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(SpecplanError) as caught:
        read_config(tmp_path / "nowhere")
    assert "tiny" in caught.value.hint
