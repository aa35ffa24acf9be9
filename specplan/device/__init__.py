"""What runs inside a serving step, for CUDA and CPU alike."""

from specplan.device.acceptance import accepted_counts, accepted_prefix_mask, accepted_slot_mapping
from specplan.device.admission import admit_drafts
from specplan.device.compaction import HostCounts, compact_batch, host_counts
from specplan.device.confidence import ConfidenceBuffer
from specplan.device.scv import AcceptanceMask, ScvMode
from specplan.device.verifier import AdaptiveVerifier, TrimmedBatch, VerifyBatch

__all__ = [
    "AcceptanceMask",
    "AdaptiveVerifier",
    "ConfidenceBuffer",
    "HostCounts",
    "ScvMode",
    "TrimmedBatch",
    "VerifyBatch",
    "accepted_counts",
    "accepted_prefix_mask",
    "accepted_slot_mapping",
    "admit_drafts",
    "compact_batch",
    "host_counts",
]
