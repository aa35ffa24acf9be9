from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import CPU_ENVIRONMENT, DRAFT, TARGET

from specplan.errors import FileError
from specplan.files import Profile, Sample


def sample(**changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "model": "verify",
        "mode": "graph",
        "layout": "multi-query",
        "num_reqs": 2,
        "num_tokens": 3,
        "executed_num_reqs": 2,
        "executed_num_tokens": 4,
        "k": None,
        "context_len": 128,
        "warmup_ms": [9.0],
        "repetitions_ms": [1.0, 3.0, 2.0, 10.0],
        "stop_reason": "converged",
    }
    return Sample(**{**fields, **changes})


def mixed_sample(**changes: Any) -> Sample:
    """Two requests with two drafts each, beside two prompts of 10 tokens in all."""
    shape = {"num_reqs": 4, "num_tokens": 16, "executed_num_reqs": 4, "executed_num_tokens": 16}
    return sample(**(shape | {"mode": "eager", "num_prefilling": 2, "num_prompt_tokens": 10} | changes))


@pytest.fixture
def profile() -> Profile:
    return Profile(
        specplan_version="0.1.0",
        created="2026-01-01T00:00:00Z",
        source="measured",
        environment=CPU_ENVIRONMENT,
        target=TARGET,
        draft=DRAFT,
        num_speculative_tokens=3,
        max_num_seqs=2,
        max_num_batched_tokens=8,
        capture_sizes=[1, 2, 4],
        complete=True,
        samples=[
            sample(),
            sample(model="draft", k=3),
            sample(model="host", mode="eager", executed_num_tokens=3, k=3),
            sample(model="draft-prefill", mode="eager", executed_num_tokens=3),
            mixed_sample(),
        ],
    )


@pytest.fixture
def edited(profile: Profile, tmp_path: Path) -> Callable[[Callable[[Any], object]], Path]:
    """Writes the profile, changed by a function of its JSON."""

    def edit(change: Callable[[Any], object]) -> Path:
        content = msgspec.to_builtins(profile)
        change(content)
        path = tmp_path / "profile.json"
        path.write_text(json.dumps(content))
        return path

    return edit


