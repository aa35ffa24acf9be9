from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.errors import ConfigError
from specplan.planning import EmaController
from specplan.planning.ema import LESS_BELOW, MORE_ABOVE, fewest_drafts


def ks(controller: EmaController, steps: list[tuple[int, int]]) -> list[int]:
    """k after each of the steps, (accepted, verified)."""
    found = []
    for accepted, verified in steps:
        controller = controller.after(num_accepted=accepted, num_verified=verified)
        found.append(controller.k)
    return found


def test_a_sequence_worked_by_hand() -> None:
    controller = EmaController.at_start(7)
    assert (controller.k, controller.ratio) == (7, None)
    worked = [
        (7, 7, 1.0, 7),  # the first observation is the estimate; 7 is the most
        (0, 7, 0.8, 7),
        (0, 7, 0.64, 7),
        (0, 7, 0.512, 7),
        (0, 7, 0.4096, 6),
        (3, 6, 0.42768, 5),
        (5, 5, 0.542144, 5),
        (5, 5, 0.6337152, 5),
        (5, 5, 0.70697216, 5),
        (5, 5, 0.765577728, 6),
        (6, 6, 0.8124621824, 7),
        (7, 7, 0.84996974592, 7),
    ]
    for accepted, verified, ratio, k in worked:
        controller = controller.after(num_accepted=accepted, num_verified=verified)
        assert (controller.ratio, controller.k) == (pytest.approx(ratio, rel=1e-12), k)


@pytest.mark.parametrize(
    ("accepted", "verified", "k"),
    [
        (12, 25, 8),  # 0.48
        (18, 25, 8),  # 0.72
        (479_999_999, 1_000_000_000, 7),
        (720_000_001, 1_000_000_000, 9),
        (0, 1, 7),
        (1, 1, 9),
    ],
)
def test_a_ratio_on_a_threshold_moves_nothing(accepted: int, verified: int, k: int) -> None:
    controller = EmaController(num_speculative_tokens=16, k=8)
    assert ks(controller, [(accepted, verified)]) == [k]
    if k == 8:
        assert ks(controller, [(accepted, verified)] * 1000) == [8] * 1000


def test_k_follows_the_float_where_the_ratio_rounds() -> None:
    """6/7, 5/7, 3/5 and then 12/25, just below which this order of operations lands and the textbook's just above."""
    assert ks(EmaController.at_start(7), [(6, 7), (1, 7), (1, 7), (0, 7)]) == [7, 7, 7, 6]


def test_the_thresholds_are_those_float64_has() -> None:
    assert (LESS_BELOW, MORE_ABOVE) == (0.48, 0.72)


@pytest.mark.parametrize(("most", "fewest"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (16, 4)])
def test_bounds(most: int, fewest: int) -> None:
    assert fewest_drafts(most) == fewest
    down = list(range(most - 1, fewest - 1, -1))
    assert ks(EmaController.at_start(most), [(0, 1)] * (most + 2)) == down + [fewest] * (most + 2 - len(down))
    up = list(range(fewest + 1, most + 1))
    lowest = EmaController(num_speculative_tokens=most, k=fewest)
    assert ks(lowest, [(1, 1)] * (most + 2)) == up + [most] * (most + 2 - len(up))


def test_a_step_without_drafts_changes_nothing() -> None:
    for controller in (EmaController.at_start(7), EmaController(num_speculative_tokens=7, k=3, ratio=0.1)):
        assert controller.after(num_accepted=0, num_verified=0) == controller


def test_a_move_keeps_the_estimate() -> None:
    """After a drought k still falls for steps in which everything was accepted."""
    assert ks(EmaController.at_start(7), [(0, 7), (6, 6), (5, 5), (4, 4), (4, 4)]) == [6, 5, 4, 4, 4]


@given(
    most=st.integers(1, 20),
    shares=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), max_size=60),
)
def test_one_step_at_a_time_within_bounds(most: int, shares: list[list[int]]) -> None:
    controller, exact = EmaController.at_start(most), None
    for accepted, verified in shares:
        before, controller = controller, controller.after(num_accepted=accepted, num_verified=verified)
        assert fewest_drafts(most) <= controller.k <= most
        assert abs(controller.k - before.k) <= 1
        if verified:
            observed = Fraction(accepted, verified)
            exact = observed if exact is None else Fraction(4, 5) * exact + Fraction(1, 5) * observed
            assert controller.ratio == pytest.approx(float(exact), abs=1e-14)
            assert 0 <= controller.ratio <= 1


@given(accepted=st.integers(0, 500), rejected=st.integers(0, 500), steps=st.integers(1, 50))
def test_a_steady_ratio_stays_the_float_it_is(accepted: int, rejected: int, steps: int) -> None:
    controller, verified = EmaController.at_start(7), accepted + rejected
    for _ in range(steps):
        controller = controller.after(num_accepted=accepted, num_verified=verified)
    assert controller.ratio == (accepted / verified if verified else None)


@pytest.mark.parametrize(("most", "k"), [(0, 0), (0, 1), (7, 0), (7, 8), (16, 3)])
def test_a_controller_is_valid_from_birth(most: int, k: int) -> None:
    with pytest.raises(ConfigError, match=f"ema at k = {k} with K = {most}"):
        EmaController(num_speculative_tokens=most, k=k)


@pytest.mark.parametrize(("accepted", "verified"), [(3, 2), (-1, 2), (1, 0)])
def test_counts_that_cannot_be_are_a_bug(accepted: int, verified: int) -> None:
    with pytest.raises(ValueError, match=f"{accepted} drafts accepted of {verified} verified"):
        EmaController.at_start(7).after(num_accepted=accepted, num_verified=verified)
