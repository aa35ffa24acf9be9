"""What a device is, without a model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from builders import make_profile_of_every_region

from specplan.costs.binding import PLACE, Identity, differences, identity_of
from specplan.device.identity import identify_device
from specplan.measure.environment import describe_environment


def test_it_is_what_a_profile_measured_here_says() -> None:
    """Whoever holds a file against this machine finds it the same, and dtype and models unknown."""
    cpu = torch.device("cpu")
    here = identify_device(cpu)
    measured = identity_of(make_profile_of_every_region(environment=describe_environment(cpu, torch.float32)))
    assert here.device
    assert here.processors == "1 thread"
    assert differences(measured, here, PLACE) == []
    assert all(difference.is_unknown for difference in differences(measured, here))


def test_a_gpu_and_what_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA H100", uuid="0b1c", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert identify_device(torch.device("cuda", 3)) == Identity(
        device="NVIDIA H100", device_uuid="0b1c", processors="132 SMs"
    )
    assert identify_device(torch.device("meta")) == Identity()
