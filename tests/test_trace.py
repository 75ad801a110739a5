"""The call log: what is written is read, torn or full disks included, and twins reproduce every decision."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import AuguryWarning, ConfigError
from augury.ids import NONE, as_ids
from augury.recipes import RECIPES, find, policy_rng
from augury.sim.replay import replay
from augury.sim.verify import verify
from augury.step import step
from augury.testing import PolicyContract
from augury.trace import Record, Recorder, Trace

SAMPLES = 60
SIZES = np.random.default_rng(0).integers(1, 9, SAMPLES)


def run(path, recipe="lru", capacity=(60, 120), epochs=3, batch=7, seed=4, sizes=SIZES):
    """A small live run over a stack: what happened in each step."""
    rng = np.random.default_rng(seed)
    with Recorder(path, {"recipe": recipe, "seed": seed, "batch": batch}, sizes) as recorder:
        stack = [
            recorder.wrap(find(recipe).policy_at(level)(sizes, room, policy_rng(seed, level)), level)
            for level, room in enumerate(capacity)
        ]
        orders = [rng.permutation(len(sizes)) for _ in range(epochs)]
        for policy in stack:
            policy.plan(np.concatenate([NONE, *orders[:-1]]), later=orders[-1])
        done = []
        for epoch, order in enumerate(orders):
            recorder.mark_epoch(epoch)
            done += [step(stack, order[at : at + batch]) for at in range(0, len(order), batch)]
    return done


@pytest.mark.parametrize("recipe", RECIPES)
def test_twins_reproduce_every_decision(tmp_path, recipe):
    run(tmp_path / "log", recipe)
    calls, difference = verify(Trace.open(tmp_path / "log"))
    assert difference is None
    assert calls > 2 * 3 * SAMPLES // 7


def test_every_kind_of_call_is_read_as_it_was_written(tmp_path):
    with Recorder(tmp_path / "log", {"recipe": "lru", "seed": 0, "batch": 3}, SIZES) as recorder:
        policy = recorder.wrap(find("lru").policy(SIZES, 40, policy_rng(0, 0)), 0)
        policy.plan(as_ids([3, 2, 1]), 2, later=as_ids([9, 8]))
        assert policy.serve(as_ids([5, 6]), 1).tolist() == [5, 6]
        kept, evicted = policy.admit(as_ids([5, 6, 7]))
        policy.wanted(77)
        policy.learn(as_ids([1, 2]), np.array([0.5, -1], np.float32), as_ids([-1, 3]))
        policy.learn(as_ids([1]), np.array([2], np.float32))
        left = policy.resize(3)
        policy.forget(as_ids([6]))
        policy.adopt(as_ids([8, 9]))
        policy.leave(1)
    records = list(Trace.open(tmp_path / "log"))
    assert [record.op for record in records] == [
        "level", "plan", "serve", "admit", "wanted", "learn", "learn", "resize", "forget", "adopt", "leave"
    ]  # fmt: skip
    _, plan, serve, admit, wanted, learn, plain, resize, forget, adopt, leave = records
    assert (plan.ids.tolist(), plan.job, plan.later.tolist()) == ([3, 2, 1], 2, [9, 8])
    assert (serve.ids.tolist(), serve.job, serve.answer) == ([5, 6], 1, None)
    assert np.array_equal(admit.kept, kept)
    assert np.array_equal(admit.answer, evicted)
    assert (wanted.number, wanted.answer.tolist()) == (77, [])
    assert learn.scores.tolist() == [0.5, -1]
    assert learn.kin.tolist() == [-1, 3]
    assert plain.kin is None
    assert (resize.number, resize.answer.tolist()) == (3, left.tolist())
    assert forget.ids.tolist() == [6]
    assert adopt.ids.tolist() == [8, 9]
    assert leave.job == 1
    assert verify(Trace.open(tmp_path / "log")) == (10, None)


def test_header_sizes_and_levels(tmp_path):
    run(tmp_path / "mixed")
    trace = Trace.open(tmp_path / "mixed")
    assert trace.header == {"recipe": "lru", "seed": 4, "batch": 7, "samples": SAMPLES}
    assert np.array_equal(trace.sizes, SIZES)
    assert [level.capacity for level in trace.levels()] == [60, 120]
    run(tmp_path / "equal", sizes=np.full(SAMPLES, 5))
    assert np.array_equal(Trace.open(tmp_path / "equal").sizes, np.full(SAMPLES, 5))
    assert (tmp_path / "mixed").stat().st_size - (tmp_path / "equal").stat().st_size > 0


@pytest.mark.parametrize("costs", [SIZES, np.full(SAMPLES, 16), -(-SIZES // 4) * 4])
def test_a_level_may_have_costs_of_its_own(tmp_path, costs):
    with Recorder(tmp_path / "log", {"recipe": "fifo", "seed": 0, "batch": 1}, SIZES) as recorder:
        policy = recorder.wrap(find("fifo").policy(costs, 100, policy_rng(0, 0)), 0)
        for id in range(SAMPLES):
            step([policy], as_ids([id]))
    trace = Trace.open(tmp_path / "log")
    assert np.array_equal(trace.levels()[0].costs, costs)
    assert verify(trace)[1] is None


def test_requests_are_the_order_of_the_run(tmp_path):
    done = run(tmp_path / "log")
    requests = list(Trace.open(tmp_path / "log").requests())
    assert [ids.tolist() for _, ids in requests] == [step.asked.tolist() for step in done]
    assert {job for job, _ in requests} == {0}


def test_epochs_as_marked_or_by_their_number_of_requests(tmp_path):
    run(tmp_path / "log")
    marked = Trace.open(tmp_path / "log").epochs()
    assert [sum(map(len, epoch)) for epoch in marked] == [SAMPLES] * 3
    with Recorder(tmp_path / "plain", {"recipe": "lru", "seed": 0, "batch": 7}, SIZES) as recorder:
        policy = recorder.wrap(find("lru").policy(SIZES, 40, policy_rng(0, 0)))
        for epoch in marked:
            for ids in epoch:
                policy.serve(ids)
    assert [len(epoch) for epoch in Trace.open(tmp_path / "plain").epochs()] == [len(epoch) for epoch in marked]


def test_a_replay_of_the_recorded_order_counts_what_the_run_counted(tmp_path):
    done = run(tmp_path / "log", capacity=[75])
    trace = Trace.open(tmp_path / "log")
    result = replay("lru", SAMPLES, 3, 75 / int(SIZES.sum()), 7, 4, trace.sizes, trace.epochs())
    assert result.hit_ratio == pytest.approx(sum(step.counts().hits for step in done) / (3 * SAMPLES))


def test_a_log_cut_anywhere_is_good_up_to_its_last_whole_record(tmp_path):
    run(tmp_path / "log", epochs=1)
    whole = (tmp_path / "log").read_bytes()
    trace = Trace.open(tmp_path / "log")
    count = len(list(trace))
    seen = []
    for length in range(trace._start, len(whole), 13):
        (tmp_path / "cut").write_bytes(whole[:length])
        cut = Trace.open(tmp_path / "cut")
        seen.append(len(list(cut)))
        if cut.levels():
            assert len(list(cut.requests())) <= len(list(trace.requests()))
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert seen[-1] == count - 1
    assert verify(Trace.open(tmp_path / "cut"))[1] is None


def test_a_tail_of_zeros_or_noise_is_no_record(tmp_path):
    run(tmp_path / "log", epochs=1)
    count = len(list(Trace.open(tmp_path / "log")))
    whole = (tmp_path / "log").read_bytes()
    for tail in (bytes(100), b"\xff" * 100, os.urandom(100)):
        (tmp_path / "tail").write_bytes(whole + tail)
        assert len(list(Trace.open(tmp_path / "tail"))) == count


def test_a_changed_decision_is_reported(tmp_path):
    with Recorder(tmp_path / "log", {"recipe": "lru", "seed": 0, "batch": 2}, SIZES) as recorder:
        policy = recorder.wrap(find("fifo").policy(SIZES, 30, policy_rng(0, 0)))
        for id in [0, 1, 2, 3, 0, 4, 5, 0, 6, 7, 8, 0, 9, 10, 11]:
            step([policy], as_ids([id]))
    calls, difference = verify(Trace.open(tmp_path / "log"))
    assert calls > 5
    assert difference is not None
    assert difference.op == "admit"
    assert f"call {calls + 1} (admit, level 0)" in str(difference)


def test_another_seed_is_noticed(tmp_path):
    run(tmp_path / "log", "random", seed=4)
    trace = Trace.open(tmp_path / "log")
    trace.header["seed"] = 5
    assert verify(trace)[1] is not None


@pytest.mark.parametrize("content", [b"", b"AUGURY", b"something else entirely, and longer", b"AUGURY-C" + bytes(40)])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ConfigError, match="not a call log"):
        Trace.open(tmp_path / "file")


def test_damaged_headers_other_versions_and_missing_files_are_refused(tmp_path):
    run(tmp_path / "log")
    whole = bytearray((tmp_path / "log").read_bytes())
    (tmp_path / "cut").write_bytes(whole[:40])
    with pytest.raises(ConfigError, match="header"):
        Trace.open(tmp_path / "cut")
    start = Trace.open(tmp_path / "log")._start
    (tmp_path / "short").write_bytes(whole[: start - 1])
    with pytest.raises(ConfigError, match="sizes"):
        Trace.open(tmp_path / "short")
    whole[8] = 9
    (tmp_path / "new").write_bytes(whole)
    with pytest.raises(ConfigError, match="version 9"):
        Trace.open(tmp_path / "new")
    with pytest.raises(ConfigError, match="No such file"):
        Trace.open(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="cannot be written"):
        Recorder(tmp_path / "no" / "where", {}, SIZES)


def test_a_full_disk_ends_the_log_and_not_the_run(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path / "log", {"recipe": "lru", "seed": 0, "batch": 7}, SIZES)
    policy = recorder.wrap(find("lru").policy(SIZES, 40, policy_rng(0, 0)))
    policy.serve(as_ids([1, 2]))
    recorder.flush()

    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    recorder._file.close()
    recorder._file = Full()
    with pytest.warns(AuguryWarning, match="No space left"):
        policy.serve(as_ids([3]))
        recorder.flush()
    policy.admit(as_ids([3]))
    recorder.close()
    assert [record.op for record in Trace.open(tmp_path / "log")] == ["level", "serve"]


def test_calls_after_closing_are_decided_but_not_recorded(tmp_path):
    recorder = Recorder(tmp_path / "log", {"recipe": "lru", "seed": 0, "batch": 7}, SIZES)
    policy = recorder.wrap(find("lru").policy(SIZES, 40, policy_rng(0, 0)))
    recorder.close()
    recorder.close()
    assert policy.admit(as_ids([3]))[0].all()
    assert len(list(Trace.open(tmp_path / "log"))) == 1


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, SAMPLES - 1), max_size=40), st.integers(0, 300), st.integers(-(2**62), 2**62))
def test_any_record_survives(tmp_path_factory, ids, job, number):
    path = tmp_path_factory.mktemp("trace") / "log"
    record = Record("admit", 1, job, number, as_ids(ids), as_ids(ids[:3]), as_ids(ids) % 2 == 0)
    with Recorder(path, {}, SIZES) as recorder:
        recorder.add(record)
    (read,) = Trace.open(path)
    assert (read.op, read.level, read.job, read.number) == ("admit", 1, job, number)
    assert all(np.array_equal(getattr(read, name), getattr(record, name)) for name in ("ids", "answer", "kept"))


class TestRecorded(PolicyContract):
    """A recorded policy is itself a policy."""

    @pytest.fixture(autouse=True)
    def _path(self, tmp_path):
        self.path = tmp_path / "log"

    def make(self, sizes, capacity, rng):
        recorder = Recorder(self.path, {"recipe": "lru", "seed": 0, "batch": 1}, sizes)
        return recorder.wrap(find("lru").policy(sizes, capacity, rng))


def test_those_that_one_may_stand_in_for_are_read_as_they_were_written_however_many(tmp_path):
    lessons = [([4, 2, 9], None), ([4, 2, 9], []), ([4], [4, 1, 2, 3, 5, 6]), ([4, 2, 9, 7], [9, 1]), ([], [3, 8])]
    with Recorder(tmp_path / "log", {"recipe": "spider", "seed": 0, "batch": 3}, SIZES) as recorder:
        policy = recorder.wrap(find("spider").policy(SIZES, 100, policy_rng(0, 0)))
        for ids, kin in lessons:
            policy.learn(
                as_ids(ids), np.linspace(0, 1, len(ids), dtype=np.float32), None if kin is None else as_ids(kin)
            )
        policy.serve(as_ids([5]))
    *read, serve = list(Trace.open(tmp_path / "log"))[1:]
    for record, (ids, kin) in zip(read, lessons, strict=True):
        assert record.ids.tolist() == ids
        assert np.array_equal(record.scores, np.linspace(0, 1, len(ids), dtype=np.float32))
        assert (record.kin if kin is None else record.kin.tolist()) == kin
    assert serve.ids.tolist() == [5]
    assert verify(Trace.open(tmp_path / "log")) == (6, None)


def test_how_far_training_is_is_read_as_the_policy_was_told(tmp_path):
    class Told(type(find("lru").policy(SIZES, 1, policy_rng(0, 0)))):
        def progress(self, done, spreads, accuracies):
            told.append([done, *spreads, *accuracies])

    told = []
    with Recorder(tmp_path / "log", {"recipe": "lru", "seed": 0, "batch": 3}, SIZES) as recorder:
        policy = recorder.wrap(Told(SIZES, 40))
        policy.progress(0.0, [], [])
        policy.progress(0.25, [0.5], [0.125, 71.25])
        policy.progress(1.0, [], [0.5] * 100)
    read = list(Trace.open(tmp_path / "log"))[1:]
    assert [record.op for record in read] == ["progress"] * 3
    assert [record.scores.tolist() for record in read] == told
    assert [record.number for record in read] == [0, 1, 0]
    assert [len(one) for one in told] == [1, 4, 101]


def test_twins_are_told_who_is_like_whom_and_how_far_training_is(tmp_path):
    rng = np.random.default_rng(0)
    recipe = find("spider-90-50")
    with Recorder(tmp_path / "log", {"recipe": recipe.name, "seed": 0, "batch": 5}, SIZES) as recorder:
        policy = recorder.wrap(recipe.policy(SIZES, 90, policy_rng(0, 0)))
        stood_in = 0
        for epoch in range(10):
            spreads = np.linspace(1, 0.5, epoch, dtype=np.float32).tolist()
            policy.progress(epoch / 16, spreads, rng.random(epoch, np.float32).tolist())
            policy.plan(np.arange(SAMPLES))
            for _ in range(12):
                ids = rng.permutation(SAMPLES)[:5]
                step([policy], policy.wanted(90))
                stood_in += int((step([policy], ids).served != ids).sum())
                policy.learn(ids, rng.random(5).astype(np.float32) / (1 + epoch), rng.permutation(SAMPLES)[:9])
    assert stood_in > 20
    assert policy.gauges["importance_ratio"] < 0.9
    records = list(Trace.open(tmp_path / "log"))
    assert verify(Trace.open(tmp_path / "log")) == (len(records) - 1, None)
    # A twin that is told something else decides otherwise.
    for op in ("learn", "progress"):
        with Recorder(tmp_path / "other", {"recipe": recipe.name, "seed": 0, "batch": 5}, SIZES) as other:
            for record in records:
                if record.op != op:
                    other.add(record)
        assert verify(Trace.open(tmp_path / "other"))[1] is not None
