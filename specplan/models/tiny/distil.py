"""The draft learns from its target: what it would say next, over the corpus and over its own greedy output."""

from __future__ import annotations

import logging
import time

import torch
from torch import Tensor
from torch.nn import functional as F

from specplan.models.decoder import Decoder
from specplan.models.tiny.corpus import Mixture
from specplan.models.tiny.evaluate import greedy_continuations
from specplan.models.tiny.fitting import hidden_states

__all__ = ["distil_loss", "greedy_rows"]

log = logging.getLogger(__name__)

# A greedy target is one of temperature 0: the draft is taught a distribution on the way there.
TEMPERATURE = 0.5
PROMPT_EIGHTHS = (1, 2, 3)  # of a row; the rest is the target's
ROWS_PER_BATCH = 256


def distil_loss(draft: Decoder, target: Decoder, rows: Tensor) -> Tensor:  # [rows, length + 1] -> []
    """Mean cross-entropy of the draft's next token under the target's, sharpened: softmax(logits / TEMPERATURE)."""
    tokens = rows[:, :-1]
    with torch.no_grad():
        taught = (target.logits(hidden_states(target, tokens)).float() / TEMPERATURE).softmax(dim=-1)
    return F.cross_entropy(draft.logits(hidden_states(draft, tokens)).float(), taught)


def greedy_rows(target: Decoder, text: Mixture, *, row_len: int, seconds: float) -> Tensor:  # [rows, row_len]
    """Training text continued greedily by the target; as many rows as the time allows, at least one batch."""
    begun = time.perf_counter()
    batches: list[Tensor] = []
    while not batches or time.perf_counter() - begun < seconds:
        prompt_len = row_len * PROMPT_EIGHTHS[len(batches) % len(PROMPT_EIGHTHS)] // 8
        prompts = text.rows(ROWS_PER_BATCH, prompt_len)
        batches.append(torch.cat([prompts, greedy_continuations(target, prompts, row_len - prompt_len)], dim=1))
        log.info("%d rows of the target's own text", len(batches) * ROWS_PER_BATCH)
    return torch.cat(batches)
