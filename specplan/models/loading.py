"""From a name or a folder to a decoder ready to run: the embedded pair, or any Hugging Face style Llama folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import torch
from torch import Tensor

from specplan.errors import ConfigError, FileError, MeasurementError
from specplan.models.config import config_sha256, read_config
from specplan.models.decoder import Decoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["EMBEDDED", "LoadedModel", "Role", "load_model", "load_shared_tokenizer", "load_tokenizer"]

Role = Literal["target", "draft"]
EMBEDDED = "tiny"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FOREIGN_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".safetensors")
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A decoder and where it came from. `weights` is `random` for a folder that holds a config.json alone."""

    name: str
    folder: Path
    decoder: Decoder
    weights: Literal["loaded", "random"]
    config_sha256: str

    def weights_sha256(self) -> str:
        """Digest of the weights as stored: two trainings of one architecture differ in nothing else."""
        digest = hashlib.sha256()
        for file in weight_files(self.folder):
            with file.open("rb") as stored:
                while block := stored.read(1 << 24):
                    digest.update(block)
        return digest.hexdigest()


def load_model(name: str, role: Role, *, device: torch.device, dtype: torch.dtype, seed: int = 0) -> LoadedModel:
    """Loads the model called `name`: 'tiny', whose role picks the target or the draft, or a folder.

    A folder without weights runs with random ones of standard deviation 0.02: enough to time a step, useless to record.
    """
    folder = Path(__file__).parent / "tiny" / role if name == EMBEDDED else Path(name)
    config = read_config(folder)
    files = weight_files(folder)
    with torch.device("meta"):
        decoder = Decoder(config)
    try:
        if files:
            state: dict[str, Tensor] = {}
            for file in files:
                state |= read_safetensors(file, device)
            require_matching(state, decoder, folder)
            state = {key: tensor.to(dtype) for key, tensor in state.items()}
            decoder.load_state_dict(state, strict=False, assign=True)
        else:
            decoder = decoder.to(dtype).to_empty(device=device)
            randomise(decoder, seed)
        decoder.tie_weights()
        decoder.fill_rope()
    except (RuntimeError, MemoryError) as error:  # allocators raise nothing more specific
        raise MeasurementError(
            f"no memory on {device} for {folder}, a model of {decoder.num_params:,} parameters: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}",
            "use a device with more memory, or a smaller model",
        ) from error
    return LoadedModel(
        name=name if name == EMBEDDED else folder.resolve().name,
        folder=folder,
        decoder=decoder.requires_grad_(False).eval(),
        weights="loaded" if files else "random",
        config_sha256=config_sha256(folder),
    )


def load_tokenizer(folder: Path) -> Tokenizer:
    """The folder's tokenizer.json."""
    from tokenizers import Tokenizer

    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise FileError(f"no tokenizer at {path}", "add the model's tokenizer.json to its folder")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - tokenizers raises plain Exception
        raise FileError(f"{path} is not a tokenizer: {error}", "restore the model's tokenizer.json") from None


def load_shared_tokenizer(target: Path, draft: Path) -> Tokenizer:
    """The tokenizer of both: speculation compares token ids, which means nothing across two vocabularies."""
    tokenizer = load_tokenizer(target)
    vocabularies = [tokenizer.get_vocab(), load_tokenizer(draft).get_vocab()]
    if vocabularies[0] != vocabularies[1]:
        raise ConfigError(
            f"the tokenizers of {target} and {draft} differ ({len(vocabularies[0])} and {len(vocabularies[1])} tokens)",
            "choose a draft that shares the target's tokenizer",
        )
    return tokenizer


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors: one file, or the shards that an index names; none for a bare config.json."""
    index = folder / INDEX_FILE
    if not index.is_file():
        single = folder / WEIGHTS_FILE
        if not single.is_file():
            refuse_other_weights(folder)
            return []
        return [single]
    try:
        weight_map = msgspec.json.decode(index.read_bytes())["weight_map"]
        shards = sorted({folder / shard for shard in weight_map.values()})
    except (OSError, msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{index} does not list weights: {error}", "restore the model's index file") from None
    return shards


def refuse_other_weights(folder: Path) -> None:
    """Weights in another form must not be taken for none: the model would run with random ones."""
    found = sorted(path.name for path in folder.iterdir() if path.suffix in FOREIGN_WEIGHTS)
    if found:
        raise FileError(
            f"{folder} holds {found[0]}, and no {WEIGHTS_FILE} or {INDEX_FILE}",
            "convert the weights to safetensors, or remove them to run with random ones",
        )


def read_safetensors(path: Path, device: torch.device) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path, device=str(device))
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be read as safetensors: {error}", "restore the model's weights") from None


def require_matching(state: dict[str, Tensor], decoder: Decoder, folder: Path) -> None:
    """Every tensor the config asks for is there, in its shape, and no other."""
    expected = {key: tuple(tensor.shape) for key, tensor in decoder.state_dict().items()}
    if decoder.config.tie_word_embeddings:
        expected.pop("lm_head.weight")
        state.pop("lm_head.weight", None)
    # Old checkpoints store the rotation's frequencies, which follow from the config.
    found = {key: tuple(tensor.shape) for key, tensor in state.items() if not key.endswith("rotary_emb.inv_freq")}
    integers = sorted(key for key in found if not state[key].is_floating_point())
    if integers:
        raise FileError(
            f"{integers[0]} in {folder} is {state[integers[0]].dtype}: quantised weights are not supported",
            "use the model's bfloat16, float16 or float32 weights",
        )
    wrong = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    if wrong:
        key = wrong[0]
        raise FileError(
            f"the weights in {folder} do not fit its config.json: {key} is {found.get(key, 'absent')}, "
            f"expected {expected.get(key, 'absent')} ({len(wrong)} such tensors)",
            "use the config.json that belongs to these weights; specplan runs the Llama family (docs/models.md)",
        )


def randomise(decoder: Decoder, seed: int) -> None:
    """Fills every matrix from a normal distribution of deviation 0.02 and every norm with ones."""
    generator = torch.Generator(device=decoder.model.embed_tokens.weight.device).manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02, generator=generator)
