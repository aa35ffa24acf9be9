"""Runs models/ with device/: the passes a step is made of, and the recorder."""

from specplan.engine.passes import DraftPasses, VerifyPass, prefill
from specplan.engine.tracing import read_prompts, record_trace

__all__ = ["DraftPasses", "VerifyPass", "prefill", "read_prompts", "record_trace"]
