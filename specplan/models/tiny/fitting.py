"""One training loop, bounded by time: Muon for the matrices, AdamW for embeddings and norms, bfloat16 autocast."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specplan.models.attention import DenseAttention
from specplan.models.decoder import Decoder

__all__ = ["FitRecord", "fit", "hidden_states", "initialise", "next_token_loss", "round_to_bfloat16"]

log = logging.getLogger(__name__)

WARM_UP_STEPS = 40
DECAY_FROM = 0.1  # of the time given; the learning rate then falls linearly to 0
MATRIX_LR, VECTOR_LR = 0.03, 0.005
LOG_EVERY_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRecord:
    """What one call of `fit` did."""

    steps: int
    tokens: int
    minutes: float


def initialise(model: Decoder, seed: int) -> None:
    """Normal weights of deviation 1 / sqrt(fan_in), but 0 where a layer writes: each layer begins as the identity."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(parameter)
        elif parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5, generator=generator)


def fit(
    model: Decoder,
    batches: Callable[[float], Tensor],  # progress in [0, 1] -> [rows, length + 1] int64
    loss_of: Callable[[Tensor], Tensor],  # the batch's mean loss
    *,
    seconds: float,
) -> FitRecord:
    """Trains until the time is spent: a short warm-up, then almost all of it a linear fall to 0."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n and "lm_head" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n or "lm_head" in n]
    optimizers: tuple[torch.optim.Optimizer, ...] = (
        torch.optim.Muon(matrices, lr=MATRIX_LR, weight_decay=0.05),
        torch.optim.AdamW(others, lr=VECTOR_LR, betas=(0.9, 0.95), weight_decay=0.0),
    )
    peaks = (MATRIX_LR, VECTOR_LR)
    begun = time.perf_counter()
    steps = tokens = 0
    smoothed = 0.0
    model.train()
    while (progress := (time.perf_counter() - begun) / seconds) < 1:
        factor = min((steps + 1) / WARM_UP_STEPS, 1.0, (1 - progress) / (1 - DECAY_FROM))
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
        rows = batches(progress)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(rows)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        steps += 1
        tokens += rows.shape[0] * (rows.shape[1] - 1)
        smoothed += (loss.item() - smoothed) / min(steps, LOG_EVERY_STEPS)
        if steps % LOG_EVERY_STEPS == 0:
            log.info("%4.0f%%  step %d  %.2fM tokens  loss %.3f", 100 * progress, steps, tokens / 1e6, smoothed)
    model.eval()
    return FitRecord(steps=steps, tokens=tokens, minutes=round((time.perf_counter() - begun) / 60, 2))


def hidden_states(model: Decoder, rows: Tensor) -> Tensor:  # [rows, length] -> [rows * length, hidden_size]
    """One causal pass over rows of equal length."""
    positions = torch.arange(rows.shape[1]).repeat(rows.shape[0])
    hidden: Tensor = model(rows.flatten(), positions, DenseAttention(rows.shape[0]))
    return hidden


def next_token_loss(model: Decoder, rows: Tensor) -> Tensor:  # [rows, length + 1] -> []
    """Mean cross-entropy of each token given those before it, in nats."""
    logits = model.logits(hidden_states(model, rows[:, :-1]))
    return F.cross_entropy(logits.float(), rows[:, 1:].flatten())


def round_to_bfloat16(model: Decoder) -> None:
    """Makes the weights what the file will hold, so that everything measured from here on is true of the file."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
