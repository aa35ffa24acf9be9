"""Loads the pair that a command names."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specplan.measure.environment import pick_device, pick_dtype
from specplan.models import LoadedModel, load_model

__all__ = ["LoadedPair", "load_pair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPair:
    target: LoadedModel
    draft: LoadedModel
    device: torch.device


def load_pair(target: str, draft: str, *, device: str, seed: int = 0) -> LoadedPair:
    """Both models on one device, in the dtype that serving uses there."""
    place = pick_device(device)
    dtype = pick_dtype(place)
    return LoadedPair(
        target=load_model(target, "target", device=place, dtype=dtype, seed=seed),
        draft=load_model(draft, "draft", device=place, dtype=dtype, seed=seed + 1),
        device=place,
    )
