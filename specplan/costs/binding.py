"""What costs hold for: a device, a pair of models, how they run. And where two of these part.

What nobody knows neither equals nor differs: it is a difference that is unknown, and whoever asks says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final

from msgspec import Struct

from specplan.files.profile import ModelInfo, Profile
from specplan.files.tables import CostTables, Finding
from specplan.files.trace import TraceMetadata
from specplan.shapes import Layout

__all__ = [
    "MODELS",
    "PLACE",
    "Difference",
    "Identity",
    "differences",
    "identity_of",
    "in_words",
    "judge_place",
    "processors",
    "recorded_pair",
]

# Aspects that a trace knows, and those that a machine knows without a model.
MODELS: Final = ("target", "draft")
PLACE: Final = ("device", "processors", "device_uuid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What costs hold for; None is what nobody knows.

    `processors` are a GPU's SMs, fewer in a MIG slice, or the threads that a CPU was given. A model is its config:
    other weights cost the same. `device_uuid` tells a card from another of its kind; a CPU has none.
    """

    device: str | None = None
    processors: str | None = None
    dtype: str | None = None
    layout: Layout | None = None
    tensor_parallel_size: int | None = None
    target: ModelInfo | None = None
    draft: ModelInfo | None = None
    device_uuid: str | None = None


class Difference(Struct, frozen=True, kw_only=True):
    """Where two identities part, or, where either is null, nobody knows whether they do.

    `binds`: whether costs of the one are none of the other. Two cards of a kind are expected to cost the same.
    """

    aspect: str
    first: str | None
    second: str | None
    binds: bool = True

    @property
    def is_unknown(self) -> bool:
        return self.first is None or self.second is None


def identity_of(costs: Profile | CostTables) -> Identity:
    """Of what was measured, in the layout that is priced: the other is compared, and prices nothing."""
    environment = costs.environment
    layout = costs.layout if isinstance(costs, CostTables) else "multi-query"
    if environment is None:
        return Identity(layout=layout, target=costs.target, draft=costs.draft)
    return Identity(
        device=environment.device,
        processors=processors(sm_count=environment.sm_count, num_threads=environment.num_threads),
        dtype=environment.dtype,
        layout=layout,
        tensor_parallel_size=environment.tensor_parallel_size,
        target=costs.target,
        draft=costs.draft,
        device_uuid=environment.device_uuid,
    )


def recorded_pair(trace: TraceMetadata) -> Identity:
    """Of a trace, the pair alone: what is accepted does not hang on where it was recorded."""

    def model(role: str, name: str) -> ModelInfo:
        sha256 = trace.provenance.get(f"{role}_config_sha256")
        return ModelInfo(name=name, num_params=None, config_sha256=sha256 if isinstance(sha256, str) else None)

    return Identity(target=model("target", trace.target), draft=model("draft", trace.draft))


def differences(first: Identity, second: Identity, aspects: Sequence[str] | None = None) -> list[Difference]:
    """In the order of the identity's fields; what both know and is equal is left out. `aspects`: all where not given.

    A card's UUID counts where both have one and the device is the same: elsewhere it says nothing new. Models are told
    apart by their configs; where one has none, other names are other models, and the same name may be any.
    """
    found = []
    for aspect in aspects or [field.name for field in fields(Identity)]:
        mine, other = getattr(first, aspect), getattr(second, aspect)
        is_unknown = None in (_key(mine), _key(other))
        if is_unknown and isinstance(mine, ModelInfo) and isinstance(other, ModelInfo) and _names_differ(mine, other):
            found.append(Difference(aspect=aspect, first=_line(mine.name), second=_line(other.name)))
            continue
        is_unit = aspect == "device_uuid"
        if not is_unknown and _key(mine) == _key(other):
            continue
        if is_unit and (is_unknown or first.device != second.device):
            continue
        found.append(Difference(aspect=aspect, first=_shown(mine), second=_shown(other), binds=not is_unit))
    return found


def in_words(difference: Difference, first: str, second: str) -> str:
    """`device: NVIDIA H100 in OLD, NVIDIA H200 in NEW`, by the names that the two go by."""
    aspect = difference.aspect.replace("_", " ")
    return f"{aspect}: {difference.first or 'unknown'} in {first}, {difference.second or 'unknown'} in {second}"


def processors(*, sm_count: int | None = None, num_threads: int | None = None) -> str | None:
    if sm_count is not None:
        return f"{sm_count} SMs"
    return None if num_threads is None else f"{num_threads} thread{'' if num_threads == 1 else 's'}"


def _key(value: str | int | ModelInfo | None) -> str | int | None:
    return value.config_sha256 if isinstance(value, ModelInfo) else value


def _shown(value: str | int | ModelInfo | None) -> str | None:
    """Of a model its name as well, which says more than its hash."""
    if isinstance(value, ModelInfo):
        return (
            None if value.config_sha256 is None else f"{_line(value.name)} (config {_line(value.config_sha256[:12])})"
        )
    return None if value is None else _line(str(value))


def _names_differ(first: ModelInfo, second: ModelInfo) -> bool:
    """Without the organisation or folder before it: one model has many of those."""
    names = {model.name.rstrip("/").rpartition("/")[2].casefold() for model in (first, second)}
    return "" not in names and len(names) > 1


def _line(text: str) -> str:
    """Names come from files, and a message is one line."""
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 80 else f"{text[:77]}..."


def judge_place(costs: Identity, here: Identity, aspects: Sequence[str]) -> Iterator[Finding]:
    """Where costs are of another device than this one, or nobody knows."""
    for difference in differences(costs, here, aspects):
        if difference.binds:
            yield Finding(
                code="device-unknown" if difference.is_unknown else "wrong-device",
                severity="note" if difference.is_unknown else "warning",
                place=difference.aspect,
                message=in_words(difference, "these costs", "this machine"),
                hint="measure this device: specplan profile; or plan for the one that these costs are of",
            )
