"""How SpiderCache divides the cache as training goes on: Equations 5 to 8 and Figure 11, in numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.policies.elastic import END, START, falls, growth, importance_ratio, ratio, smoothed

FALLING = [0.9, 0.8, 0.7, 0.6, 0.5]


class TestFigure11:
    """Eq. 8: from 0.9 to 0.8, the slower the faster accuracy grows."""

    @pytest.mark.parametrize(
        ("penalty", "values"),
        [
            (0, [0.9, 0.89, 0.875, 0.85, 0.825, 0.8]),
            (0.5, [0.9, 0.8968377, 0.8875, 0.8646447, 0.8350481, 0.8]),
            (1, [0.9, 0.899, 0.89375, 0.875, 0.84375, 0.8]),
        ],
    )
    def test_its_three_curves(self, penalty, values):
        found = [ratio(done, penalty, True) for done in (0, 0.1, 0.25, 0.5, 0.75, 1)]
        assert found == pytest.approx(values)

    @pytest.mark.parametrize("done", np.linspace(0.05, 0.95, 19))
    def test_fast_growth_lies_above_slow_growth(self, done):
        slow, middle, fast = (ratio(done, penalty, True) for penalty in (0, 0.5, 1))
        assert END < slow < middle < fast < START

    @pytest.mark.parametrize("penalty", [0, 0.5, 1])
    def test_all_begin_at_nine_tenths_and_end_at_eight(self, penalty):
        assert ratio(0, penalty, True) == pytest.approx(0.9)
        assert ratio(1, penalty, True) == pytest.approx(0.8)

    @pytest.mark.parametrize("penalty", [0, 0.5, 1])
    def test_each_falls_all_the_way(self, penalty):
        values = [ratio(done, penalty, True) for done in np.linspace(0, 1, 50)]
        assert (np.diff(values) < 0).all()

    @pytest.mark.parametrize("done", [0, 0.3, 1])
    def test_without_activation_nothing_changes(self, done):
        assert ratio(done, 0.5, False) == 0.9

    def test_other_ends(self):
        assert ratio(0.5, 1, True, 0.9, 0.5) == pytest.approx(0.8)
        assert ratio(1, 1, True, 0.9, 0.5) == pytest.approx(0.5)
        assert ratio(1, 1, False, 0.7, 0.5) == 0.7


class TestImportanceMonitor:
    """Eq. 5."""

    def test_a_falling_deviation_is_noticed(self):
        assert falls(FALLING)

    def test_a_rising_one_is_none(self):
        assert not falls(FALLING[::-1])

    def test_a_constant_one_does_not_fall(self):
        for constant in np.linspace(0.01, 3, 200):
            assert not falls([constant] * 5)

    @pytest.mark.parametrize("count", range(5))
    def test_fewer_epochs_than_five_say_nothing(self, count):
        assert importance_ratio(1, FALLING[:count], []) == 0.9

    def test_the_slope_counts_and_not_the_ends(self):
        assert falls([3, 5, 0, 0, 3.5])
        assert not falls([3, 0, 2, 5, 2.5])

    def test_the_ratio_stays_where_it_began_until_then(self):
        spreads = [0.1, *FALLING]
        found = [importance_ratio(at / 10, spreads[:at], [0.5] * 6) for at in range(1, 7)]
        # From 0.1 over 0.9 to 0.6 it still rises.
        assert found[:5] == [0.9] * 5
        assert found[5] == pytest.approx(0.84)

    def test_once_it_has_begun_it_goes_on(self):
        for more in range(1, 6):
            spreads = [*FALLING, *(0.6, 0.7, 0.8, 0.9, 1.0)[:more]]
            assert importance_ratio(1, spreads, []) == pytest.approx(0.8)


class TestAccuracyMonitor:
    """Eqs. 6 and 7, with a gamma of one hundredth."""

    @pytest.mark.parametrize(
        ("accuracies", "grown"),
        [
            ([0.5, 0.6], 0.1 / 0.6),
            ([0.2, 0.3, 0.4], 0.1 / 0.4),
            ([0.3, 0.2, 0.8, 0.6], 0.1 / 0.6),
            ([0.50, 0.51, 0.52, 0.53, 0.54], 0.01 / 0.54),  # four steps
            ([0.50, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56], 0.01 / 0.56),
            ([t * t for t in range(10)], (81 - 16) / 5 / 81),  # the last five steps; a parabola is smooth
        ],
    )
    def test_by_hand(self, accuracies, grown):
        assert growth(accuracies) == pytest.approx(grown / (0.01 + grown))

    def test_noise_is_smoothed_before(self):
        """Of 0, 0, 0, 0, 1 Savitzky and Golay's parabola ends at 31/35, and begins at 3/35."""
        grown = (31 - 3) / 35 / 4 / (31 / 35)
        assert growth([0, 0, 0, 0, 1]) == pytest.approx(grown / (0.01 + grown))

    def test_gamma_is_the_growth_that_is_half_of_rapid(self):
        assert growth([0.99, 1.0]) == pytest.approx(0.5)
        assert growth([0.9, 1.0], gamma=0.1) == pytest.approx(0.5)

    @pytest.mark.parametrize("accuracies", [[0.5, 0.4], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [0.6, 0.9, 0.5], [0.1, 0.0]])
    def test_where_accuracy_falls_there_is_no_growth(self, accuracies):
        assert growth(accuracies) == 0

    @pytest.mark.parametrize("accuracies", [[0.7] * 2, [0.7] * 9, [0.0] * 3])
    def test_nor_where_it_stays(self, accuracies):
        assert growth(accuracies) == pytest.approx(0, abs=1e-9)

    @pytest.mark.parametrize("accuracies", [[], [0.5]])
    def test_where_too_little_is_known_it_counts_as_fast(self, accuracies):
        assert growth(accuracies) == 1

    @given(st.lists(st.floats(0.01, 1), min_size=2, max_size=12))
    def test_percentages_are_like_shares(self, shares):
        assert growth([100 * share for share in shares]) == pytest.approx(growth(shares), abs=1e-6)

    @given(st.lists(st.floats(0, 100), max_size=12))
    def test_it_is_a_share(self, accuracies):
        assert 0 <= growth(accuracies) <= 1

    def test_it_decides_how_fast_the_ratio_changes(self):
        assert importance_ratio(0.5, FALLING, [0.5] * 9) == pytest.approx(0.85)
        assert importance_ratio(0.5, FALLING, []) == pytest.approx(0.875)
        between = importance_ratio(0.5, FALLING, [0.99, 1.0])
        assert between == pytest.approx(0.9 - 0.1 * 0.5**1.5)


