"""Runs models/ with device/: the passes a step is made of, the recorder, and a continuous-batching engine."""

from specplan.engine.imposed import ImposedOutcomes
from specplan.engine.passes import DraftPasses, PromptPass, VerifyPass, prefill
from specplan.engine.recorder import decode_alone, record_pair
from specplan.engine.runner import Phase
from specplan.engine.serving import Engine, EngineStep, ServingCase
from specplan.engine.tracing import read_prompts, record_trace, tokenize

__all__ = [
    "DraftPasses",
    "Engine",
    "EngineStep",
    "ImposedOutcomes",
    "Phase",
    "PromptPass",
    "ServingCase",
    "VerifyPass",
    "decode_alone",
    "prefill",
    "read_prompts",
    "record_pair",
    "record_trace",
    "tokenize",
]
