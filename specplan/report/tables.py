"""Cost tables, as a person reads them: what a step costs by requests and drafts per request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specplan.files import CostTables
from specplan.files.mixed_costs import MixedCosts
from specplan.files.tables import LayoutCosts, Source
from specplan.files.trust import Stratum
from specplan.planning.semantics import RUNNING, SemanticsComparison
from specplan.report.findings import semantics_note

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["semantics_report", "tables_report"]

EXTRAPOLATED_MARK = "*"
TOO_CLOSE_MARK = "~"
_MACHINERY = {
    "metadata": "laying out a step with all drafts",
    "bare-metadata": "laying out a step without drafts",
    "budget": "choosing its budget",
    "admission": "admitting its drafts",
}


def tables_report(tables: CostTables) -> Iterator[RenderableType]:
    """What steps cost, how far that can be trusted, and what was found."""
    yield verify_table(tables)
    yield draft_table(tables)
    if tables.mixed is not None:
        yield mixed_table(tables.mixed)
    yield from layout_tables(tables)
    yield from row_lines(tables)
    yield from error_lines(tables)
    if tables.additive is not None:
        fit, last = tables.additive, tables.contexts[-1]
        further = f"{1000 * fit.context_ms:.3g} ms for each 1,000 tokens more" if fit.holds else f"as one of {last}"
        yield (
            f"tokens and context add up within {fit.error.p95:.1%} (p95 of {fit.error.points} points): a context past "
            f"{last} costs {further}"
        )
    if tables.error.strata:
        yield strata_table(tables.error.strata)
    yield from semantics_note(tables.semantics)
    for finding in tables.findings:
        yield f"{finding.severity}: {finding.place}: {finding.message} ({finding.hint})"


def semantics_report(compared: SemanticsComparison) -> Iterator[RenderableType]:
    """A row for each reading that plans, a column for each that is charged, and how many tokens/ms that forgoes."""
    table = new_table(
        f"What planning by one reading of these costs forgoes where steps cost what another says (context "
        f"{compared.context_len})",
        "planned by",
    )
    for running in RUNNING:
        table.add_column(f"run {running}: mean", justify="right")
        table.add_column("p95", justify="right")
    for planned in dict.fromkeys(loss.planned for loss in compared.losses):
        figures = [figure for running in RUNNING for figure in compared.over_requests(planned, running)]
        table.add_row(planned, *(f"{figure:.1%}" for figure in figures))
    counts = sorted({loss.num_reqs for loss in compared.losses})
    table.caption = (
        f"of the best expected tokens/ms; {compared.num_batches} batches of drawn confidences at each of "
        f"{', '.join(map(str, counts))} requests, K = {compared.num_speculative_tokens}; p95 of the worst of these"
    )
    yield table


def shown_ks(tables: CostTables) -> range:
    """Drafts per request; a table made from plain curves does not know K, and shows up to 7."""
    return range(1 + (7 if tables.num_speculative_tokens is None else tables.num_speculative_tokens))


def verify_table(tables: CostTables) -> Table:
    context_len = tables.contexts[-1]
    table = new_table(
        f"Verify step, ms, by requests and drafts per request (context {context_len}; {reading(tables)})",
    )
    for k in shown_ks(tables):
        table.add_column(f"k={k}", justify="right")
    for num_reqs in tables.num_reqs:
        row = tables.verify_row(num_reqs, context_len)
        sources = tables.verify_sources(num_reqs, context_len)
        cells = []
        for k in shown_ks(tables):
            num_tokens = num_reqs * (1 + k)
            if num_tokens > tables.max_num_tokens or math.isinf(row[num_tokens]):
                cells.append("-")
                continue
            extrapolated = tables.legend[sources[num_tokens]] == "extrapolated"
            cells.append(f"{row[num_tokens]:.3g}{EXTRAPOLATED_MARK if extrapolated else ''}")
        if any(cell.endswith(EXTRAPOLATED_MARK) for cell in cells):
            table.caption = f"{EXTRAPOLATED_MARK} rests on extrapolation"
        table.add_row(str(num_reqs), *cells)
    return table


def reading(tables: CostTables) -> str:
    """What sizes between the measured ones are taken to cost."""
    return {
        "padded": f"padded up to {tables.capture_limit} tokens, smooth above",
        "linear": "linear between measured sizes",
        "floor": "rounded down to the measured size below",
        "exact": "measured sizes alone",
    }[tables.semantics]


def draft_table(tables: CostTables) -> Table:
    table = new_table("Draft step, ms, by requests and drafts per request")
    rows = []
    for k in shown_ks(tables):
        if tables.draft_ks is None or tables.draft_ks[0] <= k <= tables.draft_ks[-1]:
            table.add_column(f"k={k}", justify="right")
            rows.append(tables.draft_row(k))
    for num_reqs in tables.num_reqs:
        table.add_row(str(num_reqs), *(f"{row[num_reqs]:.3g}" for row in rows))
    return table


def mixed_table(mixed: MixedCosts) -> Table:
    """At the longest context, where each of the verifying requests has no drafts, and the most."""
    table = new_table(
        "Verify pass of a step that runs prompts, ms, by verifying requests, drafts of each and prompt tokens "
        f"(context {mixed.contexts[-1]}; nothing pads)",
        "verifying",
        "drafts",
    )
    for size in mixed.prompt_tokens:
        table.add_column(str(size), justify="right")
    for v, num_verifying in enumerate(mixed.num_verifying):
        for d, drafts in enumerate(mixed.drafts):
            if num_verifying or d == 0:
                shown = str(drafts) if num_verifying else "-"
                table.add_row(str(num_verifying), shown, *(f"{ms:.3g}" for ms in mixed.ms[-1, v, d]))
    return table


def layout_tables(tables: CostTables) -> Iterator[Table]:
    """How many times as long batch expansion takes, by context; nothing where one layout was measured."""
    for context_len in sorted({costs.context_len for costs in tables.layout_costs}):
        cells = {(costs.num_reqs, costs.k): costs for costs in tables.layout_costs if costs.context_len == context_len}
        table = new_table(
            "Verify step in batch expansion, times as long as multi-query, by requests and drafts per request "
            f"(context {context_len})"
        )
        for k in shown_ks(tables):
            table.add_column(f"k={k}", justify="right")
        for num_reqs in sorted({num_reqs for num_reqs, _ in cells}):
            row = [cells.get((num_reqs, k)) for k in shown_ks(tables)]
            table.add_row(str(num_reqs), *("-" if costs is None else ratio_cell(costs) for costs in row))
        if any(costs.is_too_close_to_call for costs in cells.values()):
            table.caption = f"{TOO_CLOSE_MARK} too close to call: the intervals of the two medians overlap"
        yield table


def ratio_cell(costs: LayoutCosts) -> str:
    return f"{costs.ratio:.2f}{TOO_CLOSE_MARK if costs.is_too_close_to_call else ''}"


def row_lines(tables: CostTables) -> Iterator[str]:
    """The host's work and the drafter's prefill at either end of their rows, where these costs hold any."""
    for name, ms, source, unit in (
        ("host time per step", tables.overhead_ms, tables.overhead_source, "request"),
        ("drafter prefill", tables.draft_prefill_ms, tables.draft_prefill_source, "prompt token"),
    ):
        if not ms.any():
            continue
        marks = ["", ""]
        if source is not None:
            marks = [EXTRAPOLATED_MARK if source[end] == Source.EXTRAPOLATED else "" for end in (1, -1)]
        note = f" ({EXTRAPOLATED_MARK} rests on extrapolation)" if any(marks) else ""
        yield f"{name}: {ms[1]:.3g}{marks[0]} ms at 1 {unit}, {ms[-1]:.3g}{marks[1]} ms at {len(ms) - 1}{note}"
    if tables.machinery is not None and tables.overhead_source is None:
        for term, ms in zip(tables.machinery.terms, tables.machinery.ms, strict=True):
            yield f"{_MACHINERY[term]}: {ms[1]:.3g} ms at 1 request, {ms[-1]:.3g} ms at {len(ms) - 1}"


def new_table(title: str, *rows: str) -> Table:
    """`rows` head the columns that say which row it is."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption_justify="left")
    for header in rows or ("requests",):
        table.add_column(header, justify="right")
    return table