class TestSmoothing:
    @settings(deadline=None)
    @given(st.lists(st.floats(-100, 100), min_size=5, max_size=40))
    def test_is_what_scipy_says(self, values):
        signal = pytest.importorskip("scipy.signal")
        expected = signal.savgol_filter(values, 5, 2, mode="interp")
        assert np.allclose(smoothed(values), expected, atol=1e-9)

    @settings(deadline=None, max_examples=30)
    @given(st.lists(st.floats(-100, 100), min_size=7, max_size=20), st.sampled_from([1, 3]))
    def test_with_other_windows_and_degrees(self, values, degree):
        signal = pytest.importorskip("scipy.signal")
        assert np.allclose(smoothed(values, 7, degree), signal.savgol_filter(values, 7, degree), atol=1e-9)

    @pytest.mark.parametrize("count", range(5))
    def test_fewer_values_than_a_window_stay_as_they_are(self, count):
        values = [0.3, 0.1, 0.4, 0.1][:count]
        assert smoothed(values).tolist() == values

    def test_parabolas_stay_as_they_are(self):
        values = [3 - 2 * t + 0.5 * t * t for t in range(12)]
        assert smoothed(values) == pytest.approx(values)


@pytest.mark.parametrize(("start", "end"), [(1, 0), (1, 1), (0, 0), (0.9, 0.9)])
def test_ratios_at_their_limits(start, end):
    assert importance_ratio(0, FALLING, [], start, end) == pytest.approx(start)
    assert importance_ratio(1, FALLING, [], start, end) == pytest.approx(end)
