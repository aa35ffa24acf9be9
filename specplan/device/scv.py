"""The three ways to run the mask of accepted drafts in a serving step, which agree to the bit."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from specplan.device.acceptance import (
    PADDING_TOKEN,
    accepted_prefix_mask,
    accepted_prefix_mask_reference,
    check_shapes,
)
from specplan.device.graphs import Grapher
from specplan.errors import ConfigError, MeasurementError

__all__ = ["MAX_GRAPHS", "SCV_MODE_VARIABLE", "AcceptanceMask", "GraphMask", "MaskKey", "ScvMode"]

logger = logging.getLogger(__name__)

SCV_MODE_VARIABLE = "SPECPLAN_SCV_MODE"
MAX_GRAPHS = 64

MaskFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


class ScvMode(StrEnum):
    """How the mask runs.

    `off`: the loop over requests, which waits for the device. `graph`: vectorised, replayed from a CUDA graph.
    `adaptive`: vectorised and eager, for shapes too varied to capture; k then follows whatever policy is set.
    """

    OFF = "off"
    GRAPH = "graph"
    ADAPTIVE = "adaptive"

    @classmethod
    def parse(cls, text: str) -> ScvMode:
        """Raises ConfigError for anything but the three names."""
        try:
            return cls(text)
        except ValueError:
            raise ConfigError(
                f"unknown SCV mode {text!r}, expected one of {', '.join(cls)}",
                f"set {SCV_MODE_VARIABLE}, or pass one of them",
            ) from None

    @classmethod
    def from_environment(cls) -> ScvMode:
        """The mode that SPECPLAN_SCV_MODE names; `off` where it names none."""
        return cls.parse(os.environ.get(SCV_MODE_VARIABLE) or cls.OFF)


class AcceptanceMask:
    """`accepted_prefix_mask` in a mode: the environment's where none is given."""

    def __init__(self, mode: ScvMode | str | None = None) -> None:
        self.mode = ScvMode.from_environment() if mode is None else ScvMode.parse(mode)
        self.run: MaskFunction = accepted_prefix_mask
        if self.mode is ScvMode.OFF:
            self.run = accepted_prefix_mask_reference
        elif self.mode is ScvMode.GRAPH:
            self.run = GraphMask()

    def __call__(
        self,
        draft_token_ids: Tensor,  # [num_tokens] int
        sampled_token_ids: Tensor,  # [num_reqs, >= K] int
        num_drafts: Tensor,  # [num_reqs] int
    ) -> Tensor:  # [num_tokens] bool
        return self.run(draft_token_ids, sampled_token_ids, num_drafts)


@dataclass(frozen=True, slots=True)
class MaskKey:
    """What a captured mask is good for: sizes rounded up to powers of two, never the draft lengths themselves."""

    num_reqs: int
    num_tokens: int
    num_columns: int
    draft_dtype: torch.dtype
    sampled_dtype: torch.dtype
    count_dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, draft_token_ids: Tensor, sampled_token_ids: Tensor, num_drafts: Tensor) -> MaskKey:
        num_reqs, num_columns = sampled_token_ids.shape
        return cls(
            num_reqs=power_of_two(num_reqs),
            num_tokens=power_of_two(draft_token_ids.shape[0]),
            num_columns=power_of_two(num_columns),
            draft_dtype=draft_token_ids.dtype,
            sampled_dtype=sampled_token_ids.dtype,
            count_dtype=num_drafts.dtype,
            device=draft_token_ids.device,
        )


