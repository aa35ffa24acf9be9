"""From prompts to a trace file's contents: texts in, figures out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from specplan.engine.recorder import record_pair
from specplan.errors import ConfigError, FileError
from specplan.files import Trace, TraceMetadata
from specplan.models import LoadedModel, load_shared_tokenizer

__all__ = ["read_prompts", "record_trace", "tokenize"]


class Prompt(msgspec.Struct):
    """A line of a prompts file; other fields are left alone."""

    prompt: str


def read_prompts(path: Path) -> list[str]:
    """The prompts of a JSONL file, one object with a `prompt` a line; blank lines are passed over."""
    hint = 'expected JSONL, one object a line: {"prompt": "..."}'
    try:
        # Not splitlines: JSON strings may hold U+2028 and other ends of line as they are.
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise FileError(f"no prompts file at {path}", f"check the path; {hint}") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", "check the path and its permissions") from None
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8: {error}", hint) from None
    prompts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                prompts.append(msgspec.json.decode(line, type=Prompt).prompt)
            except msgspec.DecodeError as error:
                raise FileError(f"{path}, line {number}: {error}", hint) from None
    if not prompts:
        raise FileError(f"{path} holds no prompts", hint)
    return prompts


def tokenize(target: LoadedModel, draft: LoadedModel, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of each prompt, in the vocabulary that the pair shares. Raises ConfigError where it shares none."""
    tokenizer = load_shared_tokenizer(target.folder, draft.folder)
    for model in (target, draft):
        if tokenizer.get_vocab_size() > model.decoder.config.vocab_size:
            raise ConfigError(
                f"the tokenizer has {tokenizer.get_vocab_size()} tokens, and {model.folder} knows "
                f"{model.decoder.config.vocab_size}",
                "use the tokenizer.json that belongs to the model",
            )
    return [tokenizer.encode(prompt).ids for prompt in prompts]


def record_trace(
    target: LoadedModel,
    draft: LoadedModel,
    prompts: Sequence[str],
    *,
    source: str,
    k: int,
    max_output_tokens: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Trace:
    """A dense greedy trace of the pair over the prompts, in their order.

    Requests all arrive at once: the order is what a closed loop needs. Raises ConfigError for models without trained
    weights, with different tokenizers, or too short for a prompt and its output.
    """
    for model in (target, draft):
        if model.weights == "random":
            raise ConfigError(
                f"{model.folder} has no weights, and a trace of random ones says nothing",
                "add model.safetensors to the folder; specplan validate --impose times a pair without",
            )
        if not all(bool(parameter.isfinite().all()) for parameter in model.decoder.parameters()):
            raise FileError(f"the weights in {model.folder} are not all finite", "restore the model's weights")
    if k < 1 or max_output_tokens < 1:
        raise ConfigError(
            f"K is {k} and the output {max_output_tokens} tokens, expected at least 1 of each",
            "raise -k or --max-output-tokens",
        )
    requests = record_pair(
        target.decoder,
        draft.decoder,
        tokenize(target, draft, prompts),
        k=k,
        max_output_tokens=max_output_tokens,
        eos_token_ids=target.decoder.config.eos_token_ids,
        on_progress=on_progress,
    )
    output_lens = np.array([len(request.accepted_len) for request in requests], dtype=np.int32)
    num_rows = int(output_lens.sum())
    return Trace(
        metadata=TraceMetadata(
            kind="dense",
            sampling="greedy",
            num_speculative_tokens=k,
            target=target.name,
            draft=draft.name,
            tokenizer=target.name,
            source=source,
            provenance={
                "target_config_sha256": target.config_sha256,
                "draft_config_sha256": draft.config_sha256,
                "target_weights_sha256": target.weights_sha256(),
                "draft_weights_sha256": draft.weights_sha256(),
                "max_output_tokens": max_output_tokens,
                "dtype": str(target.decoder.model.embed_tokens.weight.dtype).removeprefix("torch."),
            },
        ),
        request=np.repeat(np.arange(len(requests), dtype=np.int32), output_lens),
        position=np.concatenate([np.arange(length, dtype=np.int32) for length in output_lens]),
        confidence=np.concatenate([request.confidence for request in requests]),
        accepted_len=np.concatenate([request.accepted_len for request in requests]),
        verified_len=np.full(num_rows, k, dtype=np.int32),
        arrival_s=np.zeros(len(requests)),
        prompt_len=np.array([request.prompt_len for request in requests], dtype=np.int32),
        output_len=output_lens,
    )
