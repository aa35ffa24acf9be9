"""Held-out prompts to record traces from: `python -m specplan.models.tiny.prompts --corpus DIR --out DIR`.

One JSONL file per kind, an object `{"prompt": ...}` a line. A prompt of code or plays stops before a newline: tokens
often join a newline to the indentation after it, and a prompt must not split one.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from specplan.files._atomic import write_atomically
from specplan.models.loading import load_tokenizer
from specplan.models.tiny.corpus import Documents, read_corpus

__all__ = ["held_out_prompts", "main"]

log = logging.getLogger(__name__)

NUM_PROMPTS = 100
SHORTEST, LONGEST = 40, 120  # tokens


def main(argv: list[str] | None = None) -> None:
    """Parses and writes."""
    parser = argparse.ArgumentParser(prog="python -m specplan.models.tiny.prompts", description=__doc__)
    parser.add_argument("--corpus", type=Path, help="folder with the plays and the maths; code alone without it")
    parser.add_argument("--out", type=Path, required=True, help="folder for code.jsonl, maths.jsonl and plays.jsonl")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(Path(__file__).parent / "target")
    for kind, documents in read_corpus(options.corpus).items():
        prompts = held_out_prompts(kind, documents, lambda text: len(tokenizer.encode(text).ids))
        path = options.out / f"{kind}.jsonl"
        write_atomically(path, "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts).encode())
        log.info("%s: %d prompts", path, len(prompts))


def held_out_prompts(kind: str, documents: Documents, num_tokens: Callable[[str], int]) -> list[str]:
    """Up to 100 prompts of 40 to 120 tokens, spread evenly over all that the held-out documents offer."""
    passages = {"code": definitions, "plays": speeches, "maths": questions}[kind]
    beginnings = (shortest_beginning(lines, num_tokens) for text in documents.held_out for lines in passages(text))
    fitting = [prompt for prompt in beginnings if SHORTEST <= num_tokens(prompt) <= LONGEST]
    chosen = np.linspace(0, len(fitting) - 1, min(NUM_PROMPTS, len(fitting))).astype(int)
    return [fitting[index] for index in chosen]


def shortest_beginning(lines: list[str], num_tokens: Callable[[str], int]) -> str:
    """The first lines, as few as hold `SHORTEST` tokens; all of them where they hold fewer."""
    for end in range(1, len(lines)):
        beginning = "\n".join(lines[:end])
        if num_tokens(beginning) >= SHORTEST:
            return beginning
    return "\n".join(lines)


def definitions(text: str) -> Iterator[list[str]]:
    """The lines of each function and class but their last, so that something is left to write."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # the library's own invalid escapes
        tree = ast.parse(text)
    lines = text.split("\n")  # as ast counts them: a form feed ends no line
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.end_lineno is not None:
            yield lines[node.lineno - 1 : node.end_lineno - 1]


def speeches(text: str) -> Iterator[list[str]]:
    """Each speech, from its speaker's line on, and what follows it."""
    blocks = text.strip().split("\n\n")
    for index in range(len(blocks)):
        yield "\n\n".join(blocks[index : index + 3]).split("\n")


def questions(text: str) -> Iterator[list[str]]:
    """The question: a document's first line. Its newline belongs to the prompt, for the answer comes next."""
    yield [text[: text.index("\n") + 1]]


if __name__ == "__main__":
    main()
