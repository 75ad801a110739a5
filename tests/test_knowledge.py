"""What training has told: arrays and curves, a subset's view, and a state that survives any kind of saving."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from augury.errors import ConfigError
from augury.ids import as_ids
from augury.knowledge import UNTOLD, Knowledge, pack, unpack
from augury.scorers.loss import LossRank


def trained(samples=20):
    """Something of everything."""
    known = Knowledge.none(samples)
    known.learn(as_ids([3, 5, 3]), np.array([2.5, 4.25, 1.1], np.float32))
    known.add_losses(0, 3.0, 4)
    known.visit(as_ids([1, 2, 3]), 0)
    known.visit(as_ids([3, 4]), 1)
    known.add_losses(1, 0.1, 3)
    known.accuracies.append(0.7)
    return known


def same(one, other):
    assert np.array_equal(one.scores, other.scores)
    assert np.array_equal(one.seen, other.seen)
    assert (one.scores.dtype, one.seen.dtype) == (other.scores.dtype, other.seen.dtype)
    for name in ("told", "losses", "accuracies"):
        assert getattr(one, name) == getattr(other, name), name


def test_before_training_nothing_is_known():
    known = Knowledge.none(4)
    assert known.scores.tolist() == [UNTOLD] * 4
    assert known.seen.tolist() == [-1] * 4
    assert (known.scores.dtype, known.seen.dtype) == (np.float32, np.int32)
    assert not known.told
    assert (known.loss_curve(), known.accuracies) == ([], [])


def test_a_sample_of_which_nothing_was_told_scores_below_any_ranked_one():
    assert LossRank().score(as_ids([0]), np.zeros(1, np.float32))[0] > UNTOLD > 0


def test_scores_are_learned_and_the_last_of_an_id_holds():
    known = Knowledge.none(6)
    known.learn(as_ids([]), np.empty(0, np.float32))
    assert not known.told
    known.learn(as_ids([3, 5, 3]), np.array([2.5, 4.25, 1.5], np.float32))
    assert known.told
    assert known.scores.tolist() == [1, 1, 1, 1.5, 1, 4.25]
    known.learn(as_ids([]), np.empty(0, np.float32))
    assert known.told


def test_the_last_visit_of_each_is_known():
    known = Knowledge.none(4)
    known.visit(as_ids([0, 1, 1]), 3)
    known.visit(as_ids([1]), 4)
    assert known.seen.tolist() == [3, 4, -1, -1]


def test_the_loss_curve_has_one_point_per_epoch_that_told_any():
    known = Knowledge.none(1)
    known.add_losses(0, 6.0, 2)
    known.add_losses(0, 3.0, 1)
    assert known.loss_curve() == [3.0]
    known.add_losses(2, 1.0, 4)  # nothing was told in 1
    assert known.loss_curve() == [3.0, 0.25]
    known.add_losses(0, 3.0, 1)  # late
    assert known.loss_curve() == [3.0, 0.25]
    known.add_losses(1, 5.0, 1)  # later still: by epoch, not by when it was told
    assert known.loss_curve() == [3.0, 5.0, 0.25]


def test_a_loss_of_zero_is_a_point_of_the_curve_and_a_report_of_nothing_is_none():
    known = Knowledge.none(1)
    known.add_losses(0, 0.0, 5)
    assert known.loss_curve() == [0.0]
    known.add_losses(1, 0.0, 0)
    assert known.loss_curve() == [0.0]


def test_a_copy_changes_alone():
    known = trained()
    other = known.copy()
    same(known, other)
    other.learn(as_ids([0]), np.array([9], np.float32))
    other.visit(as_ids([0]), 7)
    other.add_losses(0, 1.0, 1)
    other.add_losses(5, 1.0, 1)
    other.accuracies.append(0.1)
    same(known, trained())


def test_a_subset_sees_its_own_positions():
    known = trained()
    view = known.of(as_ids([5, 3, 0]))
    assert view.scores.tolist() == pytest.approx([4.25, 1.1, 1.0])
    assert view.seen.tolist() == [-1, 1, -1]
    for name in ("told", "losses", "accuracies"):
        assert getattr(view, name) == getattr(known, name)
    view.scores[:] = 0
    view.seen[:] = 99
    same(known, trained())


def test_all_ids_are_no_copy():
    known = trained()
    assert known.of(None) is known


def test_a_loader_that_learns_nothing_has_a_view_of_any_subset():
    assert len(Knowledge.none(0).of(as_ids([4, 5])).scores) == 0


@pytest.mark.parametrize("samples", [0, 1, 20, 5000])
def test_the_state_goes_through_json(samples):
    known = trained(samples) if samples > 5 else Knowledge.none(samples)
    state = json.loads(json.dumps(known.state_dict()))
    restored = Knowledge.from_state(state, samples)
    same(restored, known)
    same(Knowledge.from_state(known.state_dict(), samples), known)


def test_the_state_is_a_copy_and_what_is_restored_can_go_on():
    known = trained()
    state = known.state_dict()
    known.learn(as_ids([0]), np.array([9], np.float32))
    known.add_losses(1, 2.0, 1)
    known.accuracies.append(0.9)
    restored = Knowledge.from_state(state, 20)
    same(restored, trained())
    restored.learn(as_ids([0]), np.array([9], np.float32))
    restored.add_losses(1, 2.0, 1)
    restored.accuracies.append(0.9)
    same(restored, known)
    restored.visit(as_ids([0]), 2)
    same(Knowledge.from_state(state, 20), trained())


def test_scores_of_odd_bits_survive():
    known = Knowledge.none(4)
    known.scores[:] = [np.finfo(np.float32).tiny, 0, 3.4e38, np.nextafter(np.float32(1), np.float32(2))]
    same(Knowledge.from_state(json.loads(json.dumps(known.state_dict())), 4), known)


def test_a_state_of_another_dataset_is_refused():
    with pytest.raises(ConfigError, match=r"20.*21"):
        Knowledge.from_state(trained().state_dict(), 21)


@pytest.mark.parametrize("name", ["scores", "seen"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2 // 4 * 4],
        lambda text: text[:-1],
        lambda text: "!" + text,
        lambda text: "ä" + text,
        lambda text: base64.b64encode(b"no archive").decode(),
        lambda text: base64.b64encode(zlib.compress(b"12345")).decode(),
        lambda text: "",
        lambda text: None,
        lambda text: 5,
        lambda text: [1.0, 2.0],
    ],
)
def test_a_damaged_array_is_an_error_that_says_so(name, damage):
    state = trained().state_dict()
    state[name] = damage(state[name])
    with pytest.raises(ConfigError):
        Knowledge.from_state(state, 20)


@pytest.mark.parametrize("name", ["scores", "seen", "losses", "accuracies", "told"])
def test_a_state_that_lacks_something_is_an_error_that_says_so(name):
    state = trained().state_dict()
    del state[name]
    with pytest.raises(ConfigError, match=name):
        Knowledge.from_state(state, 20)


@pytest.mark.parametrize(
    "wrong", [{"losses": [[1, 2.0]]}, {"losses": None}, {"losses": [["much", 1, 1]]}, {"accuracies": 3}]
)
def test_a_state_with_something_else_in_it_is_an_error_that_says_so(wrong):
    with pytest.raises(ConfigError):
        Knowledge.from_state(trained().state_dict() | wrong, 20)


@pytest.mark.parametrize("score", [-1.0, np.nan, np.inf])
def test_scores_that_no_scorer_gives_are_refused(score):
    known = trained()
    known.scores[3] = score
    with pytest.raises(ConfigError, match="damaged"):
        Knowledge.from_state(known.state_dict(), 20)


@given(hnp.arrays(np.int64, st.integers(0, 50)))
def test_arrays_survive_packing(array):
    text = pack(array)
    assert isinstance(text, str)
    assert text.isascii()
    back = unpack(text, np.int64)
    assert np.array_equal(back, array)
    assert back.flags.writeable
    assert np.array_equal(unpack(pack(array[::2]), np.int64), array[::2])


def test_how_far_scores_differ_is_noted_once_per_epoch_and_saved():
    known = Knowledge.none(4)
    known.note_spread(0)
    assert known.spreads == {}  # nothing was told
    known.learn(np.arange(3), np.array([0.0, 2.0, 4.0], np.float32))
    known.note_spread(1)
    known.learn(np.arange(2), np.array([3.0, 3.0], np.float32))
    known.note_spread(1)  # the epoch goes on after an interruption
    assert known.spreads == {1: pytest.approx(np.std([0, 2, 4]))}
    known.note_spread(2)
    assert known.spreads[2] == pytest.approx(np.std([3, 3, 4]))
    assert Knowledge.from_state(json.loads(json.dumps(known.state_dict())), 4).spreads == known.spreads
    known.note_spread(1)  # back in time
    assert list(known.spreads) == [1]
