"""The `vllm bench forward` commands whose output fills the points of a sweep."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specplan.shapes import SPREAD, StepShape, even_query_lens, ragged_query_lens, spread_lens

__all__ = ["BenchCommands", "PlannedPoint", "bench_forward_commands"]

VERIFY_FILE = "verify.json"


class PlannedPoint(Protocol):
    """One point of a sweep, as measure/ plans it."""

    @property
    def model(self) -> str: ...
    @property
    def mode(self) -> str: ...
    @property
    def shape(self) -> StepShape: ...
    @property
    def k(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCommands:
    """Runs of the bench, then the import of what they write. `unfilled` counts the points that no run fills, by why."""

    runs: list[list[str]]
    importing: list[str]
    num_filled: int
    unfilled: dict[str, int]


@dataclass(slots=True, kw_only=True)
class _Cases:
    """Batches to run, each once; a batch is a number of requests of each (query, keys, drafts)."""

    names: dict[str, str] = field(default_factory=dict)  # requests as the bench writes them -> name

    def add(self, name: str, requests: Sequence[str]) -> str:
        batch = ",".join(f"{count}*{request}" if count > 1 else request for request, count in Counter(requests).items())
        return f"{self.names.setdefault(batch, name)}={batch}"

    def options(self) -> list[str]:
        return [part for batch, name in self.names.items() for part in ("--case", f"{name}={batch}")]


def bench_forward_commands(
    points: Iterable[PlannedPoint], *, target: str, draft: str, num_speculative_tokens: int, output: str
) -> BenchCommands:
    """One run with `--exclude-drafter` of every verify and mixed step, and one with the drafter for each k it drafts.

    A case is NAME=REQS, a comma list of [N*]Q[@K][:D]: N requests of Q queries each and K keys, these included, D of
    the queries drafts; a prompt is a bare Q. Drafting is timed on the smallest verify step of as many requests, which
    the first run holds too.
    """
    points = list(points)
    unfilled: Counter[str] = Counter()
    verify = _Cases()
    smallest: dict[tuple[int, int], tuple[int, str]] = {}  # requests, context -> tokens, case
    replayed = [point.shape.num_tokens for point in points if point.model == "verify" and point.mode == "graph"]
    capture_limit = max(replayed, default=0)
    narrow: dict[tuple[int, int | None], int] = {}
    for point in points:
        at = point.shape.num_reqs, point.k
        narrow[at] = min(narrow.get(at, point.shape.num_tokens), point.shape.num_tokens)
    drafts: dict[int, list[StepShape]] = {}
    for point in points:
        shape = point.shape
        if why := _why_not(point, capture_limit, num_speculative_tokens):
            unfilled[why] += 1
        elif point.model == "draft" and shape.num_tokens > narrow[shape.num_reqs, point.k]:
            unfilled["draft after a whole step: drafting is timed after the smallest"] += 1
        elif point.model == "draft":
            drafts.setdefault(point.k or 0, []).append(shape)
        else:
            case = verify.add(_name(shape), _requests(shape, num_speculative_tokens))
            if not shape.is_mixed and shape.lengths == "even":
                known = smallest.get((shape.num_reqs, shape.context_len))
                if known is None or shape.num_tokens < known[0]:
                    smallest[shape.num_reqs, shape.context_len] = shape.num_tokens, case
    runs = []
    for k, shapes in sorted(drafts.items()):
        cases = []
        for shape in shapes:
            at = shape.num_reqs, shape.context_len
            if at not in smallest:
                alone = StepShape(num_reqs=at[0], num_tokens=at[0], context_len=at[1])
                smallest[at] = at[0], verify.add(_name(alone), _requests(alone, num_speculative_tokens))
            cases.append(smallest[at][1])
        runs.append((k, list(dict.fromkeys(cases))))
    first = [*_bench(target, draft, num_speculative_tokens), "--exclude-drafter", *verify.options()]
    return BenchCommands(
        runs=[
            [*first, "--output-json", VERIFY_FILE],
            *(
                [
                    *_bench(target, draft, k),
                    *(part for case in cases for part in ("--case", case)),
                    "--output-json",
                    _file(k),
                ]
                for k, cases in runs
            ),
        ],
        importing=[
            *("specplan", "import", "costs", VERIFY_FILE, "--format", "vllm-forward"),
            *(part for k, _ in runs for part in ("--with-drafter", f"{k}={_file(k)}")),
            *("--capture-limit", str(capture_limit)),
            *("-k", str(num_speculative_tokens), "--target", target, "--draft", draft, "-o", output),
        ],
        num_filled=len(points) - unfilled.total(),
        unfilled=dict(unfilled),
    )


def _why_not(point: PlannedPoint, capture_limit: int, num_speculative_tokens: int) -> str | None:
    shape = point.shape
    if point.model not in ("verify", "draft"):
        return f"{point.model}: the bench does not time it on its own"
    if shape.layout != "multi-query":
        return "verify in batch expansion: vLLM has one layout"
    if point.model == "draft":
        if point.mode == "eager":
            return "draft, eager: the bench replays graphs"
        if not point.k:
            return "draft, k = 0: vLLM's drafter drafts one token or more"
        return "draft of spread contexts: drafting is priced at even ones" if shape.lengths != "even" else None
    if point.mode == "eager" and not shape.is_mixed and shape.num_tokens <= capture_limit:
        return "verify, eager, up to the capture limit: the bench replays graphs"
    if not shape.is_mixed and -(-shape.num_tokens // shape.num_reqs) > 1 + num_speculative_tokens:
        return "verify of more than 1 + K tokens per request: vLLM has no such step without prompts"
    return None


def _requests(shape: StepShape, num_speculative_tokens: int) -> list[str]:
    n, num_tokens = shape.num_verifying, shape.num_tokens - shape.num_prompt_tokens
    requests = []
    if n:
        ragged = shape.lengths == "ragged"
        queries = ragged_query_lens(n, num_tokens, num_speculative_tokens) if ragged else even_query_lens(n, num_tokens)
        is_even = shape.lengths == "even"
        contexts = (shape.context_len,) * n if is_even else spread_lens(n, shape.context_len, SPREAD)
        for query, context in zip(queries, contexts, strict=True):
            requests.append(f"{query}@{context + query}" + (f":{query - 1}" if query > 1 else ""))
    if shape.is_mixed:
        requests += map(str, even_query_lens(shape.num_prefilling, shape.num_prompt_tokens))
    return requests


def _name(shape: StepShape) -> str:
    kind = f"mixed-p{shape.num_prompt_tokens}" if shape.is_mixed else "verify"
    lengths = "" if shape.lengths == "even" else f"-{shape.lengths}"
    tokens = shape.num_tokens - shape.num_prompt_tokens
    return f"{kind}-n{shape.num_verifying}-t{tokens}-c{shape.context_len}{lengths}"


def _bench(target: str, draft: str, k: int) -> list[str]:
    config = json.dumps({"model": draft, "num_speculative_tokens": k}, separators=(",", ":"))
    return ["vllm", "bench", "forward", "--model", target, "--speculative-config", config, "--kv-len-jitter", "0"]


def _file(k: int) -> str:
    return f"draft-{k}.json"
