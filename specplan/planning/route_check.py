"""Judges how the largest step of an engine's limits runs, what that costs, and which nearby steps replay a graph."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from specplan.errors import ConfigError, CoverageError, InfeasibleError
from specplan.files.tables import Finding, Source
from specplan.planning.routes import AttentionSupport, GraphMode, StepRoute, resolve_graph_mode, route_step
from specplan.shapes import default_capture_sizes

if TYPE_CHECKING:
    from specplan.files.tables import CostTables

__all__ = ["Change", "Choice", "Crossing", "RouteCheck", "RoutedStep", "StepPrice", "check_route"]

Change = Literal["draft-budget", "num-speculative-tokens", "num-reqs", "capture-limit"]
LimitSource = Literal["given", "tables", "vllm"]

_MOST_CAPTURED = 1 << 20  # tokens; no engine captures a step of a million, and the list of sizes grows with it


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrice:
    """cost_ms = draft_ms[K][n] + verify_ms[c, n][t] + overhead_ms[n].

    `is_upper_bound`: the tables hold no step of this size that runs this way, and the next larger one that does is
    charged. Of padded tables alone: others charge a replay of any size by their own reading.
    """

    cost_ms: float
    is_upper_bound: bool
    is_extrapolated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedStep:
    """A step of `num_reqs` requests with K drafts each, of which the budget admits all or `draft_budget`."""

    num_reqs: int
    num_speculative_tokens: int
    draft_budget: int
    route: StepRoute
    price: StepPrice | None  # None: no tables were given, or they do not hold the step, which only a choice may lack


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A step that replays a graph, as near to the full batch as a change of one thing allows."""

    change: Change
    step: RoutedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What the full batch costs, run eagerly, over as many requests trimmed to the largest captured size."""

    extra_ms: float
    extra_share: float  # of the trimmed step's cost
    is_upper_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCheck:
    """How adaptive verification runs under an engine's limits.

    A step of n requests at full budget has n (1 + K) tokens. It replays a graph up to the capture limit, and runs
    eagerly from `eager_from_num_reqs` = limit // (1 + K) + 1 requests on; None where that is past `max_num_seqs`.
    """

    wished_graph_mode: GraphMode
    graph_mode: GraphMode
    attention: AttentionSupport
    max_num_seqs: int
    num_speculative_tokens: int
    capture_limit: int
    capture_limit_from: LimitSource
    capture_sizes_from: LimitSource
    full_batch: RoutedStep
    eager_from_num_reqs: int | None
    findings: tuple[Finding, ...]
    choices: tuple[Choice, ...]  # empty where the full batch replays a graph
    crossing: Crossing | None  # None without prices, or where no graph holds that many requests
    context_len: int | None  # of the prices; None without them, or where they hold for any


def check_route(
    *,
    max_num_seqs: int,
    num_speculative_tokens: int,
    graph_mode: GraphMode,
    has_piecewise: bool,
    attention: AttentionSupport,
    capture_limit: int | None = None,
    capture_sizes: Sequence[int] | None = None,
    tables: CostTables | None = None,
) -> RouteCheck:
    """Resolve the graph mode, route the full batch and judge it; with tables, price it at their longest context.

    Args:
        capture_limit: In tokens. None: the tables' own, or without tables the largest size vLLM captures by default.
            A limit that is given stands for vLLM's default sizes up to it, or for the tables' up to it, and for itself.
        capture_sizes: All that the engine captures, in tokens and in any order, in place of the limit.

    Raises:
        ConfigError: A limit or a size is below 1, or beyond what could be captured; or both are given.
        InfeasibleError: Adaptive verification cannot run: see `resolve_graph_mode`; or nothing is captured.
        CoverageError: The full batch is outside the tables.
    """
    mode = resolve_graph_mode(
        graph_mode, has_piecewise=has_piecewise, attention=attention, num_speculative_tokens=num_speculative_tokens
    )
    if capture_sizes is None:
        sizes = _capture_sizes(max_num_seqs, num_speculative_tokens, capture_limit, tables)
    else:
        sizes = _given_sizes(capture_sizes, capture_limit)
    limit = sizes[-1]
    full_route = route_step(max_num_seqs * (1 + num_speculative_tokens), sizes)
    full_batch = _step(max_num_seqs, num_speculative_tokens, full_route, tables)
    choices = tuple(_choices(full_batch, sizes, tables)) if full_route.mode == "eager" else ()
    known_from: LimitSource = "vllm" if tables is None else "tables"
    return RouteCheck(
        wished_graph_mode=graph_mode,
        graph_mode=mode,
        attention=attention,
        max_num_seqs=max_num_seqs,
        num_speculative_tokens=num_speculative_tokens,
        capture_limit=limit,
        capture_limit_from=known_from if capture_limit is None and capture_sizes is None else "given",
        capture_sizes_from=known_from if capture_sizes is None else "given",
        full_batch=full_batch,
        eager_from_num_reqs=limit // (1 + num_speculative_tokens) + 1 if full_route.mode == "eager" else None,
        findings=tuple(_findings(full_batch, limit)),
        choices=choices,
        crossing=_crossing(full_batch, choices),
        # Tables made from plain curves hold for any context.
        context_len=tables.contexts[-1] if tables is not None and tables.profile_digest is not None else None,
    )


def _capture_sizes(
    max_num_seqs: int, num_speculative_tokens: int, capture_limit: int | None, tables: CostTables | None
) -> tuple[int, ...]:  # ascending, not empty
    sizes = defaults = default_capture_sizes(max_num_seqs, num_speculative_tokens)
    if tables is not None:
        sizes = tuple(tables.capture_sizes)
    if capture_limit is None:
        capture_limit = max(sizes, default=0)
    if not 0 <= capture_limit <= _MOST_CAPTURED:
        raise ConfigError(
            f"the capture limit is {capture_limit} tokens, expected 1 to {_MOST_CAPTURED}",
            "pass the largest number of tokens that the engine captures a graph for, --capture-limit 512 for example",
        )
    if capture_limit == 0:
        raise InfeasibleError(
            "nothing is captured (capture limit 0), and adaptive verification needs full graphs of decode batches",
            f"capture graphs up to {defaults[-1]} tokens, vLLM's default for these limits"
            + ("" if tables is None else ", and measure with them"),
        )
    if tables is None:
        unbounded = _MOST_CAPTURED + 1  # the capture limit is the bound
        sizes = default_capture_sizes(
            max_num_seqs, num_speculative_tokens, max_num_batched_tokens=unbounded, ceiling=capture_limit
        )
    return tuple(sorted({*(size for size in sizes if size < capture_limit), capture_limit}))


def _given_sizes(capture_sizes: Sequence[int], capture_limit: int | None) -> tuple[int, ...]:  # ascending, not empty
    if capture_limit is not None:
        raise ConfigError("capture sizes and a capture limit are given, expected one of them", "leave one of them out")
    sizes = tuple(sorted(set(capture_sizes)))
    if not sizes or not 1 <= sizes[0] <= sizes[-1] <= _MOST_CAPTURED:
        wrong = next((size for size in sizes if not 1 <= size <= _MOST_CAPTURED), "none")
        raise ConfigError(
            f"the capture sizes hold {wrong}, expected numbers of tokens from 1 to {_MOST_CAPTURED}",
            "list the sizes that the engine captures: --capture-sizes 1,2,4,8",
        )
    return sizes


def _step(
    num_reqs: int, k: int, route: StepRoute, tables: CostTables | None, *, is_optional: bool = False
) -> RoutedStep:
    """A step with its price, which may only be missing from tables where it is optional."""
    price = None
    if tables is not None:
        try:
            price = _price(num_reqs, k, route, tables)
        except CoverageError:
            if not is_optional:
                raise
    return RoutedStep(
        num_reqs=num_reqs,
        num_speculative_tokens=k,
        draft_budget=route.num_tokens - num_reqs,
        route=route,
        price=price,
    )


def _price(num_reqs: int, k: int, route: StepRoute, tables: CostTables) -> StepPrice:
    """Priced as the tables were made: a replay at a captured size that holds it, eager steps above the limit only."""
    if route.mode == "graph" and route.padded_tokens > tables.capture_limit:
        raise CoverageError(
            f"no cost for replaying a graph of {route.padded_tokens} tokens: these tables hold graphs up to "
            f"{tables.capture_limit}",
            f"leave --capture-limit out to check against {tables.capture_limit}, or give tables with larger graphs",
        )
    charged = route.padded_tokens if route.mode == "graph" else max(route.num_tokens, tables.capture_limit + 1)
    if charged > tables.max_num_tokens:
        raise CoverageError(
            f"no cost for {num_reqs} requests with {route.num_tokens} tokens run eagerly: these tables reach "
            f"{tables.max_num_tokens} tokens, with graphs up to {tables.capture_limit}",
            f"measure larger steps (specplan profile --max-num-batched-tokens {2 * charged}) and rebuild the tables",
        )
    if route.mode == "graph":
        is_upper_bound = tables.semantics == "padded" and charged not in tables.capture_sizes
    else:
        is_upper_bound = charged > route.num_tokens
        if is_upper_bound and tables.semantics in ("linear", "floor"):
            raise CoverageError(
                f"no cost for {num_reqs} requests with {route.num_tokens} tokens run eagerly: these tables "
                f"({tables.semantics}) hold replays up to {tables.capture_limit} tokens, and past that what these lead "
                "to",
                "build them with --semantics padded, or leave the capture limit out",
            )
    if is_upper_bound and tables.monotone == "none":
        raise CoverageError(
            f"no cost for {num_reqs} requests with {route.num_tokens} tokens run as asked, and these tables "
            "(monotone: none) may fall with size, so that a larger step bounds nothing",
            "build the tables with --monotone running-max, or leave --capture-limit out",
        )
    context_len = tables.contexts[-1]
    verify_ms = tables.verify_row(num_reqs, context_len)[charged]
    if math.isinf(verify_ms):
        raise CoverageError(
            f"no cost for {num_reqs} requests with {charged} tokens: these tables hold measured sizes alone (exact)",
            "build them with --semantics padded",
        )
    source = tables.legend[str(tables.verify_sources(num_reqs, context_len)[charged])]
    return StepPrice(
        cost_ms=float(
            tables.draft_row(k)[num_reqs]
            + verify_ms
            + tables.step_overhead_ms(has_drafts=True, has_budget=True)[num_reqs]
        ),
        is_upper_bound=is_upper_bound,
        is_extrapolated=source == "extrapolated"
        or _is_draft_extrapolated(num_reqs, k, tables)
        or (tables.overhead_source is not None and bool(tables.overhead_source[num_reqs] == Source.EXTRAPOLATED)),
    )


def _is_draft_extrapolated(num_reqs: int, k: int, tables: CostTables) -> bool:
    rows = range(1)
    if tables.draft_ks is not None:
        rows = range(bisect_right(tables.draft_ks, k) - 1, bisect_left(tables.draft_ks, k) + 1)
    return any(tables.draft_source[row, num_reqs] == Source.EXTRAPOLATED for row in rows)


def _choices(full: RoutedStep, sizes: tuple[int, ...], tables: CostTables | None) -> Iterator[Choice]:
    num_reqs, k, limit = full.num_reqs, full.num_speculative_tokens, sizes[-1]

    def choice(change: Change, num_reqs: int, k: int, route: StepRoute) -> Choice:
        return Choice(change=change, step=_step(num_reqs, k, route, tables, is_optional=True))

    if num_reqs <= limit:
        yield choice("draft-budget", num_reqs, k, route_step(limit, sizes))
    fitting_k = limit // num_reqs - 1
    if fitting_k >= 1:
        yield choice("num-speculative-tokens", num_reqs, fitting_k, route_step(num_reqs * (1 + fitting_k), sizes))
    fitting_reqs = limit // (1 + k)
    if fitting_reqs >= 1:
        yield choice("num-reqs", fitting_reqs, k, route_step(fitting_reqs * (1 + k), sizes))
    num_tokens = full.route.num_tokens
    if num_tokens > _MOST_CAPTURED:
        return
    yield choice("capture-limit", num_reqs, k, route_step(num_tokens, (*sizes, num_tokens)))


def _crossing(full: RoutedStep, choices: tuple[Choice, ...]) -> Crossing | None:
    trimmed = next((choice.step.price for choice in choices if choice.change == "draft-budget"), None)
    # Over an upper bound a difference would bound nothing.
    if full.price is None or trimmed is None or trimmed.is_upper_bound:
        return None
    extra_ms = full.price.cost_ms - trimmed.cost_ms
    return Crossing(extra_ms=extra_ms, extra_share=extra_ms / trimmed.cost_ms, is_upper_bound=full.price.is_upper_bound)


def _findings(full: RoutedStep, limit: int) -> Iterator[Finding]:
    num_reqs, k, num_tokens = full.num_reqs, full.num_speculative_tokens, full.route.num_tokens
    if full.route.mode == "eager":
        first = limit // (1 + k) + 1
        others = f"every one from {first} requests on" if first > 1 else "every one"
        yield Finding(
            code="past-capture-limit",
            severity="warning",
            place="full batch",
            message=f"{num_tokens} > {limit} runs eagerly: a full batch of {num_reqs} x (1 + {k}) tokens is past the "
            f"capture limit; at K = {k} so is {others}",
            hint="cost tables that reach it say what this costs"
            if full.price is None
            else "specplan simulate tells on a trace which choice pays",
        )
    if num_reqs > limit:
        yield Finding(
            code="requests-past-capture-limit",
            severity="warning",
            place="full batch",
            message=f"from {limit + 1} requests on a step runs eagerly whatever is trimmed: each has one token or more",
            hint=f"keep --max-num-seqs to {limit} or less, or capture {num_reqs} tokens or more",
        )
    padding = full.route.padded_tokens - num_tokens
    if padding:
        yield Finding(
            code="padding",
            severity="note",
            place="full batch",
            message=f"{num_tokens} tokens replay the graph of {full.route.padded_tokens}: {padding} of its tokens "
            f"({padding / full.route.padded_tokens:.1%}) are padding",
            hint=f"capture {num_tokens} tokens too, and a full batch pads nothing",
        )