def strata_table(strata: Sequence[Stratum]) -> Table:
    """What a new process found: over all, by context, and by requests."""
    table = new_table("Error found by a new process", "", "region", "context", "requests")
    for header in ("MAPE", "p95", "bias", "points"):
        table.add_column(header, justify="right")
    for stratum in strata:
        requests = "" if stratum.num_reqs is None else "-".join(map(str, dict.fromkeys(stratum.num_reqs)))
        error = stratum.error
        table.add_row(
            stratum.kind if stratum.is_whole else "",
            stratum.region if stratum.is_whole else "",
            "all" if stratum.is_whole else "" if stratum.context_len is None else str(stratum.context_len),
            "all" if stratum.is_whole else requests,
            f"{error.mape:.1%}",
            f"{error.p95:.1%}",
            f"{error.bias:+.1%}",
            str(error.points),
        )
    return table


def error_lines(tables: CostTables) -> Iterator[str]:
    errors = {"captured": tables.error.captured, "smooth": tables.error.smooth, "draft": tables.error.draft}
    if tables.overhead_source is not None:
        errors["host"] = tables.error.overhead
    if tables.mixed is not None:
        errors["mixed"] = tables.error.mixed
    if tables.draft_prefill_source is not None:
        errors["drafter prefill"] = tables.error.draft_prefill
    if tables.error.ragged is not None:
        errors["ragged steps"] = tables.error.ragged
    for region, error in errors.items():
        if error is None:
            yield f"held-out error, {region}: unknown, too few points to hold any out"
        else:
            yield (
                f"held-out error, {region}: MAPE {error.mape:.1%}, p95 {error.p95:.1%}, bias {error.bias:+.1%} "
                f"over {error.points} points ({error.method})"
            )
