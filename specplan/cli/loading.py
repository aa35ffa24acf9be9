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

    @property
    def default_batched_tokens(self) -> int:
        """The most tokens of a step, where the user names none: vLLM's on CUDA, what a CPU can stand on one."""
        return 8192 if self.device.type == "cuda" else 1024

    @property
    def capture_ceiling(self) -> int:
        """The largest graph vLLM captures by default: 1024 tokens on Blackwell's data-centre cards, 512 elsewhere."""
        on_sm100 = self.device.type == "cuda" and torch.cuda.get_device_capability(self.device)[0] == 10
        return 1024 if on_sm100 else 512


def load_pair(target: str, draft: str, *, device: str, seed: int = 0) -> LoadedPair:
    """Both models on one device, in the dtype that serving uses there."""
    place = pick_device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)  # streams, events and graphs go to the current device, whatever tensors are on
    dtype = pick_dtype(place)
    return LoadedPair(
        target=load_model(target, "target", device=place, dtype=dtype, seed=seed),
        draft=load_model(draft, "draft", device=place, dtype=dtype, seed=seed + 1),
        device=place,
    )
