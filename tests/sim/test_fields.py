"""Loss fields: the synthetic one never changes, recorded ones survive their file, and bad files are told apart."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import numpy as np
import pytest

from augury.errors import ConfigError
from augury.sim import fields
from augury.sim.fields import Recorded, Synthetic, open_field, save_field

EVERY = np.arange(50_000)

PINNED_LOSSES = {0: "4af18a0b910984b8", 1: "06793bc6ba5d94e9", 11: "50af93123c925e03"}
PINNED_LABELS = "365d3d4e2250fc41"
PINNED_EMBEDDINGS = "15726e5594553c92"


def digest(values):
    """Of thousandths: what the last bit of another machine's exp() does not change."""
    return hashlib.blake2b(np.rint(values * 1000.0).astype("<i4").tobytes(), digest_size=8).hexdigest()


def apart(some, others):
    """Distances, by the law of cosines: an array of all differences would not fit."""
    squares = (some**2).sum(1)[:, None] + (others**2).sum(1) - 2 * some @ others.T
    return np.sqrt(np.maximum(squares, 0))


@pytest.fixture(scope="module")
def field():
    return Synthetic(50_000, seed=0)


# -- synthetic -------------------------------------------------------------------------------------------------


def test_the_field_of_seed_0_is_the_same_for_ever(field):
    assert {epoch: digest(field.losses(epoch, EVERY)) for epoch in (0, 1, 11)} == PINNED_LOSSES
    assert digest(field.labels) == PINNED_LABELS
    assert digest(field.embeddings) == PINNED_EMBEDDINGS


def test_losses_are_as_described(field):
    first, later = field.losses(0, EVERY), field.losses(40, EVERY)
    assert first.dtype == np.float32
    assert np.median(field.difficulty) == pytest.approx(1, rel=0.03)
    assert np.std(np.log(field.difficulty)) == pytest.approx(1, rel=0.02)
    for losses, epoch in ((first, 0), (later, 40)):
        noise = np.log(losses / field.difficulty) + epoch / 20
        assert noise.mean() == pytest.approx(0, abs=0.01)
        assert noise.std() == pytest.approx(0.5, rel=0.02)
        # Noise that followed from the difficulty would make easy samples easier and nothing random.
        assert abs(np.corrcoef(noise, np.log(field.difficulty))[0, 1]) < 0.02
    assert abs(np.corrcoef(np.log(first / field.difficulty), np.log(later / field.difficulty))[0, 1]) < 0.02


def test_labels_are_uniform(field):
    counts = np.bincount(field.labels)
    assert len(counts) == 10
    assert counts.min() > 4700
    assert counts.max() < 5300


def test_embeddings_lie_in_clusters_of_their_class_but_for_one_in_a_hundred(field):
    made, labels = field.embeddings, field.labels
    assert made.shape == (50_000, 32)
    assert made.dtype == np.float32
    distances = apart(made[:1_000], made[1_000:5_000])
    nearest = 1_000 + distances.argmin(1)
    # A stray has neighbours of another class; a few samples have a stray for their nearest neighbour.
    assert np.mean(labels[:1_000] != labels[nearest]) == pytest.approx(0.02, abs=0.012)
    joined = distances < 20  # clusters are some 80 apart, and at most 0.65 * sqrt(64) wide
    assert joined.mean() == pytest.approx(1 / 40, rel=0.1)


def test_difficult_samples_lie_further_out(field):
    def radius(which):
        members = field.embeddings[which]
        own = apart(members, members)
        np.fill_diagonal(own, np.inf)
        return np.median(own.min(1))

    order = np.argsort(field.difficulty)
    assert radius(order[:1_000]) < radius(order[-1_000:])


def test_values_do_not_depend_on_what_was_asked_before():
    asked_late, asked_early, never = Synthetic(300, 5), Synthetic(300, 5), Synthetic(300, 5)
    early = asked_early.embeddings.copy(), asked_early.labels.copy()
    ids = np.array([7, 3, 3, 299])
    backwards = {epoch: asked_late.losses(epoch, ids) for epoch in (9, 2, 0, 2)}
    assert np.array_equal(asked_late.labels, early[1])
    assert np.array_equal(asked_late.embeddings, early[0])
    for epoch in (0, 2, 9):
        expected = never.losses(epoch, np.arange(300))[ids]
        assert np.array_equal(backwards[epoch], expected)
        assert np.array_equal(asked_early.losses(epoch, ids), expected)
    assert not np.array_equal(Synthetic(300, 6).losses(0, ids), never.losses(0, ids))


def test_what_was_handed_out_stays():
    field = Synthetic(10)
    first = field.losses(0, np.arange(10))
    kept = first.copy()
    first[:] = 0
    assert np.array_equal(field.losses(0, np.arange(10)), kept)


@pytest.mark.parametrize(("samples", "seed", "message"), [(0, 0, "at least 1"), (5, -1, "must not be negative")])
def test_synthetic_fields_that_cannot_be(samples, seed, message):
    with pytest.raises(ConfigError, match=message):
        Synthetic(samples, seed)


@pytest.mark.parametrize("field", [Synthetic(3), Recorded(np.ones((2, 3)))])
def test_epochs_are_counted_from_0(field):
    with pytest.raises(ConfigError, match="from 0"):
        field.losses(-1, np.array([0]))


# -- recorded --------------------------------------------------------------------------------------------------

TABLE = np.random.default_rng(0).lognormal(0, 1, (4, 30)).astype(np.float16)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "field.npz"
    meta = {"dataset": "made up", "model": "none", "seed": 3}
    save_field(path, Recorded(TABLE, np.arange(30) % 7, [0.1, 0.2, 0.3, 0.35], meta))
    return path


