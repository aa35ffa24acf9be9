"""Small host arrays on their way to the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["upload"]


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of `array` on `device`, queued on the current stream; the host does not wait for it."""
    if device.type == "cpu":
        return torch.from_numpy(array.copy())
    # Pinned blocks are not handed out again before their copy has run.
    return torch.from_numpy(array).pin_memory().to(device, non_blocking=True)
