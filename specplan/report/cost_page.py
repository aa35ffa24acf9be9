"""The picture of cost tables as one page: how to read it, how far to trust it, and what was measured where."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from specplan.files import CostTables, Finding, ModelInfo, Profile
from specplan.report.findings import semantics_note
from specplan.report.tables import error_lines

__all__ = ["cost_page"]

PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 84rem; margin: 2rem auto;
  padding: 0 1rem; }}
svg {{ width: 100%; height: auto; }}
figure {{ margin: 0; }}
section {{ max-width: 56rem; }}
li {{ margin-bottom: 0.4rem; }}
th {{ text-align: left; vertical-align: top; padding-right: 1.5rem; font-weight: 600; white-space: nowrap; }}
td {{ overflow-wrap: anywhere; }}
.hint {{ color: #555; }}
</style>
</head>
<body>
<h1>{title}</h1>
<figure>
{svg}
</figure>
<section>
<h2>How to read it</h2>
<ul>
{reading}
</ul>
<h2>How far to trust it</h2>
<ul>
{errors}
</ul>
{findings}
<h2>What was measured, and where</h2>
<table>
{facts}
</table>
</section>
</body>
</html>
"""


def cost_page(profile: Profile, tables: CostTables, svg: str) -> str:
    """`svg`: the picture, of which the page takes the element and leaves what stands before it."""
    title = " with drafts of ".join(model.name for model in (profile.target, profile.draft) if model is not None)
    return PAGE.format(
        title=shown(f"What a step costs: {title}"),
        svg=svg[svg.index("<svg") :].rstrip(),
        reading=items(reading_notes(tables)),
        errors=items(shown(line) for line in error_lines(tables)),
        findings=finding_list(tables.findings),
        facts="\n".join(f"<tr><th>{name}</th><td>{shown(fact)}</td></tr>" for name, fact in facts(profile, tables)),
    )


def shown(text: str) -> str:
    """Text from a file: escaped, and without what is no character to see."""
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))


def items(texts: Iterator[str]) -> str:
    return "\n".join(f"<li>{text}</li>" for text in texts)


def reading_notes(tables: CostTables) -> Iterator[str]:
    yield (
        "A <b>verify pass</b> runs the target model over the last token of each request and its drafts: "
        "requests &times; (1 + drafts of each) tokens. The first panel shows how long it takes, a line for each number "
        "of requests. Further right are more drafts, further up is slower."
    )
    if tables.semantics != "padded":
        yield from (note.capitalize() + "." for note in semantics_note(tables.semantics))
    elif tables.capture_limit:
        yield (
            "<b>The staircase.</b> Up to the dotted line a step replays a graph that was captured for one size, and is "
            "padded to the next such size. Tokens up to that size cost nothing more; the one after it climbs a stair."
        )
        yield (
            f"<b>The dotted line</b> is the largest captured size, {tables.capture_limit:,} tokens. Past it nothing is "
            "padded: kernels are launched one by one (eager), and the line is straight between what was measured."
        )
    else:
        yield "<b>Nothing is captured</b>: no step is padded, and the line is straight between what was measured."
    yield (
        "<b>Points</b> are medians of what was timed, with a bar over the middle half of the repetitions. Filled ones "
        "are captured steps, hollow ones eager. Where both are there, their distance is what capturing saves."
    )
    if tables.monotone == "running-max":
        yield "A line may pass above a point: a larger step that was measured cheaper costs what the smaller one does."
    yield (
        "<b>Dashed lines on grey</b> are extrapolated: nothing was measured that far, and a plan that rests on it is a "
        "guess."
    )
    if len(tables.contexts) > 1:
        yield (
            f"Attention reads what each request has in its cache: costs are shown at {tables.contexts[-1]:,} tokens of "
            f"context each, and faintly at {tables.contexts[0]:,}."
        )
    if tables.num_speculative_tokens != 0:
        yield (
            "<b>Times a step without speculation</b>: verify pass, drafting and the host's work, over a step in which "
            "as many requests take one token each. Where a step yields more tokens per request (accepted drafts + 1) "
            "than the line says, k drafts pay."
        )
    if tables.draft_ks is not None:
        yield "<b>Drafting</b> is the draft model's work to propose k tokens for each request."
    if tables.mixed is not None:
        yield "<b>Prompt tokens</b> in a step make it a mixed one, which is not padded."


def finding_list(findings: list[Finding]) -> str:
    if not findings:
        return "<p>Nothing was found amiss.</p>"
    lines = (
        f"<b>{finding.severity}</b>, {shown(finding.place)}: {shown(finding.message)} "
        f'<span class="hint">({shown(finding.hint)})</span>'
        for finding in findings
    )
    return f"<ul>\n{items(lines)}\n</ul>"


def facts(profile: Profile, tables: CostTables) -> Iterator[tuple[str, str]]:
    environment = profile.environment
    yield "Device", environment.device or "unknown"
    yield "Number format", environment.dtype or "unknown"
    yield "Tensor-parallel size", str(environment.tensor_parallel_size or "unknown")
    yield "Target", model_words(profile.target)
    yield "Draft", "none" if profile.draft is None else model_words(profile.draft)
    yield "Drafts per request", f"up to {profile.num_speculative_tokens}"
    yield "Requests", in_words(tables.num_reqs)
    yield "Context", f"{in_words(tables.contexts)} tokens"
    yield "Captured sizes", in_words(tables.capture_sizes) if tables.capture_sizes else "none"
    yield "Samples", f"{len(profile.samples):,}{'' if profile.complete else ', and the sweep was not finished'}"
    yield "Timed", environment.timing_scope
    yield "Source", f"{profile.source}, {profile.created}, by specplan {profile.specplan_version}"


def model_words(model: ModelInfo) -> str:
    size = "size unknown" if model.num_params is None else f"{model.num_params:,} parameters"
    return f"{model.name} ({size}{', random weights' if model.weights == 'random' else ''})"


def in_words(sizes: list[int]) -> str:
    """All of a few, or how many there are and between which."""
    if len(sizes) <= 8:
        return ", ".join(f"{size:,}" for size in sizes)
    return f"{len(sizes)} from {sizes[0]:,} to {sizes[-1]:,}"