def test_a_field_survives_its_file(saved):
    field = open_field(str(saved), 30, seed=9)
    assert isinstance(field, Recorded)
    assert (field.samples, field.epochs) == (30, 4)
    assert np.array_equal(field.table, TABLE)
    assert field.table.dtype == np.float16
    assert np.array_equal(field.labels, np.arange(30) % 7)
    assert field.accuracy.tolist() == [0.1, 0.2, 0.3, 0.35]
    assert field.meta["dataset"] == "made up"
    assert (field.meta["seed"], field.meta["samples"], field.meta["epochs"]) == (3, 30, 4)
    assert [path.name for path in saved.parent.iterdir()] == ["field.npz"]


def test_epochs_beyond_the_last_give_the_last(saved):
    field, ids = open_field(str(saved), None, 0), np.array([4, 4, 29])
    for epoch, row in ((0, 0), (2, 2), (3, 3), (4, 3), (1000, 3)):
        found = field.losses(epoch, ids)
        assert found.dtype == np.float32
        assert np.array_equal(found, TABLE[row, ids].astype(np.float32))


def test_labels_and_accuracy_may_be_missing(tmp_path):
    save_field(tmp_path / "bare.npz", Recorded(TABLE))
    field = open_field(str(tmp_path / "bare.npz"), None, 0)
    assert isinstance(field, Recorded)
    assert field.labels is None
    assert field.accuracy is None


def test_the_file_holds_no_pickle_and_keeps_very_large_losses_finite(tmp_path):
    path = tmp_path / "field.npz"
    save_field(path, Recorded(np.array([[1e9, 0.5]])))
    with np.load(path, allow_pickle=False) as archive:
        assert json.loads(str(archive["meta"]))["format"] == fields.FORMAT
        assert archive["losses"].tolist() == [[65504, 0.5]]


def test_synthetic_by_name():
    field = open_field("synthetic", 20, 4)
    assert np.array_equal(field.losses(1, np.arange(20)), Synthetic(20, 4).losses(1, np.arange(20)))
    with pytest.raises(ConfigError, match="how many samples"):
        open_field("synthetic", None, 0)


# -- files that cannot be used ---------------------------------------------------------------------------------


def refused(path, message, samples=None):
    with pytest.raises(ConfigError, match=message) as caught:
        open_field(str(path), samples, 0)
    assert str(path) in str(caught.value)


def rewritten(path, **changes):
    with np.load(path) as archive:
        np.savez(path.with_name("other.npz"), **(dict(archive) | changes))
    return path.with_name("other.npz")


def test_there_is_no_file(tmp_path):
    refused(tmp_path / "nowhere.npz", "augury record")
    refused(tmp_path, "cannot be read")


@pytest.mark.parametrize("content", [b"", b"PK", b"hello", b"\x93NUMPY\x01\x00", b"\x80\x04N."])
def test_other_files_are_no_fields(tmp_path, content):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    refused(path, "is not a loss field")


def test_other_archives_are_no_fields(tmp_path, saved):
    np.savez(tmp_path / "x.npz", x=np.ones(3))
    refused(tmp_path / "x.npz", "is not a loss field")
    refused(rewritten(saved, meta=np.array('{"format": "something else"}')), "is not a loss field")
    refused(rewritten(saved, meta=np.array("[1]")), "is not a loss field")


def test_every_truncation_is_noticed(tmp_path, saved):
    whole, path = saved.read_bytes(), tmp_path / "torn.npz"
    for length in range(4, len(whole), 7):
        path.write_bytes(whole[:length])
        refused(path, "is damaged")


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path, saved):
    whole, path = saved.read_bytes(), tmp_path / "flipped.npz"
    for at in range(4, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            field = open_field(str(path), None, 0)
        except ConfigError:
            continue
        assert np.array_equal(field.losses(0, np.arange(30)), TABLE[0].astype(np.float32))


def test_pickles_are_never_read(tmp_path, saved):
    packed = io.BytesIO()
    np.save(packed, np.array([{}], object), allow_pickle=True)
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(tmp_path / "pickled.npz", "w") as new:
        new.writestr("meta.npy", old.read("meta.npy"))
        new.writestr("losses.npy", packed.getvalue())
    refused(tmp_path / "pickled.npz", "is damaged")


def test_a_field_of_another_dataset(saved):
    refused(saved, "losses of 30 samples, and there are 50,000", samples=50_000)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_losses_that_are_not_finite(saved, bad):
    table = TABLE.copy()
    table[2, 17] = bad
    refused(rewritten(saved, losses=table), "not finite, the first is .* of sample 17 in epoch 2")
    with pytest.raises(ConfigError, match="not finite"):
        Recorded(table)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"losses": TABLE[0]}, r"losses are numbers by \(epoch, sample\)"),
        ({"losses": TABLE[:0]}, "losses are numbers"),
        ({"losses": np.full((4, 30), "a")}, "losses are numbers"),
        ({"labels": np.arange(5)}, "labels must be 30 numbers"),
        ({"labels": np.full(30, "cat")}, "labels must be 30 numbers"),
        ({"accuracy": np.ones(9)}, "test accuracies must be 4 numbers"),
    ],
)
def test_parts_that_do_not_fit(saved, changes, message):
    refused(rewritten(saved, **changes), message)


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match="cannot write"):
        save_field(tmp_path / "nowhere" / "field.npz", Recorded(TABLE))


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    before = saved.read_bytes()
    monkeypatch.setattr(fields.np, "savez_compressed", full)
    with pytest.raises(ConfigError, match="No space left"):
        save_field(saved, Recorded(TABLE[:1]))
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
