"""Trains the embedded tiny pair on two CPU cores: `python -m specplan.models.tiny.train --corpus DIR --out DIR`.

A tokenizer, a target, and a draft distilled from it, in that order. Each part is in --out as soon as it exists, and
--resume goes on from a target that is there. Models are rounded to bfloat16, as stored, before anything is measured.
"""

from __future__ import annotations

import argparse
import logging
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specplan.files._atomic import write_atomically
from specplan.models.config import DecoderConfig
from specplan.models.decoder import Decoder
from specplan.models.loading import load_model, load_tokenizer
from specplan.models.tiny.card import render_card
from specplan.models.tiny.corpus import VOCAB_SIZE, Mixture, read_corpus, token_stream, train_tokenizer
from specplan.models.tiny.distil import distil_loss, greedy_rows
from specplan.models.tiny.evaluate import Evaluation, judge
from specplan.models.tiny.fitting import fit, initialise, next_token_loss, round_to_bfloat16
from specplan.models.tiny.saving import save_model, write_json

__all__ = ["Recipe", "main", "train_pair"]

log = logging.getLogger(__name__)


def tiny_config(*, hidden: int, layers: int, intermediate: int, heads: int, kv_heads: int) -> DecoderConfig:
    return DecoderConfig(
        model_type="llama",
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is made of; the optimizers' settings are in fitting.py."""

    minutes: float  # for the whole run
    compiled: bool = False
    target: DecoderConfig = tiny_config(hidden=256, layers=4, intermediate=768, heads=4, kv_heads=2)
    draft: DecoderConfig = tiny_config(hidden=128, layers=1, intermediate=384, heads=2, kv_heads=1)
    seed: int = 1
    shares: tuple[tuple[str, float], ...] = (("code", 0.5), ("maths", 0.35), ("plays", 0.15))  # of the training rows
    # Shares of the minutes; what is left is for the tokenizer and the evaluation.
    target_time: float = 0.56
    greedy_time: float = 0.10
    draft_time: float = 0.26
    tokens_per_step: int = 4096
    draft_tokens_per_step: int = 8192
    row_len: int = 256
    long_row_len: int = 512  # the target's rows in the last part of its time
    long_rows_from: float = 0.7
    greedy_from: float = 0.5  # of the draft's time: rows of the target's own text from there
    evaluation: Evaluation = Evaluation()


def main(argv: list[str] | None = None) -> None:
    """Parses, trains, writes."""
    parser = argparse.ArgumentParser(prog="python -m specplan.models.tiny.train", description=__doc__)
    parser.add_argument("--corpus", type=Path, help="folder with the plays and the maths; code alone without it")
    parser.add_argument("--out", type=Path, required=True, help="folder for target/, draft/, TRAINING.json, README.md")
    parser.add_argument("--minutes", type=float, default=14.0, help="for the whole run (default 14)")
    parser.add_argument("--resume", action="store_true", help="keep the target that --out already holds")
    parser.add_argument("--compile", action="store_true", help="a fifth more steps; needs a C++ compiler")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(2)
    recipe = Recipe(minutes=options.minutes, compiled=options.compile)
    train_pair(recipe, corpus_folder=options.corpus, out=options.out, resume=options.resume)


def train_pair(recipe: Recipe, *, corpus_folder: Path | None, out: Path, resume: bool = False) -> dict[str, Any]:
    """The whole run; returns what TRAINING.json holds."""
    timer = Timer()
    corpus = read_corpus(corpus_folder)
    resume = resume and (out / "target" / "model.safetensors").is_file()
    tokenizer = load_tokenizer(out / "target") if resume else train_tokenizer(corpus)
    streams = {kind: token_stream(tokenizer, documents.train) for kind, documents in corpus.items()}
    held_out = {kind: token_stream(tokenizer, documents.held_out) for kind, documents in corpus.items()}
    num_bytes = {kind: sum(len(text.encode()) for text in documents.held_out) for kind, documents in corpus.items()}
    record: dict[str, Any] = {
        "command": command_line(recipe, with_corpus=corpus_folder is not None, resume=resume),
        "recipe": msgspec.to_builtins(recipe),
        "trained_on": {
            kind: {"train_tokens": len(streams[kind]), "held_out_tokens": len(held_out[kind]), "held_out_bytes": size}
            for kind, size in sorted(num_bytes.items())
        },
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
        },
        "tokenizer": {"vocab_size": tokenizer.get_vocab_size(), "minutes": timer.lap()},
    }
    log.info("training text: %s", ", ".join(f"{kind} {len(s) / 1e6:.2f}M tokens" for kind, s in streams.items()))

    if resume:
        target = load_model(str(out / "target"), "target", device=torch.device("cpu"), dtype=torch.float32).decoder
        record["target"] = msgspec.json.decode((out / "TRAINING.json").read_bytes())["target"]
    else:
        target = Decoder(recipe.target)
        record["target"] = train_target(target, recipe, streams)
        save_model(out / "target", target, tokenizer)
        write_json(out / "TRAINING.json", record)
    timer.lap()

    own_text = greedy_rows(
        target,
        Mixture(streams, dict(recipe.shares), recipe.seed + 1),
        row_len=recipe.row_len + 1,
        seconds=60 * recipe.minutes * recipe.greedy_time,
    )
    record["greedy"] = {"rows": len(own_text), "minutes": timer.lap()}
    draft = Decoder(recipe.draft)
    record["draft"] = train_draft(draft, target, recipe, streams, own_text)
    save_model(out / "draft", draft, tokenizer)
    timer.lap()

    record["held_out"] = {
        kind: judge(target, draft, held_out[kind], num_bytes[kind], recipe.evaluation) for kind in sorted(held_out)
    }
    record["evaluation"] = {"minutes": timer.lap()}
    write_json(out / "TRAINING.json", record)
    write_atomically(out / "README.md", render_card(record).encode())
    for kind, figures in record["held_out"].items():
        log.info("%s: %s", kind, figures)
    return record


