"""The front against a sorted list, with everything small so that runs, merges and rescans happen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.ids import as_ids
from augury.policies import front
from augury.policies.front import Front

IDS = 30


@pytest.fixture(
    autouse=True, params=[(2, 2, 8), (1, 1, 2), (2048, 4, 8)], ids=["tiny", "tinier", "usual"], scope="module"
)
def _constants(request):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("_LEAST", "_GROWTH", "_SHARE"), request.param, strict=True):
            patch.setattr(front, name, value)
        yield


def check(lowest: Front, key, resident, count: int) -> None:
    """The ids may differ where keys are equal; the keys may not."""
    found = lowest.lowest(count)
    expected = np.sort(key[resident])[:count]
    assert resident[found].all()
    assert len(set(found.tolist())) == len(found)
    assert np.array_equal(key[found], expected)


call = st.one_of(
    st.tuples(
        st.just("enter"),
        st.lists(st.integers(0, IDS - 1), max_size=12),
        st.lists(st.integers(0, 9), min_size=12, max_size=12),
    ),
    st.tuples(st.just("return"), st.lists(st.integers(0, IDS - 1), max_size=12)),
    st.tuples(st.just("leave"), st.lists(st.integers(0, IDS - 1), max_size=6)),
    st.tuples(
        st.just("change"),
        st.lists(st.integers(0, IDS - 1), max_size=12),
        st.lists(st.integers(0, 9), min_size=12, max_size=12),
    ),
    st.tuples(st.just("pop"), st.integers(1, 6)),
    st.tuples(st.just("peek"), st.integers(1, IDS + 2)),
    st.tuples(st.just("restart")),
)


def do(lowest: Front, key, resident, name: str, *arguments) -> None:
    """One call, and whatever a policy does to its keys and residents before it."""
    if name == "pop":
        found = lowest.lowest(arguments[0])
        check(lowest, key, resident, arguments[0])
        resident[found] = False
    elif name == "peek":
        check(lowest, key, resident, arguments[0])
    elif name == "restart":
        key[:] = (key * 7 + 3) % 10
        lowest.restart()
    elif name == "leave":
        resident[as_ids(arguments[0])] = False
    else:
        ids = as_ids(arguments[0])
        if name == "change":
            ids = ids[resident[ids]]
        if name != "return":  # with the key it had when it left
            key[ids] = arguments[1][: len(ids)]
        resident[ids] = True
        lowest.note(ids)


@settings(deadline=None, max_examples=200)
@given(st.lists(call, max_size=40))
def test_any_calls(calls):
    key, resident = np.zeros(IDS), np.zeros(IDS, np.bool_)
    lowest = Front(key, resident)
    for name, *arguments in calls:
        do(lowest, key, resident, name, *arguments)
    check(lowest, key, resident, IDS)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 99), st.integers(1, IDS), st.lists(st.lists(call, max_size=3), max_size=8), st.lists(call))
def test_gathered_piece_by_piece(seed, piece, meanwhile, calls):
    """Residents come, leave and get other keys between the pieces; afterwards it is a front like any other."""
    rng = np.random.default_rng(seed)
    key, resident = rng.integers(0, 10, IDS).astype(np.float64), rng.random(IDS) < rng.random()
    lowest = Front(key, resident)
    for _ in range(2):
        for at, start in enumerate(range(0, IDS, piece)):
            for name, *arguments in meanwhile[at] if at < len(meanwhile) else ():
                if name not in ("pop", "peek", "restart"):  # not while it is gathered
                    do(lowest, key, resident, name, *arguments)
            lowest.gather(start, min(IDS, start + piece))
        lowest.gathered()
        for name, *arguments in calls:
            do(lowest, key, resident, name, *arguments)
        check(lowest, key, resident, IDS)


def test_pieces_that_take_a_part_of_their_residents():
    """The keys of one piece may all lie below those of another, and those noted meanwhile anywhere."""
    rng = np.random.default_rng(0)
    key, resident = np.arange(40_000.0), rng.random(40_000) < 0.9
    key[::2] += 30_000
    lowest = Front(key, resident)
    for start in range(0, 40_000, 5000):
        lowest.gather(start, start + 5000)
        resident[rng.integers(0, 40_000, 300)] = False
        came = np.unique(rng.integers(0, 40_000, 300))
        key[came], resident[came] = rng.random(len(came)) * 70_000, True
        lowest.note(came)
    lowest.gathered()
    for _ in range(100):
        check(lowest, key, resident, 300)
        resident[lowest.lowest(300)] = False
        came = rng.integers(0, 40_000, 64)
        came = np.unique(came[~resident[came]])
        key[came], resident[came] = rng.random(len(came)) * 70_000, True
        lowest.note(came)


@pytest.mark.parametrize("different", [40_000, 1], ids=["all different", "all equal"])
def test_after_gathering_nothing_need_be_scanned(different, monkeypatch):
    """That is what it is for. Looks inside, as only time would show it."""
    key, resident = np.random.default_rng(0).permutation(40_000) % different + 1.0, np.ones(40_000, np.bool_)
    lowest = Front(key, resident)
    for start in range(0, 40_000, 5000):
        lowest.gather(start, start + 5000)
    lowest.gathered()
    monkeypatch.setattr(lowest, "_scan", None)
    few = 500 if front._LEAST > 500 else 8
    fallen = np.arange(39_000, 39_000 + few)
    key[fallen] = np.arange(few) / few
    lowest.note(fallen)
    check(lowest, key, resident, few)
    resident[fallen] = False
    check(lowest, key, resident, few)


def test_nobody_to_gather():
    key, resident = np.zeros(9), np.zeros(9, np.bool_)
    lowest = Front(key, resident)
    lowest.gather(0, 5)
    lowest.gather(5, 9)
    lowest.gathered()
    check(lowest, key, resident, 3)
    resident[[2, 7]] = True
    lowest.note(as_ids([2, 7]))
    check(lowest, key, resident, 3)


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, IDS - 1), max_size=8), st.integers(1, 5)), max_size=30))
def test_keys_that_rise_above_all_others_need_not_be_noted(rounds):
    key, resident = np.arange(IDS, dtype=np.float64), np.ones(IDS, np.bool_)
    lowest, now = Front(key, resident), IDS
    for raised, count in rounds:
        check(lowest, key, resident, count)
        key[as_ids(raised)] = np.arange(now, now + len(raised))
        now += len(raised)
    check(lowest, key, resident, IDS)


def test_more_residents_than_a_scan_takes():
    rng = np.random.default_rng(0)
    key, resident = rng.permutation(40_000).astype(np.float64), np.ones(40_000, np.bool_)
    lowest = Front(key, resident)
    for _ in range(200):
        check(lowest, key, resident, 100)
        resident[lowest.lowest(100)] = False
        fallen = rng.integers(0, 40_000, 64)
        key[fallen] = rng.random(64) * 40_000
        lowest.note(fallen[resident[fallen]])


def test_equal_keys_leave_by_id():
    """So that a run can be verified on another machine, whose sort may treat equals otherwise."""
    key, resident = np.ones(20_000), np.ones(20_000, np.bool_)
    assert np.array_equal(Front(key, resident).lowest(3000), np.arange(3000))


def test_nobody_there():
    assert len(Front(np.zeros(3), np.zeros(3, np.bool_)).lowest(2)) == 0
