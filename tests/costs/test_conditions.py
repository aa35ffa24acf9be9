"""Whether a profile's device was quiet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from specplan.costs import tables_from_profile
from specplan.costs.conditions import judge_conditions
from specplan.files import Finding, Profile, Reading

Make = Callable[..., Any]


def found(profile: Profile) -> dict[str, Finding]:
    return {finding.code: finding for finding in judge_conditions(profile)}


def test_what_is_unknown_is_said_to_be(make_profile: Make) -> None:
    for readings in ([], [Reading(at_s=0.0)], [Reading(at_s=0.0, temperature_c=40)]):
        assert list(found(make_profile(readings=readings))) == ["conditions-unknown"]
    assert found(make_profile(source="somewhere else")) == {}  # whoever measured it may know
    assert "conditions-unknown" in {finding.code for finding in tables_from_profile(make_profile()).findings}


def test_a_quiet_device_is_no_finding(make_profile: Make) -> None:
    quiet = [Reading(at_s=1.0, throttle=[], other_processes=0), Reading(at_s=2.0, others_share=0.01)]
    assert found(make_profile(readings=quiet)) == {}


def test_clocks_held_back_are_named_with_the_reasons(make_profile: Make) -> None:
    readings = [Reading(at_s=0.0, throttle=[]), Reading(at_s=5.0), Reading(at_s=9.0, throttle=["power cap"])]
    finding = found(make_profile(readings=readings))["throttled"]
    assert (finding.severity, finding.place) == ("warning", "$.readings[2]")
    assert finding.message == "clocks were held back at 1 of 2 readings: power cap"


def test_others_on_the_device_are_a_warning(make_profile: Make) -> None:
    shared = [Reading(at_s=0.0), *(Reading(at_s=5.0, others_share=share) for share in (0.0, 0.04, 0.5))]
    assert found(make_profile(readings=shared))["shared-device"].message == (
        "others used 18% of the processor while it was measured, at most 50%"
    )
    beside = [Reading(at_s=0.0, throttle=[], other_processes=count) for count in (0, 2, 1)]
    assert found(make_profile(readings=beside))["shared-device"].message == (
        "2 other processes were on the GPU at 2 of 3 readings"
    )


def test_captured_steps_that_wait_for_the_host(make_profile: Make) -> None:
    """A step of 10 ms whose device is busy for 4 waits for 60% of it."""
    profile = make_profile(readings=[Reading(at_s=0.0, throttle=[])])
    samples = [
        msgspec.structs.replace(sample, repetitions_ms=[10.0] * 3, device_ms=[4.0, 9.9, 3.0])
        if (sample.model, sample.mode, sample.num_tokens) == ("verify", "graph", 4)
        else sample
        for sample in profile.samples
    ]
    assert [sample.host_bound_fraction for sample in samples if sample.device_ms] == [pytest.approx(0.6)] * 3
    finding = found(msgspec.structs.replace(profile, samples=samples))["host-bound"]
    assert "3 of 9 captured steps wait for the host for over 20% of their time, this one for 60%" in finding.message
    assert profile.samples[0].host_bound_fraction is None
