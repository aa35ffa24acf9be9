"""What the tiny pair is trained on and judged by: code, plays and maths, each with a part held out.

The code is the running Python's own standard library; plays and maths are read from a folder that holds
`tinyshakespeare.txt`, `gsm8k_train.jsonl` and `gsm8k_test.jsonl`.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from specplan.errors import ConfigError, FileError

__all__ = ["END_OF_TEXT", "VOCAB_SIZE", "Documents", "Mixture", "read_corpus", "token_stream", "train_tokenizer"]

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 1024
# Tests, and files that are tables, generated text or another Python's grammar rather than code.
NOT_CODE = frozenset(
    [
        *("site-packages", "dist-packages"),
        *("test", "tests", "idle_test"),
        *("encodings", "idlelib", "lib2to3", "pydoc_data", "turtledemo"),
    ]
)
HELD_OUT_CODE_SHARE = 20  # one file in so many
HELD_OUT_PLAYS_SHARE = 10  # the last tenth


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """One kind of text, in an order that does not depend on the machine."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]


def read_corpus(folder: Path | None) -> dict[str, Documents]:
    """Documents by kind; code alone where no folder is given."""
    corpus = {"code": read_code(Path(sysconfig.get_path("stdlib")))}
    if folder is not None:
        corpus["plays"] = read_plays(folder / "tinyshakespeare.txt")
        corpus["maths"] = Documents(
            train=read_maths(folder / "gsm8k_train.jsonl"), held_out=read_maths(folder / "gsm8k_test.jsonl")
        )
    return corpus


def read_code(stdlib: Path) -> Documents:
    """The library's sources; a file is held out by the hash of its name, so that it stays so in every Python."""
    train: list[str] = []
    held_out: list[str] = []
    for path in sorted(stdlib.rglob("*.py")):
        name = path.relative_to(stdlib)
        if NOT_CODE.intersection(name.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a source in another encoding
        digest = int.from_bytes(hashlib.sha256(name.as_posix().encode()).digest()[:8], "big")
        (train if digest % HELD_OUT_CODE_SHARE else held_out).append(text)
    return Documents(train=tuple(train), held_out=tuple(held_out))


def read_plays(path: Path) -> Documents:
    """One text, cut where a speech begins."""
    text = read_text(path)
    cut = text.index("\n\n", len(text) - len(text) // HELD_OUT_PLAYS_SHARE) + 2
    return Documents(train=(text[:cut],), held_out=(text[cut:],))


def read_maths(path: Path) -> tuple[str, ...]:
    """A document is a question on its first line, and its answer with the calculator's notes on those after."""
    rows = [json.loads(line) for line in read_text(path).splitlines()]
    return tuple(f"{row['question']}\n{row['answer']}\n" for row in rows)


def read_text(path: Path) -> str:
    """The file's text, or an error that says which corpus file is amiss."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(
            f"{path} cannot be read: {error.strerror}",
            "give a folder with tinyshakespeare.txt, gsm8k_train.jsonl and gsm8k_test.jsonl, or leave --corpus out",
        ) from None


def train_tokenizer(corpus: dict[str, Documents]) -> Tokenizer:
    """A byte-level BPE over all kinds; every text goes through it and back unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (text for kind in sorted(corpus) for text in corpus[kind].train)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_stream(tokenizer: Tokenizer, documents: tuple[str, ...]) -> NDArray[np.int64]:
    """The documents as one line of tokens, each begun and the whole ended by the end-of-text token."""
    end = [tokenizer.token_to_id(END_OF_TEXT)]
    encoded = (encoding.ids for encoding in tokenizer.encode_batch(list(documents)))
    return np.concatenate([np.array(end + ids) for ids in encoded] + [np.array(end)])


class Mixture:
    """Training rows drawn from several streams in given shares.

    A stream is read in epochs: each starts at a random phase and visits every window once, in random order.
    """

    def __init__(self, streams: dict[str, NDArray[np.int64]], shares: dict[str, float], seed: int) -> None:
        self.streams = streams
        self.kinds = sorted(streams)
        total = sum(shares[kind] for kind in self.kinds)
        self.shares = [shares[kind] / total for kind in self.kinds]
        self.rng = np.random.default_rng(seed)
        self.windows: dict[tuple[str, int], Iterator[NDArray[np.int64]]] = {}

    def rows(self, num_rows: int, length: int) -> Tensor:  # [num_rows, length] int64
        kinds = self.rng.choice(self.kinds, size=num_rows, p=self.shares)
        return torch.from_numpy(np.stack([next(self.windows_of(str(kind), length)) for kind in kinds]))

    def windows_of(self, kind: str, length: int) -> Iterator[NDArray[np.int64]]:
        if (kind, length) not in self.windows:
            self.windows[kind, length] = self.epochs(self.streams[kind], length)
        return self.windows[kind, length]

    def epochs(self, stream: NDArray[np.int64], length: int) -> Iterator[NDArray[np.int64]]:
        if len(stream) < length:
            raise ConfigError(
                f"a text of {len(stream)} tokens cannot be read in rows of {length}", "give a larger corpus"
            )
        while True:
            phase = self.rng.integers(length)
            starts = np.arange(phase, len(stream) - length + 1, length)
            for start in self.rng.permutation(starts):
                yield stream[start : start + length]
