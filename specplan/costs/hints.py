"""What to do next where timings were imported: specplan cannot time that engine again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from specplan.files.profile import Profile
from specplan.files.tables import Finding

__all__ = ["hints_for"]

_IMPORTED: Final = {
    "few-repetitions": "their medians are less sure, and one alone has no interval; import every repetition, a row "
    "each",
    "non-monotone": "time these sizes again where they come from, and import every repetition; pad-up prices a real "
    "fall as padding to the larger size",
    "one-context": "attention grows with context: import timings at the one you serve, beside these",
    "context-incomplete": "import these steps at this context as well, or the whole of one context alone",
    "free-drafter": "right for an n-gram drafter; for a draft model, import its steps: specplan import costs --format "
    "steps takes rows timed as draft",
    "outlier": "time these sizes again where they come from, or leave the point out; until then pad-up and none, other "
    "than running-max, do not carry a dear one to all larger sizes (--monotone)",
    "mixed-not-measured": "import some: specplan import costs --format steps takes num_prompt_tokens, vllm-forward "
    "cases with prompts",
    "draft-prefill-not-measured": "import some, or prompts are free: specplan import costs --format steps takes rows "
    "timed as draft-prefill",
}


def hints_for(profile: Profile, findings: Iterable[Finding]) -> list[Finding]:
    """The findings, of the `profile`, with a way out that is open to whoever has it."""
    if profile.is_measured:
        return list(findings)
    return [msgspec.structs.replace(each, hint=_IMPORTED.get(each.code, each.hint)) for each in findings]
