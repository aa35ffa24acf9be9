"""The doctor on a GPU: every question about it is answered or said to be unknown."""

from __future__ import annotations

import pytest
import torch

from specplan.device.identity import identify_device
from specplan.measure.doctor import examine
from specplan.measure.gpu_symptoms import GPU_JUDGES
from specplan.measure.symptoms import HOST_JUDGES

pytestmark = pytest.mark.gpu


def test_every_question_is_answered(cuda: torch.device) -> None:
    diagnosis = examine(cuda)
    answered = {finding.code for finding in (*diagnosis.findings, *diagnosis.unknown)} | set(diagnosis.fine)
    answered = {code.removesuffix("-unknown") for code in answered}
    assert answered in ({*HOST_JUDGES, *GPU_JUDGES}, {*HOST_JUDGES, "nvml"})
    assert diagnosis.device == torch.cuda.get_device_name(cuda)


def test_the_device_has_a_name_a_uuid_and_sms(cuda: torch.device) -> None:
    here = identify_device(cuda)
    assert here.device == torch.cuda.get_device_name(cuda)
    assert here.device_uuid
    assert here.processors is not None
    assert here.processors.endswith(" SMs")