def test_round_trip_is_exact_and_deterministic(profile: Profile, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    profile.write(first)
    again = Profile.read(first)
    again.write(second)
    assert again == profile
    assert first.read_bytes() == second.read_bytes()
    assert again.digest() == profile.digest()


def test_the_digest_is_that_of_the_file(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile.write(path)
    assert profile.digest() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_one_sample_a_line(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile.write(path)
    lines = path.read_text().splitlines()
    assert sum('"repetitions_ms"' in line for line in lines) == len(profile.samples)
    assert ' "capture_sizes": [1,2,4],' in lines


def test_properties(profile: Profile) -> None:
    assert profile.capture_limit == 4
    assert msgspec.structs.replace(profile, capture_sizes=[]).capture_limit == 0


def test_a_mixed_sample_knows_its_parts() -> None:
    mixed = mixed_sample()
    assert (mixed.shape.is_mixed, mixed.shape.num_verifying, mixed.shape.num_drafts) == (True, 2, 4)
    alone = mixed_sample(num_reqs=2, num_tokens=10, executed_num_reqs=2, executed_num_tokens=10, context_len=0)
    assert (alone.shape.is_mixed, alone.shape.num_verifying, alone.shape.num_drafts) == (True, 0, 0)
    assert not sample().shape.is_mixed


def test_a_host_sample_without_a_drafter_proposes_no_drafts() -> None:
    assert sample(model="host", mode="eager", executed_num_tokens=3, k=0).k == 0


def set_at(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = to

    return change


verify = partial(set_at, "samples", 0)
draft = partial(set_at, "samples", 1)
host = partial(set_at, "samples", 2)
draft_prefill = partial(set_at, "samples", 3)
mixed = partial(set_at, "samples", 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (draft("num_tokens", to="3"), "$.samples[1].num_tokens: expected int, got str"),
        (draft("num_reqs", to=0), "$.samples[1].num_reqs: expected int >= 1, got 0"),
        (verify("repetitions_ms", 2, to=-1.0), "$.samples[0].repetitions_ms[2]: expected float >= 1e-06, got -1.0"),
        (verify("repetitions_ms", to=[]), "$.samples[0].repetitions_ms: expected array of length >= 1, got []"),
        (verify("layout", to="rows"), "$.samples[0].layout: invalid enum value 'rows'"),
        (
            draft("layout", to="batch-expansion"),
            "$.samples[1].layout: expected multi-query for a draft sample, got batch-expansion",
        ),
        (
            host("layout", to="batch-expansion"),
            "$.samples[2].layout: expected multi-query for a host sample, got batch-expansion",
        ),
        (mixed("mode", to="graph"), "$.samples[4].mode: expected eager for a mixed verify sample, got graph"),
        (
            mixed("executed_num_tokens", to=17),
            "$.samples[4].executed_num_tokens: expected the 16 asked for, as nothing pads, got 17",
        ),
        (
            mixed("num_prefilling", to=0),
            "$.samples[4].num_prefilling: expected 1 to the 4 that 4 requests and 10 prompt tokens can be, got 0",
        ),
        (
            mixed("num_prompt_tokens", to=1),
            "$.samples[4].num_prefilling: expected 1 to the 1 that 4 requests and 1 prompt tokens can be, got 2",
        ),
        (
            mixed("num_prompt_tokens", to=11),
            "$.samples[4].num_tokens: expected 11 prompt tokens and as many for each of 2 verifying requests, got 16",
        ),
        (
            mixed("num_prefilling", to=4),
            "$.samples[4].num_tokens: expected 10 prompt tokens and as many for each of 0 verifying requests, got 16",
        ),
        (
            draft("num_prompt_tokens", to=2),
            "$.samples[1].num_prompt_tokens: expected 0 for a draft sample, got 2",
        ),
        (verify("k", to=1), "$.samples[0].k: expected null for a verify sample, got 1"),
        (draft("k", to=None), "$.samples[1].k: expected drafts per request for a draft sample, got null"),
        (draft("k", to=4), "$.samples[1].k: expected at most num_speculative_tokens (3), got 4"),
        (host("k", to=None), "$.samples[2].k: expected drafts per request for a host sample, got null"),
        (host("k", to=4), "$.samples[2].k: expected at most num_speculative_tokens (3), got 4"),
        (host("mode", to="graph"), "$.samples[2].mode: expected eager for a host sample, got graph"),
        (host("num_tokens", to=1), "$.samples[2].num_tokens: expected at least one per request (2), got 1"),
        (
            host("executed_num_tokens", to=4),
            "$.samples[2].executed_num_tokens: expected the 3 asked for, as nothing pads, got 4",
        ),
        (host("device_ms", to=[1.0] * 4), "$.samples[2].device_ms: expected none for a host sample, got 4"),
        (draft_prefill("k", to=0), "$.samples[3].k: expected null for a draft-prefill sample, got 0"),
        (draft_prefill("mode", to="graph"), "$.samples[3].mode: expected eager for a draft-prefill sample, got graph"),
        (draft_prefill("num_tokens", to=1), "$.samples[3].num_tokens: expected at least one per request (2), got 1"),
        (
            draft_prefill("executed_num_reqs", to=3),
            "$.samples[3].executed_num_reqs: expected the 2 asked for, as nothing pads, got 3",
        ),
        (verify("model", to="prefill"), "$.samples[0].model: invalid enum value 'prefill'"),
        (verify("num_tokens", to=1), "$.samples[0].num_tokens: expected at least one per request (2), got 1"),
        (
            verify("executed_num_tokens", to=2),
            "$.samples[0].executed_num_tokens: expected at least the 3 asked for, got 2",
        ),
        (
            verify("device_ms", to=[1.0]),
            "$.samples[0].device_ms: expected none, or one for each of 4 repetitions, got 1",
        ),
        (verify("mode", to="fast"), "$.samples[0].mode: invalid enum value 'fast'"),
        (verify("speed", to=1), "$.samples[0]: object contains unknown field speed"),
        (set_at("capture_sizes", to=[1, 4, 4]), "$.capture_sizes[2]: expected more than 4 (ascending), got 4"),
        (lambda content: content["environment"].pop("device"), "$.environment: object missing required field device"),
        (
            verify("repetitions_ms", 1, to=float("nan")),
            "$.samples[0].repetitions_ms[1]: expected a finite number, got nan",
        ),
        (verify("warmup_ms", 0, to=float("inf")), "$.samples[0].warmup_ms[0]: expected a finite number, got inf"),
    ],
)
def test_a_malformed_field_is_named(
    edited: Callable[[Callable[[Any], object]], Path], change: Callable[[Any], object], message: str
) -> None:
    path = edited(change)
    with pytest.raises(FileError) as raised:
        Profile.read(path)
    assert raised.value.message == f"{path}: {message}"
    assert raised.value.hint == "`specplan profile` writes a profile; run it again, or give another file"


@pytest.mark.parametrize(
    ("schema", "message", "hint"),
    [
        (
            "specplan.tables/1",
            "expected specplan.profile/1, got specplan.tables/1",
            "this file holds cost tables, read by `specplan simulate --tables`; `specplan profile` writes a profile",
        ),
        (
            "specplan.profile/3",
            "specplan.profile/3 is newer than this specplan reads (1)",
            "upgrade specplan to the version that wrote it",
        ),
        (
            "specplan.profile/0",
            "specplan.profile/0 is older than this specplan reads (1)",
            "write it again: `specplan profile`",
        ),
        (
            "specplan.profile/one",
            "expected specplan.profile/1, got specplan.profile/one",
            "`specplan profile` writes a profile",
        ),
        ("two\nlines", "expected specplan.profile/1, got 'two\\nlines'", "`specplan profile` writes a profile"),
        (None, "no schema, expected specplan.profile/1", "`specplan profile` writes a profile"),
    ],
)
def test_other_schemas_and_versions(
    edited: Callable[[Callable[[Any], object]], Path], schema: str | None, message: str, hint: str
) -> None:
    path = edited(set_at("schema", to=schema))
    with pytest.raises(FileError) as raised:
        Profile.read(path)
    assert (raised.value.message, raised.value.hint) == (f"{path}: {message}", hint)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON: it ends too early at line 1, column 1"),
        (b'{"schema": "specplan.profile/1",\n "a" 1}', "not JSON: expected ':' at line 2, column 6"),
        (b'{"a": 1}\n{"a": 2}\n', "not JSON: trailing characters at line 2, column 2"),
        (b"PAR1\xff\x00", "byte 4 is not UTF-8, expected JSON"),
        (b"[1, 2]", "expected a JSON object, got array"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply, expected specplan.profile/1"),
    ],
)
def test_what_is_not_json(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(data)
    with pytest.raises(FileError) as raised:
        Profile.read(path)
    assert raised.value.message == f"{path}: {message}"


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file") as raised:
        Profile.read(tmp_path / "absent.json")
    assert "`specplan profile`" in raised.value.hint
    with pytest.raises(FileError, match="is a directory, expected a file"):
        Profile.read(tmp_path)


def test_what_would_not_read_back_is_not_written(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for bad, place in (
        (float("nan"), "expected a finite number, got nan"),
        (-1.0, "expected float >= 1e-06, got -1.0"),
    ):
        broken = msgspec.structs.replace(profile, samples=[sample(repetitions_ms=[1.0, bad])])
        with pytest.raises(FileError) as raised:
            broken.write(path)
        assert raised.value.message == f"cannot write {path}: $.samples[0].repetitions_ms[1]: {place}"
    assert list(tmp_path.iterdir()) == []
