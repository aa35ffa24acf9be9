"""The pair's README.md, written from the record of its training."""

from __future__ import annotations

from typing import Any

__all__ = ["render_card"]

SOURCES = {
    "code": "the Python standard library, tests left out; held out: one file in 20, by the hash of its name",
    "maths": "GSM8K, questions and worked answers (openai/grade-school-math, MIT); held out: its test split",
    "plays": "tiny Shakespeare (karpathy/char-rnn, public-domain text); held out: its last tenth",
}

CARD = """\
# The tiny pair

A target of {target[num_params]:,} and a draft of {draft[num_params]:,} parameters in the Llama architecture, with one
byte-level BPE of {tokenizer[vocab_size]} entries: a real pair for every command to run on, small enough for two cores.
Weights are stored in bfloat16 and computed in float32.

## Trained on

| text | source | tokens trained on |
|---|---|---|
{sources}

The library is that of Python {environment[python]}. No text is shipped.

## How

    {command}

On {environment[threads]} cores the target trained for {target[minutes]:.1f} minutes over {target_tokens:.1f}M tokens.
It then continued {greedy[rows]} passages of training text greedily, in {greedy[minutes]:.1f} minutes.
The draft learned its distribution for {draft[minutes]:.1f} minutes over {draft_tokens:.1f}M tokens, first on the
corpus, then on those continuations. Matrices by Muon, the rest by AdamW, in bfloat16 autocast.

## What it reached, on held-out text

| text | bits per byte: target | draft | accepted_len, of {num_drafts} | {headings} |
|---|---|---|---|{rule}
{figures}

* Bits per byte: over up to {tokens} tokens of a kind's held-out text, each given at least the 256 before it.
* `accepted_len`: how many of the draft's {num_drafts} greedy tokens the target accepts, the bonus token left out;
  the mean over all positions of the target's greedy output, {outputs} tokens after each of {prompts} prompts a kind,
  passages of {prompt_len} tokens. The columns after it are the shares of positions where at least so many are accepted.
* A target this small soon repeats itself when decoded greedily, and repetition is easy to draft: these are acceptance
  rates of this pair, not of the text.

Every figure is of the weights as stored. TRAINING.json holds them all, with the recipe and the environment.
"""


def render_card(record: dict[str, Any]) -> str:
    """Markdown, every figure from the record."""
    held_out: dict[str, Any] = record["held_out"]
    evaluation = record["recipe"]["evaluation"]
    drafts = range(1, evaluation["num_drafts"] + 1)
    sources = [f"| {kind} | {SOURCES[kind]} | {record['trained_on'][kind]['train_tokens']:,} |" for kind in held_out]
    figures = []
    for kind, reached in held_out.items():
        columns = [reached["target_bits_per_byte"], reached["draft_bits_per_byte"], reached["accepted_len"]]
        figures.append(f"| {kind} | {' | '.join(f'{x:.2f}' for x in columns + reached['accepted_at_least'])} |")
    return CARD.format(
        **record,
        **evaluation,
        target_tokens=record["target"]["tokens"] / 1e6,
        draft_tokens=record["draft"]["tokens"] / 1e6,
        sources="\n".join(sources),
        figures="\n".join(figures),
        headings=" | ".join(f">= {count}" for count in drafts),
        rule="---|" * len(drafts),
    )
