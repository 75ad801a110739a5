"""How jobs divide what there is: properties of `divide`, whatever the wishes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from augury.node.shares import divide

amounts = st.integers(0, 1000) | st.integers(0, 1 << 45)
wishes = st.dictionaries(st.text(max_size=3), amounts, max_size=12)


@given(amounts, wishes)
def test_nobody_gets_more_than_asked_for_and_all_together_no_more_than_there_is(whole, wishes):
    parts = divide(whole, wishes)
    assert parts.keys() == wishes.keys()
    assert all(0 <= parts[name] <= wishes[name] for name in wishes)
    assert sum(parts.values()) <= whole


@given(amounts, wishes)
def test_nothing_is_left_while_somebody_wishes(whole, wishes):
    assert sum(divide(whole, wishes).values()) == min(whole, sum(wishes.values()))


@given(amounts, wishes)
def test_who_gets_less_than_its_wish_gets_as_much_as_anybody(whole, wishes):
    """But for the bytes that do not divide: there are fewer of them than jobs."""
    parts = divide(whole, wishes)
    unsatisfied = [parts[name] for name in wishes if parts[name] < wishes[name]]
    assert not unsatisfied or min(unsatisfied) >= max(parts.values()) - len(wishes)
    assert not unsatisfied or max(unsatisfied) - min(unsatisfied) <= 1


@given(amounts, st.integers(1, 12), amounts)
def test_equal_wishes_get_equal_parts(whole, jobs, wish):
    parts = divide(whole, dict.fromkeys(range(jobs), wish)).values()
    assert max(parts) - min(parts) <= 1


def test_a_small_wish_leaves_its_rest_to_the_others():
    assert divide(100, {"a": 10, "b": 60, "c": 80}) == {"a": 10, "b": 45, "c": 45}
    assert divide(100, {"a": 90, "b": 1}) == {"a": 90, "b": 1}
    assert divide(0, {"a": 90, "b": 1}) == {"a": 0, "b": 0}
    assert divide(100, {}) == {}
