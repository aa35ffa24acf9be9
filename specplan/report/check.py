"""How a step runs, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator

from specplan.planning import Captured, Choice, RouteCheck, StepPrice

__all__ = ["check_lines"]

_RUNS: dict[Captured, str] = {"full": "replay full graphs", "piecewise": "piecewise ones", "eager": "run eagerly"}
_LIMIT_SOURCES = {"given": "as given", "tables": "the tables'", "vllm": "vLLM's default"}
_EXTRAPOLATED = "*"
_AT_MOST = "at most "


def check_lines(check: RouteCheck) -> list[str]:
    """The resolved route, what was found, what it costs, what would fit, and the next step."""
    lines = [_route(check)]
    if check.full_batch.route.mode == "graph":
        lines.append(_fits(check))
    lines += [f"{finding.severity}: {finding.message}" for finding in check.findings]
    if check.full_batch.price is not None:
        lines.append(f"price: {_full_batch_price(check, check.full_batch.price)}")
    lines += _choice_lines(check)
    hints = [finding.hint for finding in check.findings]
    lines.append(f"next: {'; '.join(hints) or 'specplan simulate tells on a trace what adaptive verification gains'}")
    return lines + list(_legend(check))


def _route(check: RouteCheck) -> str:
    asked = "" if check.graph_mode is check.wished_graph_mode else f" in place of {check.wished_graph_mode}"
    is_ruled = (check.capture_limit_from, check.capture_sizes_from) == ("given", "vllm")
    sizes = "; sizes by vLLM's rule" if is_ruled else ""
    decode, mixed = _RUNS[check.graph_mode.decode_batches], _RUNS[check.graph_mode.mixed_batches]
    return (
        f"route: {check.graph_mode}{asked}: decode batches {decode}, mixed batches {mixed} "
        f"(attention: {check.attention.name}; capture limit: {check.capture_limit}, "
        f"{_LIMIT_SOURCES[check.capture_limit_from]}{sizes})"
    )


def _fits(check: RouteCheck) -> str:
    full = check.full_batch
    return (
        f"ok: {full.route.num_tokens} <= {check.capture_limit} replays a graph: a full batch of {full.num_reqs} x "
        f"(1 + {full.num_speculative_tokens}) tokens is within the capture limit, and so is every smaller one"
    )


def _full_batch_price(check: RouteCheck, price: StepPrice) -> str:
    context = "any context" if check.context_len is None else f"context {check.context_len}"
    shape = f"{_requests(check.max_num_seqs)}, {context}; draft, verify and overhead"
    trimmed = next((choice.step for choice in check.choices if choice.change == "draft-budget"), None)
    if trimmed is None or trimmed.price is None:
        how = "eagerly" if check.full_batch.route.mode == "eager" else "as a replay"
        return f"{_ms(price)} {how} ({shape})"
    text = f"{_ms(price)} eagerly, {_ms(trimmed.price)} at the largest captured size, {trimmed.route.num_tokens} tokens"
    if check.crossing is not None:
        at_most = _AT_MOST if check.crossing.is_upper_bound else ""
        text += f": {at_most}{check.crossing.extra_ms:+.3f} ms, {check.crossing.extra_share:+.1%}"
    return f"{text} ({shape})"


def _choice_lines(check: RouteCheck) -> Iterator[str]:
    """One line per choice, in columns."""
    is_priced = check.full_batch.price is not None
    rows = [
        (_change(choice), f"{choice.step.route.num_tokens} tokens", *([_cost(choice)] if is_priced else []))
        for choice in check.choices
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        name, *figures = row
        cells = [name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(figures, widths[1:], strict=True))]
        yield f"  fits: {'  '.join(cells)}"


def _change(choice: Choice) -> str:
    step = choice.step
    match choice.change:
        case "draft-budget":
            return f"admitting {step.draft_budget} of its {step.num_reqs * step.num_speculative_tokens} drafts"
        case "num-speculative-tokens":
            return f"K = {step.num_speculative_tokens}"
        case "num-reqs":
            return _requests(step.num_reqs)
        case "capture-limit":
            return f"a capture limit of {step.route.num_tokens}"


def _requests(num_reqs: int) -> str:
    return "1 request" if num_reqs == 1 else f"{num_reqs} requests"


def _cost(choice: Choice) -> str:
    return "not in these tables" if choice.step.price is None else _ms(choice.step.price)


def _ms(price: StepPrice) -> str:
    at_most = _AT_MOST if price.is_upper_bound else ""
    return f"{at_most}{price.cost_ms:,.3f} ms{_EXTRAPOLATED if price.is_extrapolated else ''}"


def _legend(check: RouteCheck) -> Iterator[str]:
    prices = [step.price for step in (check.full_batch, *(choice.step for choice in check.choices))]
    if any(price is not None and price.is_upper_bound for price in prices):
        yield "at most: these tables hold no such step of that size; the next larger one that they hold is charged"
    if any(price is not None and price.is_extrapolated for price in prices):
        yield f"{_EXTRAPOLATED} rests on extrapolation"
