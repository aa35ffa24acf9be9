"""Live confidences on the device, and their history on the host, a fixed number of steps late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specplan.device.upload import upload
from specplan.errors import ConfigError

__all__ = ["ConfidenceBuffer"]

_NEVER = np.iinfo(np.int64).max


@dataclass(slots=True, kw_only=True, eq=False)
class Snapshot:
    """One record on its way to the host. The events are None on a CPU, where the copy is done when it is made."""

    device_copy: Tensor  # [num_slots, K] float32
    host_copy: Tensor  # [num_slots, K] float32, pinned on CUDA
    taken: torch.cuda.Event | None
    landed: torch.cuda.Event | None


class ConfidenceBuffer:
    """Confidences of every slot: the newest on the device, for ranking; those of `lag` steps ago on the host, for
    budgets.

    Record t holds the confidences of the drafts that step t may verify; the step before it makes the record, as its
    last act. It is snapshot on the main stream, where the next record may overwrite the live values, and copied to the
    host on a side stream, into one of lag + 1 buffers. The budget of step t reads record t - lag and no other: it waits
    for that copy if it must, so that decisions do not depend on timing. A slot reads 1.0 until its own first record is
    that old.
    """

    @torch.inference_mode(False)  # buffers made in inference mode could not be written outside of it
    def __init__(self, *, num_slots: int, num_speculative_tokens: int, lag: int, device: torch.device) -> None:
        if num_slots < 1 or num_speculative_tokens < 1 or lag < 0:
            raise ConfigError(
                f"{num_slots} slots of {num_speculative_tokens} drafts at lag {lag}: expected at least 1, 1 and 0",
                "pass max_num_seqs, K, and a lag of 0, 1 or 2",
            )
        self.num_slots = num_slots
        self.lag = lag
        self.num_unusable = 0  # confidences that budgets read and that were NaN or outside [0, 1]: they count as 0
        self.device = device
        # The row past the last slot takes what is not recorded: all rows are written, and no shape depends on which.
        self._rows = torch.ones(num_slots + 1, num_speculative_tokens, dtype=torch.float32, device=device)
        self._snapshots = [self._new_snapshot() for _ in range(lag + 1)]
        self._copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._num_records = 0
        self._first_record = np.full(num_slots, _NEVER, dtype=np.int64)  # of the request that holds the slot now

    @property
    def live(self) -> Tensor:  # [num_slots, K] float32
        """The newest confidences, on the device; 1.0 in a slot whose request has none yet."""
        return self._rows[: self.num_slots]

    def add(self, slot: int) -> None:
        """A new request takes `slot`: nothing of the one before it is read again, whatever is in flight."""
        self._check_slots(np.array([slot]))
        self._first_record[slot] = _NEVER
        self._rows[slot].fill_(1.0)

    def record(
        self,
        slots: NDArray[np.integer[Any]],  # [num_reqs], distinct
        is_sampling: NDArray[np.bool_],  # [num_reqs]; the others have no confidences of their own to record
        confidence: Tensor,  # [num_reqs, K] on the device
    ) -> None:
        """The confidences of the drafts that the next step may verify. Called once a step, also with no requests."""
        if confidence.shape != (len(slots), self._rows.shape[1]) or is_sampling.shape != slots.shape:
            raise ConfigError(
                f"confidences of shape {list(confidence.shape)} for {len(slots)} slots and {len(is_sampling)} flags: "
                f"expected [{len(slots)}, {self._rows.shape[1]}]",
                "pass one row of K confidences and one flag per slot",
            )
        self._check_slots(slots)
        rows = upload(np.where(is_sampling, slots, self.num_slots).astype(np.int64), self.device)
        self._rows.index_copy_(0, rows, confidence.detach().to(torch.float32))
        recorded = slots[is_sampling]
        self._first_record[recorded] = np.minimum(self._first_record[recorded], self._num_records)
        self._take(self._snapshots[self._num_records % (self.lag + 1)])
        self._num_records += 1

    def lagged(self, slots: NDArray[np.integer[Any]]) -> NDArray[np.float32]:  # [num_reqs] -> [num_reqs, K]
        """What the slots' requests had `lag` records ago; 1.0 where one had none then. Waits for its copy."""
        self._check_slots(slots)
        record = self._num_records - 1 - self.lag
        confidence = np.ones((len(slots), self._rows.shape[1]), dtype=np.float32)
        if record < 0:
            return confidence
        snapshot = self._snapshots[record % (self.lag + 1)]
        if snapshot.landed is not None:
            snapshot.landed.synchronize()
        had = self._first_record[slots] <= record
        confidence[had] = snapshot.host_copy.numpy()[slots[had]]
        self.num_unusable += int((~((confidence >= 0) & (confidence <= 1))).sum())
        return confidence

    def _check_slots(self, slots: NDArray[np.integer[Any]]) -> None:
        if slots.size and not 0 <= slots.min() <= slots.max() < self.num_slots:
            raise ConfigError(
                f"slots from {slots.min()} to {slots.max()}, expected 0 to {self.num_slots - 1}",
                "pass slots of this buffer",
            )

    def _new_snapshot(self) -> Snapshot:
        on_cuda = self.device.type == "cuda"
        shape = (self.num_slots, self._rows.shape[1])
        return Snapshot(
            device_copy=torch.ones(shape, dtype=torch.float32, device=self.device),
            host_copy=torch.ones(shape, dtype=torch.float32, device="cpu", pin_memory=on_cuda),
            taken=torch.cuda.Event() if on_cuda else None,  # type: ignore[no-untyped-call]
            landed=torch.cuda.Event() if on_cuda else None,  # type: ignore[no-untyped-call]
        )

    def _take(self, snapshot: Snapshot) -> None:
        if self._copy_stream is None or snapshot.taken is None or snapshot.landed is None:
            snapshot.device_copy.copy_(self.live)
            snapshot.host_copy.copy_(snapshot.device_copy)
            return
        main_stream = torch.cuda.current_stream(self.device)
        # The copy before, out of the same buffer, may still run where no budget has waited for it.
        main_stream.wait_event(snapshot.landed)
        snapshot.device_copy.copy_(self.live)
        snapshot.taken.record(main_stream)
        with torch.cuda.stream(self._copy_stream):
            self._copy_stream.wait_event(snapshot.taken)
            snapshot.host_copy.copy_(snapshot.device_copy, non_blocking=True)
            snapshot.landed.record(self._copy_stream)
