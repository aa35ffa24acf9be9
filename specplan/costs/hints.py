"""What to do next where timings were imported: specplan cannot time that engine again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from specplan.files.tables import Finding

__all__ = ["hints_for"]

_IMPORTED: Final = {
    "few-repetitions": "their medians are less sure, and one alone has no interval; import every repetition, a row "
    "each",
    "non-monotone": "time these sizes again where they come from, and import every repetition; pad-up prices a real "
    "fall as padding to the larger size",
    "one-context": "attention grows with context: import timings at the one you serve, beside these",
    "mixed-not-measured": "import some: specplan import costs --format steps takes num_prompt_tokens, vllm-forward "
    "cases with prompts",
    "draft-prefill-not-measured": "import some, or prompts are free: specplan import costs --format steps takes rows "
    "timed as draft-prefill",
}


def hints_for(source: str, findings: Iterable[Finding]) -> list[Finding]:
    """The findings, of a profile from `source`, with a way out that is open to whoever has it."""
    if source.startswith("measured"):
        return list(findings)
    return [msgspec.structs.replace(each, hint=_IMPORTED.get(each.code, each.hint)) for each in findings]