class StaticMask:
    """The vectorised mask over buffers that stay where they are, padded to a key's sizes."""

    @torch.inference_mode(False)  # buffers made in inference mode could not be written outside of it
    def __init__(self, key: MaskKey) -> None:
        self.drafts = torch.full((key.num_tokens,), PADDING_TOKEN, dtype=key.draft_dtype, device=key.device)
        self.sampled = torch.full(
            (key.num_reqs, key.num_columns), PADDING_TOKEN, dtype=key.sampled_dtype, device=key.device
        )
        self.num_drafts = torch.zeros(key.num_reqs, dtype=key.count_dtype, device=key.device)

    def load(self, draft_token_ids: Tensor, sampled_token_ids: Tensor, num_drafts: Tensor) -> None:
        """Copies a batch in. Stale rows are no one's and stale drafts past the total are padding, once the counts past
        the batch's are zero; only stale columns could be taken for the batch's own."""
        num_reqs, num_columns = sampled_token_ids.shape
        self.drafts[: draft_token_ids.shape[0]].copy_(draft_token_ids)
        self.sampled[:num_reqs, :num_columns].copy_(sampled_token_ids)
        self.sampled[:num_reqs, num_columns:].fill_(PADDING_TOKEN)
        self.num_drafts[:num_reqs].copy_(num_drafts)
        self.num_drafts[num_reqs:].zero_()

    def run(self) -> Tensor:  # [padded tokens]
        return accepted_prefix_mask(self.drafts, self.sampled, self.num_drafts)


class GraphMask:
    """The vectorised mask replayed from CUDA graphs, at most `max_graphs` of them, the least recently used out first.

    A key's first batch captures its graph. A key that cannot be captured is reported once and runs vectorised from then
    on; all others still replay. On a CPU there is nothing to capture, and the padded mask runs as it is.
    """

    def __init__(self, *, max_graphs: int = MAX_GRAPHS, capture: Capture | None = None) -> None:
        if max_graphs < 1:
            raise ConfigError(f"max_graphs is {max_graphs}, expected 1 or more", "use mode adaptive to capture nothing")
        self.max_graphs = max_graphs
        self.replays: OrderedDict[MaskKey, tuple[StaticMask, Callable[[], Tensor]]] = OrderedDict()
        self.failed: set[MaskKey] = set()  # powers of two are few: this stays small
        self.capture = capture
        self.graphers: dict[torch.device, Grapher] = {}

    def __call__(self, draft_token_ids: Tensor, sampled_token_ids: Tensor, num_drafts: Tensor) -> Tensor:
        check_shapes(draft_token_ids, sampled_token_ids, num_drafts)
        num_tokens = draft_token_ids.shape[0]
        if 0 in (num_tokens, *sampled_token_ids.shape):
            return accepted_prefix_mask(draft_token_ids, sampled_token_ids, num_drafts)
        key = MaskKey.of(draft_token_ids, sampled_token_ids, num_drafts)
        ready = self.ready(key)
        if ready is None:
            return accepted_prefix_mask(draft_token_ids, sampled_token_ids, num_drafts)
        static, replay = ready
        static.load(draft_token_ids, sampled_token_ids, num_drafts)
        return replay()[:num_tokens].clone()  # the buffer is overwritten by the next replay

    def ready(self, key: MaskKey) -> tuple[StaticMask, Callable[[], Tensor]] | None:
        """The key's buffers and replay, captured if they are new; None where they cannot be."""
        if key in self.replays:
            self.replays.move_to_end(key)
            return self.replays[key]
        if key in self.failed:
            return None
        try:
            static = StaticMask(key)
            replay = self.captured(static)
        except (MeasurementError, torch.OutOfMemoryError) as error:
            self.failed.add(key)
            logger.warning("%s runs without a graph from now on: %s", key, error)
            return None
        self.replays[key] = (static, replay)
        if len(self.replays) > self.max_graphs:
            self.replays.popitem(last=False)
        return self.replays[key]

    def captured(self, static: StaticMask) -> Callable[[], Tensor]:
        if self.capture is not None:
            return self.capture(static.run)
        if not static.drafts.is_cuda:
            return static.run
        device = static.drafts.device
        if device not in self.graphers:
            self.graphers[device] = Grapher(device)
        return self.graphers[device].capture(static.run)


def power_of_two(size: int) -> int:
    """The smallest power of two that holds `size`."""
    return 1 << (size - 1).bit_length()
