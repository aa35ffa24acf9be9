"""What costs hold for, and where two of these part."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from builders import CPU_ENVIRONMENT, make_profile_of_every_region
from hypothesis import given
from hypothesis import strategies as st

from specplan.costs import build_cost_tables, tables_from_profile
from specplan.costs.binding import MODELS, Difference, Identity, differences, identity_of, in_words, recorded_pair
from specplan.files import ModelInfo, TraceMetadata

H100 = Identity(
    device="NVIDIA H100",
    processors="132 SMs",
    dtype="bfloat16",
    layout="multi-query",
    tensor_parallel_size=2,
    target=ModelInfo(name="big", num_params=None, config_sha256="a" * 64),
    draft=ModelInfo(name="small", num_params=None, config_sha256="b" * 64),
    device_uuid="0b1c",
)
OTHERS: dict[str, Any] = {
    "device": "NVIDIA H200",
    "processors": "16 SMs",
    "dtype": "float16",
    "layout": "batch-expansion",
    "tensor_parallel_size": 4,
    "target": ModelInfo(name="big", num_params=None, config_sha256="c" * 64),
    "draft": ModelInfo(name="small", num_params=None, config_sha256="d" * 64),
    "device_uuid": "ffff",
}


def test_the_same_has_no_difference() -> None:
    assert differences(H100, H100) == []
    renamed = replace(H100, target=ModelInfo(name="/models/big", num_params=7, config_sha256="a" * 64))
    assert differences(H100, renamed) == []  # a path is no identity


@pytest.mark.parametrize("aspect", OTHERS)
def test_each_aspect_differs_and_may_be_unknown(aspect: str) -> None:
    (difference,) = differences(H100, replace(H100, **{aspect: OTHERS[aspect]}))
    assert (difference.aspect, difference.is_unknown) == (aspect, False)
    assert difference.binds == (aspect != "device_uuid")  # another card of the same kind
    unknown = differences(H100, replace(H100, **{aspect: None}))
    assert [each.is_unknown for each in unknown] == ([] if aspect == "device_uuid" else [True])
    nobody = differences(replace(H100, **{aspect: None}), replace(H100, **{aspect: None}))
    assert [(each.first, each.second) for each in nobody] == ([] if aspect == "device_uuid" else [(None, None)])


def test_a_card_is_no_news_where_the_device_is_another() -> None:
    other = replace(H100, device="NVIDIA H200", device_uuid="ffff")
    assert [difference.aspect for difference in differences(H100, other)] == ["device"]


def test_the_aspects_asked_about_alone() -> None:
    other = Identity(**OTHERS)
    assert [difference.aspect for difference in differences(H100, other, MODELS)] == ["target", "draft"]
    assert {field.name for field in fields(Identity)} == set(OTHERS)


@given(st.data())
def test_either_way_round(data: st.DataObject) -> None:
    """What differs differs, and what is unknown is unknown, whichever comes first."""

    def identity() -> Identity:
        chosen = {name: data.draw(st.sampled_from([None, getattr(H100, name), OTHERS[name]])) for name in OTHERS}
        return Identity(**chosen)

    first, second = identity(), identity()
    there, back = differences(first, second), differences(second, first)
    assert [(d.aspect, d.first, d.second) for d in there] == [(d.aspect, d.second, d.first) for d in back]
    known = [d for d in differences(first, first) if not d.is_unknown]
    assert known == []


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ("meta-llama/Llama-2-7b-hf", ("Llama-2-7b-hf", None)),
        ("llama-2-7b-HF", ("Llama-2-7b-hf", None)),
        ("", ("Llama-2-7b-hf", None)),
        ("tiny", ("Llama-2-7b-hf", "tiny")),
    ],
)
def test_without_a_config_another_name_is_another_model(other: str, expected: tuple[str, str | None]) -> None:
    def of(name: str, sha256: str | None) -> Identity:
        return Identity(target=ModelInfo(name=name, num_params=None, config_sha256=sha256))

    for sha256 in (None, "0" * 64):
        (found,) = differences(of("Llama-2-7b-hf", None), of(other, sha256), MODELS[:1])
        assert found.is_unknown == (expected[1] is None)
        if not found.is_unknown:
            assert (found.first, found.second) == expected
            assert found.binds
    assert not differences(of("a", "0" * 64), of("b", "0" * 64), MODELS[:1])  # one config, whatever it is called


def test_in_words() -> None:
    (difference,) = differences(H100, replace(H100, target=OTHERS["target"]))
    assert in_words(difference, "OLD", "NEW") == (
        "target: big (config aaaaaaaaaaaa) in OLD, big (config cccccccccccc) in NEW"
    )
    (unknown,) = differences(H100, replace(H100, tensor_parallel_size=None))
    assert in_words(unknown, "these", "those") == "tensor parallel size: 2 in these, unknown in those"


def test_names_from_files_stay_on_a_line() -> None:
    (difference,) = differences(H100, replace(H100, device="two\nlines" + "x" * 200))
    assert difference.second is not None
    assert "\n" not in difference.second
    assert len(difference.second) == 80


def test_profiles_and_tables_know_the_same() -> None:
    gpu = msgspec.structs.replace(
        CPU_ENVIRONMENT,
        device="NVIDIA H100",
        device_uuid="0b1c",
        sm_count=132,
        num_threads=None,
        tensor_parallel_size=2,
    )
    profile = make_profile_of_every_region(environment=gpu)
    identity = identity_of(profile)
    assert identity == identity_of(tables_from_profile(profile))
    assert (identity.device, identity.device_uuid, identity.processors) == ("NVIDIA H100", "0b1c", "132 SMs")
    assert (identity.dtype, identity.layout, identity.tensor_parallel_size) == ("float32", "multi-query", 2)
    assert (identity.target, identity.draft) == (profile.target, profile.draft)
    cpu = identity_of(make_profile_of_every_region())
    assert (cpu.processors, cpu.device_uuid) == ("2 threads", None)


def test_tables_of_a_curve_know_nothing() -> None:
    tables = build_cost_tables(None, [(1, 1.0), (8, 2.0)], max_num_reqs=4, max_num_tokens=8)
    assert identity_of(tables) == Identity(layout="multi-query")


@pytest.mark.parametrize("recorded", ["a" * 64, None, 3])
def test_a_trace_knows_its_pair_where_it_was_recorded(recorded: str | int | None) -> None:
    metadata = TraceMetadata(
        kind="dense",
        sampling="greedy",
        num_speculative_tokens=2,
        target="big",
        draft="small",
        tokenizer="big",
        source="prompts",
        provenance={} if recorded is None else {"target_config_sha256": recorded},
    )
    found = differences(recorded_pair(metadata), H100, MODELS)
    unknown = [Difference(aspect="draft", first=None, second="small (config bbbbbbbbbbbb)")]
    if recorded != "a" * 64:
        unknown.insert(0, Difference(aspect="target", first=None, second="big (config aaaaaaaaaaaa)"))
    assert found == unknown
