"""The contract of policies, as a test class to inherit.

    from augury.testing import PolicyContract

    class TestMine(PolicyContract):
        def make(self, sizes, capacity, rng):
            return Mine(sizes, capacity, rng)

Hypothesis makes up sequences of calls; after each of them the limits must hold, the answers must agree with
what is resident, and a twin that was given the same calls must have decided the same. What a policy ought to
prefer is its own business and is not tested here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from augury.ids import NONE, Ids, Mask, as_ids, first_seen
from augury.policies import Policy

CALLS = ("step", "serve", "admit", "resize", "forget", "adopt", "plan", "epoch", "learn", "wanted", "leave", "progress")

JOB = 0
"""Only this one plans: a policy may refuse to plan for several jobs."""

settings_of_contract = settings(
    deadline=None,
    # The same test runs in many subclasses, and that is what a contract is for.
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[NDArray[np.int64], int]:
    """Sizes, equal or mixed, and a capacity: perhaps nothing, perhaps less than one sample, perhaps ample."""
    samples = draw(st.integers(1, 24))
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, 5))] * samples
    else:
        sizes = draw(st.lists(st.integers(0, 12), min_size=samples, max_size=samples))
    return np.array(sizes, np.int64), draw(st.integers(0, max(1, sum(sizes))))


class PolicyContract:
    """What every policy keeps to. Subclasses say how to make one."""

    def make(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator) -> Policy:
        """A new policy over `len(sizes)` ids."""
        raise NotImplementedError

    @settings_of_contract
    @given(world=worlds(), seed=st.integers(0, 9), data=st.data())
    def test_any_calls(self, world: tuple[NDArray[np.int64], int], seed: int, data: st.DataObject) -> None:
        sizes, capacity = world
        pair = _Pair([self.make(sizes, capacity, np.random.default_rng(seed)) for _ in range(2)], sizes)
        ids = st.lists(st.integers(0, len(sizes) - 1), max_size=2 * len(sizes))
        for _ in range(data.draw(st.integers(1, 20), label="calls")):
            call = data.draw(st.sampled_from(CALLS), label="call")
            asked = as_ids(data.draw(ids, label="ids"))
            number = data.draw(st.integers(0, int(sizes.sum()) + 1), label="number")
            getattr(pair, call)(asked, number)

    def test_starts_empty(self) -> None:
        policy = self.make(np.full(5, 3, np.int64), 9, np.random.default_rng(0))
        assert policy.resident.shape == (5,)
        assert policy.resident.dtype == np.bool_
        assert not policy.resident.any()
        assert (policy.used, policy.capacity) == (0, 9)

    def test_empty_arrays_are_fine(self) -> None:
        policy = self.make(np.full(5, 3, np.int64), 9, np.random.default_rng(0))
        none = as_ids([])
        assert len(policy.serve(none)) == 0
        kept, evicted = policy.admit(none)
        assert len(kept) == len(evicted) == len(policy.adopt(none)) == 0
        policy.forget(none)
        assert len(policy.plan(none)) == 0
        assert len(policy.plan(none, JOB, none.astype(np.int32))) == 0
        assert len(policy.plan(none, later=none)) == 0
        policy.learn(none, np.empty(0, np.float32))
        assert not policy.resident.any()

    def test_long_shuffled_run(self) -> None:
        """Many more requests than ids: whatever is amortised in the policy comes due."""
        rng = np.random.default_rng(1)
        sizes = rng.integers(1, 9, 400)
        pair = _Pair([self.make(sizes, int(sizes.sum()) // 4, np.random.default_rng(2)) for _ in range(2)], sizes)
        for _ in range(4):
            pair.epoch(rng.permutation(400), 32)
            pair.learn(rng.permutation(400)[:50], 3)
            pair.progress(rng.permutation(9), 3)


class _Pair:
    """A policy and its twin, given the same calls; answers are checked against contents before and after."""

    def __init__(self, twins: list[Policy], sizes: NDArray[np.int64]) -> None:
        self.policy, self.twin = twins
        self.sizes = sizes

    def _both(self, name: str, *arguments: Any) -> tuple[Any, Mask]:
        """The policy's answer, which is the twin's as well, and what was resident before."""
        before = self.policy.resident.copy()
        given = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        answer = getattr(self.policy, name)(*arguments)
        for argument, original in zip(arguments, given, strict=True):
            assert np.array_equal(argument, original), f"{name} changed its arguments"
        other = getattr(self.twin, name)(*given)
        if name == "admit":
            assert np.array_equal(answer[0], other[0])
            assert np.array_equal(answer[1], other[1])
        elif answer is not None:
            assert np.array_equal(answer, other)
        assert np.array_equal(self.policy.resident, self.twin.resident), "the twin decided otherwise"
        assert self.policy.used == int(self.sizes[self.policy.resident].sum()), "used is not what is resident"
        assert 0 <= self.policy.used <= self.policy.capacity, "the limit does not hold"
        return answer, before

    def _contents(self, before: Mask, came: Ids, left: Ids) -> None:
        """From `before`, exactly `came` came and `left` left."""
        assert len(set(came.tolist())) == len(came)
        assert len(set(left.tolist())) == len(left)
        assert not before[came].any()
        assert before[left].all(), "who leaves must have been resident"
        expected = before.copy()
        expected[came], expected[left] = True, False
        assert np.array_equal(self.policy.resident, expected)

    def _unchanged(self, name: str, *arguments: Any) -> Any:
        answer, before = self._both(name, *arguments)
        assert np.array_equal(self.policy.resident, before), f"{name} must not change what is resident"
        return answer

    def serve(self, ids: Ids, number: int) -> None:
        self._served(ids, number % 2)

    def _served(self, ids: Ids, job: int) -> Ids:
        served: Ids = self._unchanged("serve", ids, job)
        assert served.shape == ids.shape
        assert (self.policy.resident[served] | (served == ids)).all(), "a stand-in must be resident"
        return served

    def admit(self, ids: Ids, number: int) -> None:
        ids = first_seen(ids[~self.policy.resident[ids]])
        (kept, evicted), before = self._both("admit", ids)
        assert kept.dtype == np.bool_
        assert kept.shape == ids.shape
        assert (self.sizes[ids[kept]] <= self.policy.capacity).all()
        self._contents(before, ids[kept], evicted)

    def step(self, ids: Ids, number: int) -> None:
        """What a cache does for a batch."""
        self.admit(self._served(ids, JOB), number)

    def epoch(self, ids: Ids, number: int) -> None:
        """A planned order, followed."""
        self.plan(ids, 0)
        batch = 1 + number % 32
        for start in range(0, len(ids), batch):
            self.step(ids[start : start + batch], number)

    def plan(self, ids: Ids, number: int) -> None:
        """A future, as requests or, compressed, as distinct ids and how often each is requested."""
        times = None
        if number % 2:
            ids = first_seen(ids)
            times = (ids * 5 % 7 + 1).astype(np.int32)
        later = ids[::-1].copy() if number % 3 == 0 else NONE
        taken = self._unchanged("plan", ids, JOB, times, later)
        assert len(set(taken.tolist())) == len(taken)
        assert np.isin(taken, ids).all(), "only what is planned can be set aside"
        assert self.sizes[taken].sum() <= self.policy.capacity, "more is set aside than fits"

    def learn(self, ids: Ids, number: int) -> None:
        """New scores; half of the time one of them may stand in for others."""
        scores = (ids * 7 % 5 + number).astype(np.float32)
        kin = None
        if number % 2 and len(ids):
            others = (ids[0] + 1 + np.arange(1 + number % 5)) % len(self.sizes)
            kin = np.concatenate([ids[:1], others[others != ids[0]]])
        self._unchanged("learn", ids, scores, kin)

    def progress(self, ids: Ids, number: int) -> None:
        """Training goes on; accuracies as shares or percentages."""
        spreads = [0.5 - 0.1 * epoch for epoch in range(number % 7)]
        self._unchanged("progress", number % 11 / 10, spreads, (ids / 7 + 0.1).tolist())
        assert all(np.isfinite(value) for value in self.policy.gauges.values())

    def wanted(self, ids: Ids, number: int) -> None:
        wanted = self._unchanged("wanted", number)
        assert not self.policy.resident[wanted].any()
        assert len(set(wanted.tolist())) == len(wanted)
        assert self.sizes[wanted].sum() <= number

    def leave(self, ids: Ids, number: int) -> None:
        self._unchanged("leave", number % 2)

    def resize(self, ids: Ids, number: int) -> None:
        fitted = self.policy.used <= number
        evicted, before = self._both("resize", number)
        assert self.policy.capacity == number
        assert not (fitted and len(evicted)), "nobody need leave"
        self._contents(before, as_ids([]), evicted)

    def forget(self, ids: Ids, number: int) -> None:
        _, before = self._both("forget", ids)
        self._contents(before, as_ids([]), first_seen(ids[before[ids]]))

    def adopt(self, ids: Ids, number: int) -> None:
        rejected, before = self._both("adopt", ids)
        offered = set(ids[~before[ids]].tolist())
        assert set(rejected.tolist()) <= offered
        self._contents(before, as_ids(sorted(offered - set(rejected.tolist()))), as_ids([]))