def command_line(recipe: Recipe, *, with_corpus: bool, resume: bool) -> str:
    """What to type for the same again; folders are the reader's own."""
    options = {"--corpus DIR": with_corpus, "--compile": recipe.compiled, "--resume": resume}
    chosen = [option for option, given in options.items() if given]
    return " ".join(["python -m specplan.models.tiny.train --out DIR", f"--minutes {recipe.minutes:g}", *chosen])


def train_target(target: Decoder, recipe: Recipe, streams: dict[str, NDArray[np.int64]]) -> dict[str, Any]:
    """Trains on the corpus, the last part on longer rows; returns the record."""
    initialise(target, recipe.seed)
    mixture = Mixture(streams, dict(recipe.shares), recipe.seed)

    def batch(progress: float) -> Tensor:
        row_len = recipe.row_len if progress < recipe.long_rows_from else recipe.long_row_len
        return mixture.rows(recipe.tokens_per_step // row_len, row_len + 1)

    loss = maybe_compile(lambda rows: next_token_loss(target, rows), recipe)
    fitted = fit(target, batch, loss, seconds=60 * recipe.minutes * recipe.target_time)
    round_to_bfloat16(target)
    return {"num_params": target.num_params, **asdict(fitted)}


def train_draft(
    draft: Decoder,
    target: Decoder,
    recipe: Recipe,
    streams: dict[str, NDArray[np.int64]],
    own_text: Tensor,  # [num_rows, row_len + 1], the target's greedy continuations
) -> dict[str, Any]:
    """Trains on what the target would say, first over the corpus, then over its own text; returns the record."""
    initialise(draft, recipe.seed)
    mixture = Mixture(streams, dict(recipe.shares), recipe.seed + 2)
    rng = np.random.default_rng(recipe.seed)
    num_rows = recipe.draft_tokens_per_step // recipe.row_len

    def batch(progress: float) -> Tensor:
        if progress < recipe.greedy_from:
            return mixture.rows(num_rows, recipe.row_len + 1)
        return own_text[torch.from_numpy(rng.integers(len(own_text), size=num_rows))]

    loss = maybe_compile(lambda rows: distil_loss(draft, target, rows), recipe)
    fitted = fit(draft, batch, loss, seconds=60 * recipe.minutes * recipe.draft_time)
    round_to_bfloat16(draft)
    return {"num_params": draft.num_params, **asdict(fitted)}


def maybe_compile(loss: Callable[[Tensor], Tensor], recipe: Recipe) -> Callable[[Tensor], Tensor]:
    # Static shapes: there are two at most, and dynamic kernels are a third slower.
    return torch.compile(loss, dynamic=False) if recipe.compiled else loss


class Timer:
    """Minutes since the lap before."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        minutes, self.last = (now - self.last) / 60, now
        return round(minutes, 2)


if __name__ == "__main__":
    main()
