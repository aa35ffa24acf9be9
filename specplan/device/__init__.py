"""What runs inside a serving step, for CUDA and CPU alike."""

from specplan.device.acceptance import accepted_counts, accepted_prefix_mask

__all__ = ["accepted_counts", "accepted_prefix_mask"]
