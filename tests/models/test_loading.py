"""Weights from a folder: the right ones, none at all, and the wrong ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specplan.errors import FileError
from specplan.models import Decoder, DenseAttention, load_model, load_tokenizer
from specplan.models.config import read_config

CPU = torch.device("cpu")
CONFIG = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": request.param}))
    return tmp_path


def checkpoint(folder: Path) -> tuple[Decoder, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    decoder = Decoder(read_config(folder)).eval()
    state = {key: tensor.clone() for key, tensor in decoder.state_dict().items()}
    if decoder.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return decoder, state


def logits(decoder: Decoder) -> torch.Tensor:
    ids = torch.arange(20)
    with torch.inference_mode():
        return decoder.logits(decoder(ids, ids, DenseAttention(1)))


@pytest.mark.parametrize("shards", [1, 2])
def test_weights_load_as_they_were_saved(folder: Path, shards: int) -> None:
    decoder, state = checkpoint(folder)
    if shards == 1:
        save_file(state, folder / "model.safetensors")
    else:
        keys = sorted(state)
        parts = {f"part-{i}.safetensors": keys[i::shards] for i in range(shards)}
        for name, part in parts.items():
            save_file({key: state[key] for key in part}, folder / name)
        weight_map = {key: name for name, part in parts.items() for key in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded = load_model(str(folder), "target", device=CPU, dtype=torch.float32)
    assert loaded.weights == "loaded"
    assert torch.equal(logits(loaded.decoder), logits(decoder))


def test_stored_bfloat16_computes_in_float32(folder: Path) -> None:
    _, state = checkpoint(folder)
    save_file({key: tensor.bfloat16() for key, tensor in state.items()}, folder / "model.safetensors")
    loaded = load_model(str(folder), "target", device=CPU, dtype=torch.float32)
    assert logits(loaded.decoder).dtype == torch.float32
    assert {parameter.dtype for parameter in loaded.decoder.parameters()} == {torch.float32}


def test_a_bare_config_runs_with_random_weights(folder: Path) -> None:
    first, again, other = (
        load_model(str(folder), "draft", device=CPU, dtype=torch.float32, seed=seed) for seed in (0, 0, 1)
    )
    assert first.weights == "random"
    assert logits(first.decoder).isfinite().all()
    assert torch.equal(logits(first.decoder), logits(again.decoder))
    assert not torch.equal(logits(first.decoder), logits(other.decoder))
    assert first.decoder.num_params == Decoder(read_config(folder)).num_params


@pytest.mark.parametrize("fault", ["missing", "shape", "extra"])
def test_weights_that_do_not_fit_are_refused_by_name(folder: Path, fault: str) -> None:
    _, state = checkpoint(folder)
    key = "model.layers.1.mlp.up_proj.weight"
    if fault == "missing":
        del state[key]
    elif fault == "shape":
        state[key] = state[key][:-1].clone()
    else:
        key = "model.layers.1.self_attn.q_proj.bias"
        state[key] = torch.zeros(32)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(FileError) as caught:
        load_model(str(folder), "target", device=CPU, dtype=torch.float32)
    assert key in caught.value.message


def test_broken_files_are_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(FileError, match=r"model.safetensors cannot be read as safetensors"):
        load_model(str(folder), "target", device=CPU, dtype=torch.float32)
    (folder / "model.safetensors.index.json").write_text('{"weights": 1}')
    with pytest.raises(FileError, match="does not list weights"):
        load_model(str(folder), "target", device=CPU, dtype=torch.float32)
    with pytest.raises(FileError, match="no tokenizer at"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(FileError, match="is not a tokenizer"):
        load_tokenizer(folder)
