from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import make_validation

from specplan.errors import FileError
from specplan.files import Validation
from specplan.files.validation import (
    CaseValidation,
    Decisions,
    Divergence,
    LosslessCheck,
    PartError,
    SizeError,
)


def divergence(**changes: Any) -> Divergence:
    fields: dict[str, Any] = {
        "step": 3,
        "request": 1,
        "engine": "request 1: 2 admitted, 1 accepted",
        "simulator": "request 1: 2 admitted, 2 accepted",
        "max_confidence_difference": None,
        "min_logit_gap": None,
    }
    return Divergence(**fields | changes)


def case(**changes: Any) -> CaseValidation:
    fields: dict[str, Any] = {
        "policy": "fixed:1",
        "concurrency": 2,
        "num_steps": 40,
        "predicted_tokens_per_s": 105.0,
        "measured_tokens_per_s": 100.0,
        "round_predictions": [104.0, 106.0],
        "round_measurements": [99.0, 101.0],
        "step_mape": 0.06,
        "step_bias": -0.04,
        "parts": [
            PartError(part="verify", predicted_ms=1.0, measured_ms=1.1, measured_detail_ms={"verify": 0.9, "head": 0.2})
        ],
        "sizes": [
            SizeError(
                num_reqs=2,
                executed_tokens=4,
                has_prompt_tokens=False,
                num_steps=30,
                predicted_ms=1.5,
                measured_ms=1.2,
            )
        ],
        "decisions": Decisions(num_steps=40, num_equal=38, first_divergence=divergence(min_logit_gap=1e-6)),
        "lossless": LosslessCheck(num_outputs=3, num_ties=1, num_wrong=0),
    }
    return CaseValidation(**fields | changes)


@pytest.fixture
def validation() -> Validation:
    return make_validation(
        case(),
        case(policy="none", lossless=None),
        num_speculative_tokens=3,
        max_num_batched_tokens=64,
        max_output_tokens=16,
        num_rounds=2,
    )


def test_round_trip_is_exact_and_deterministic(validation: Validation, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    validation.write(first)
    again = Validation.read(first)
    again.write(second)
    assert again == validation
    assert first.read_bytes() == second.read_bytes() == validation.to_json()


class TestErrors:
    def test_of_tokens_per_s_and_of_a_size(self) -> None:
        assert case().error == pytest.approx(0.05)
        assert case(measured_tokens_per_s=210.0).error == pytest.approx(-0.5)
        assert case().sizes[0].error == pytest.approx(0.25)

    def test_the_spread_is_half_the_range_of_the_rounds(self) -> None:
        assert case(round_predictions=[90.0, 100.0, 130.0]).spread == pytest.approx(0.2)
        assert case(round_measurements=[90.0, 100.0, 130.0]).measured_spread == pytest.approx(0.2)
        assert case(round_measurements=[90.0, 100.0, 130.0], round_predictions=[100.0, 100.0]).spread == 0

    def test_one_round_has_no_spread(self) -> None:
        assert case(round_predictions=[100.0], round_measurements=[90.0]).spread == 0

    def test_the_median_is_of_sizes_without_their_signs(self, validation: Validation) -> None:
        tokens_per_s = [90.0, 102.0, 104.0]
        cases = [case(predicted_tokens_per_s=predicted) for predicted in tokens_per_s]
        found = msgspec.structs.replace(validation, cases=[*cases, case(concurrency=16, predicted_tokens_per_s=200.0)])
        assert found.median_error(2) == pytest.approx(0.04)
        assert found.median_error(16) == pytest.approx(1.0)


class TestCause:
    @pytest.mark.parametrize(
        ("difference", "gap", "cause"),
        [
            (None, 0.0, "logit tie"),
            (None, 0.99e-4, "logit tie"),
            (None, 1e-4, "unexplained"),
            (1e-9, None, "confidence"),
            (0.99e-5, 5.0, "confidence"),
            (1e-5, None, "unexplained"),
            (0.0, None, "unexplained"),  # the same confidences cannot have moved a budget
            (None, None, "unexplained"),
            (1e-6, 1e-6, "logit tie"),
        ],
    )
    def test_at_its_thresholds(self, difference: float | None, gap: float | None, cause: str) -> None:
        assert divergence(max_confidence_difference=difference, min_logit_gap=gap).cause == cause


class TestMalformed:
    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            (("cases", 0, "policy"), 3, "$.cases[0].policy: expected str, got int"),
            (("cases", 1, "num_steps"), -1, "$.cases[1].num_steps: expected int >= 1, got -1"),
            (("cases", 0, "parts", 0, "part"), "tail", "$.cases[0].parts[0].part: invalid enum value 'tail'"),
            (("cases", 0, "speed"), 1, "$.cases[0]: object contains unknown field speed"),
            (("cases", 0, "sizes", 0, "num_reqs"), "2", "$.cases[0].sizes[0].num_reqs: expected int, got str"),
            (
                ("cases", 0, "measured_tokens_per_s"),
                float("nan"),
                "$.cases[0].measured_tokens_per_s: expected a finite number, got nan",
            ),
            (("imposed",), 1, "$.imposed: expected str | null, got int"),
            (("schema",), "specplan.profile/1", "expected specplan.validation/1, got specplan.profile/1"),
            (
                ("schema",),
                "specplan.validation/2",
                "specplan.validation/2 is newer than this specplan reads (1)",
            ),
        ],
    )
    def test_a_field_is_named(
        self, validation: Validation, tmp_path: Path, path: tuple[Any, ...], value: object, message: str
    ) -> None:
        content = msgspec.to_builtins(validation)
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        file = tmp_path / "validation.json"
        file.write_text(json.dumps(content))
        with pytest.raises(FileError) as raised:
            Validation.read(file)
        assert raised.value.message == f"{file}: {message}"

    def test_a_missing_file_says_what_writes_one(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="no such file") as raised:
            Validation.read(tmp_path / "absent.json")
        assert "`specplan validate`" in raised.value.hint

    def test_what_is_not_finite_is_not_written(self, validation: Validation, tmp_path: Path) -> None:
        broken = msgspec.structs.replace(validation, cases=[case(step_bias=float("inf"))])
        with pytest.raises(FileError, match=r"\$\.cases\[0\]\.step_bias: expected a finite number"):
            broken.write(tmp_path / "validation.json")
        assert list(tmp_path.iterdir()) == []
