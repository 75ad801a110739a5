"""SpiderCache live and in replay: who stands in for whom, what is counted and told, and what can go wrong."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import augury
from augury.errors import AuguryWarning, BadFeedback, ConfigError
from augury.knowledge import unpack
from augury.recipes import RECIPES
from augury.scorers.graph import Graph
from augury.sim.fields import Recorded, Synthetic
from augury.sim.replay import replay
from augury.sim.verify import verify
from augury.trace import Trace
from helpers import arrays

SAMPLES, BATCH, WIDTH, EPOCHS = 400, 16, 24, 3
NAMES = ["spider", "spider-90-50", "augury-spider"]
FIELD = Synthetic(SAMPLES)
X, Y = arrays(SAMPLES, WIDTH)[0], FIELD.labels


def patient(name="spider"):
    """It scores all that it is told, however fast this loop is."""
    return replace(RECIPES[name], scorer=partial(Graph, patience=None))


def loader(recipe="spider", data=None, cache=0.25, epochs=EPOCHS, **options):
    window = 4 * BATCH * WIDTH
    room = {"ram": int(cache * SAMPLES * WIDTH) + window, "readahead": window, "readers": 4, "output": "numpy"}
    recipe = patient(recipe) if isinstance(recipe, str) else recipe
    return augury.Loader((X, Y) if data is None else data, BATCH, recipe=recipe, epochs=epochs, **room | options)


def tell(live, ids):
    live.feedback(ids, embeddings=FIELD.embeddings[ids], labels=FIELD.labels[ids])


def epoch_of(live, stop=None):
    """Train an epoch, or as many batches of it: who was handed out, with the right bytes and labels."""
    served = []
    for number, (data, labels, ids) in enumerate(live):
        assert np.array_equal(data, X[ids])
        assert np.array_equal(labels, Y[ids])
        tell(live, ids)
        served.append(ids)
        if number + 1 == stop:
            break
    return np.concatenate(served)


def train(live, epochs=EPOCHS):
    return [epoch_of(live) for _ in range(epochs)]


def exchanged(path):
    """All requests of a run, and who was served for them."""
    asked, served = [], []
    for record in Trace.open(path):
        if record.op == "serve" and record.level == 0:
            asked.append(record.ids)
            served.append(record.ids if record.answer is None else record.answer)
    return np.concatenate(asked), np.concatenate(served)


@pytest.mark.parametrize("name", NAMES)
def test_stand_ins_come_under_their_own_id_and_are_of_the_class_asked_for(name, tmp_path):
    with loader(name, trace=tmp_path / "trace") as live:
        handed_out = np.concatenate(train(live))
        stats = live.stats()
    asked, served = exchanged(tmp_path / "trace")
    assert np.array_equal(handed_out, served)
    instead = asked != served
    assert instead.sum() > 0.02 * len(asked)
    assert np.array_equal(FIELD.labels[asked], FIELD.labels[served])
    assert stats.total.counts.substitutes == instead.sum()
    assert stats.total.counts.requests == len(asked) == EPOCHS * SAMPLES
    counts = stats.total.counts
    assert counts.hits + counts.substitutes + counts.joined + counts.misses == counts.requests
    assert "stand-ins" in str(stats)
    assert verify(Trace.open(tmp_path / "trace"))[1] is None


def test_who_stands_in_lies_near_whom_it_stands_in_for(tmp_path):
    with loader(trace=tmp_path / "trace") as live:
        train(live)
    asked, served = exchanged(tmp_path / "trace")
    instead = asked != served
    apart = np.linalg.norm(FIELD.embeddings[asked[instead]] - FIELD.embeddings[served[instead]], axis=1)
    others = np.linalg.norm(FIELD.embeddings[asked[instead]] - np.roll(FIELD.embeddings[served[instead]], 1, 0), axis=1)
    assert np.median(apart) < 0.2 * np.median(others)
    assert apart.max() < np.median(others)


def test_before_anything_is_told_every_sample_comes_once_and_nobody_stands_in():
    with loader() as live:
        visited = np.concatenate([ids for _, _, ids in live])
        assert np.sort(visited).tolist() == list(range(SAMPLES))
        assert live.stats().total.counts.substitutes == 0


class Converging(Synthetic):
    """Samples come to lie nearer to each other from epoch to epoch: their importance differs less and less."""

    _nearer = 0.7

    def losses(self, epoch, ids):
        self._nearer = 0.7 * 0.8**epoch
        return super().losses(epoch, ids)

    @property
    def embeddings(self):
        return super().embeddings * np.float32(self._nearer)


class TestRatio:
    EPOCHS = 8

    def recipe(self, name="spider"):
        """With the paper's fixed distance, importance converges as told."""
        return replace(RECIPES[name], scorer=partial(Graph, patience=None, decay=0.01))

    def train(self, recipe, accuracies=None):
        field = Converging(SAMPLES)
        with loader(recipe, epochs=self.EPOCHS) as live:
            for epoch in range(self.EPOCHS):
                for _, _, ids in live:
                    losses = field.losses(epoch, ids)
                    live.feedback(ids, losses, embeddings=field.embeddings[ids], labels=field.labels[ids])
                if accuracies is not None:
                    live.feedback(accuracy=accuracies[epoch])
            return live.stats()

    @pytest.mark.parametrize(("name", "end"), [("spider", 0.8), ("spider-90-50", 0.5)])
    def test_of_each_epoch_it_is_told(self, name, end):
        """Nine tenths until importance has converged for five epochs, then as Eq. 8 says; and as replay says."""
        stats = self.train(self.recipe(name))
        told = [epoch.gauges["importance_ratio"] for epoch in stats.epochs]
        falling = [0.9 - (0.9 - end) * (epoch / 8) ** 2 for epoch in (5, 6, 7)]
        assert told == pytest.approx([0.9] * 5 + falling)
        said = replay(self.recipe(name), SAMPLES, 8, 0.25, BATCH, losses=Converging(SAMPLES)).gauges_per_epoch
        assert told == [gauges["importance_ratio"] for gauges in said]
        used = [epoch.gauges["homophily_used"] for epoch in stats.epochs]
        assert used[0] == 0  # when it begins
        assert 0 < used[4] <= 0.1 < used[7] <= 1 - told[7]
        written = json.loads(json.dumps(stats.as_dict()))
        assert [epoch["gauges"]["importance_ratio"] for epoch in written["epochs"]] == told

    def test_where_accuracy_grows_it_changes_slower(self):
        grows = self.train(self.recipe(), np.linspace(0.1, 1, 8).tolist())
        stagnates = self.train(self.recipe(), [50] * 8)
        fast, slow = (stats.epochs[-1].gauges["importance_ratio"] for stats in (stagnates, grows))
        assert fast == pytest.approx(0.9 - 0.1 * 7 / 8)
        assert fast < slow - 0.005
        assert slow < 0.9


def test_recipes_without_sections_tell_no_ratio():
    with loader("spider-imp", epochs=2) as live:
        train(live, 2)
        assert live.stats().epochs[1].gauges == {}
        assert "gauges" not in live.stats().as_dict()["epochs"][1]
        assert live.stats().total.counts.substitutes == 0


@pytest.mark.parametrize("name", ["spider", "augury-spider"])
def test_the_same_seed_gives_the_same_run_however_slow_the_store_is(name):
    with loader(name, seed=7) as quick:
        expected = train(quick)
    with loader(name, augury.SlowSource(augury.ArraySource(X, Y), 0.0002, seed=1), seed=7) as slow:
        found = train(slow)
    assert all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))
    with loader(name, seed=8) as other:
        assert not np.array_equal(epoch_of(other), expected[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_interrupted_asks_for_the_rest_of_its_epoch(name, tmp_path):
    with loader(name, trace=tmp_path / "whole") as live:
        train(live)
    whole = exchanged(tmp_path / "whole")[0]
    with loader(name) as live:
        train(live, 2)
        epoch_of(live, 11)
        state = json.loads(json.dumps(live.state_dict()))
    done = 11 * BATCH
    order = unpack(state["learned"]["order"], np.int64)
    assert np.array_equal(order, whole[2 * SAMPLES : 3 * SAMPLES])
    with loader(name, trace=tmp_path / "rest") as live:
        live.load_state_dict(state)
        assert len(epoch_of(live)) == SAMPLES - done
        assert [epoch.epoch for epoch in live.stats().epochs] == [2]
        assert live.stats().total.counts.substitutes > 0  # it still knows who is like whom
        assert len(live.state_dict()["learned"]["scorer"]["known"]) > 0
    asked, _ = exchanged(tmp_path / "rest")
    assert np.array_equal(asked[: SAMPLES - done], order[done:])
    assert verify(Trace.open(tmp_path / "rest"))[1] is None


@pytest.mark.parametrize("name", NAMES)
def test_nobody_outside_the_subset_is_served(name, tmp_path):
    """They may be held back for validation."""
    subset = np.arange(1, SAMPLES, 2)
    with loader(name, subset=subset, trace=tmp_path / "trace") as live:
        served = np.concatenate(train(live))
        assert live.stats().total.counts.substitutes > 0
        assert len(served) == EPOCHS * len(subset)
        assert not live.cache.resident[::2].any()
    assert np.isin(served, subset).all()
    for record in Trace.open(tmp_path / "trace"):
        if record.op == "admit":
            assert np.isin(record.ids, subset).all()


@pytest.mark.parametrize("name", NAMES)
def test_validation_on_the_same_cache_gets_what_it_asks_for(name):
    with loader(name) as alone:
        expected = train(alone)
    with loader(name) as live:
        for epoch in range(EPOCHS):
            assert np.array_equal(epoch_of(live), expected[epoch])
            held = live.cache.resident
            with augury.Loader(
                live.source, 50, cache=live.cache, admit=False, shuffle=False, output="numpy", epochs=1
            ) as other:
                visited = []
                for data, labels, ids in other:
                    assert np.array_equal(data, X[ids])
                    assert np.array_equal(labels, Y[ids])
                    visited.append(ids)
                assert np.concatenate(visited).tolist() == list(range(SAMPLES))
                assert other.stats().total.counts.substitutes == 0
                assert other.stats().total.counts.hits > 0 or epoch == 0
            if epoch + 1 == EPOCHS:  # before that the next epoch is being read
                assert np.array_equal(live.cache.resident, held)


def test_two_ranks_that_do_not_talk_learn_for_themselves():
    served = []
    for rank in range(2):
        with loader(rank=rank, world_size=2, epochs=3) as live:
            served.append(train(live, 3))
            assert live.stats().total.counts.substitutes > 0
            assert [epoch.counts.requests for epoch in live.stats().epochs] == [len(ids) for ids in served[rank]]
    for one, other in zip(*served, strict=True):
        assert abs(len(one) - len(other)) <= BATCH
        assert len(one) + len(other) == SAMPLES
        assert not np.array_equal(one, other)


@pytest.mark.parametrize("name", ["spider", "augury-spider"])
def test_a_disk_below_the_memory(name, tmp_path):
    disk = (tmp_path / "disk", 100 * WIDTH * 40)
    with loader(name, cache=0.1, disk=disk, trace=tmp_path / "trace") as live:
        train(live)
        total = live.stats().total
        assert total.bytes_from["disk"] > 0
        assert total.counts.substitutes > 0
    asked, served = exchanged(tmp_path / "trace")
    assert np.array_equal(FIELD.labels[asked], FIELD.labels[served])
    assert verify(Trace.open(tmp_path / "trace"))[1] is None
    with loader(name, cache=0.1, disk=disk) as again:  # what is on disk is found
        epoch_of(again)
        assert again.stats().total.bytes_from["disk"] > 0


def test_samples_that_cannot_be_read_spoil_nothing():
    slow = augury.SlowSource(augury.ArraySource(X, Y), failure_rate=0.1, seed=5)
    with loader("spider", slow, retries=0, on_error="skip") as live, warnings.catch_warnings():
        warnings.simplefilter("ignore", AuguryWarning)
        served = np.concatenate(train(live))
        counts = live.stats().total.counts
        assert live.quarantine
        assert live.stats().total.bad_samples > 0
        assert len(served) < counts.requests
        assert counts.substitutes > 0


def test_losses_alone_are_refused_and_what_is_needed_is_named():
    with loader() as live:
        for _, _, ids in live:
            with pytest.raises(BadFeedback, match=r"feedback\(ids, embeddings=\.\.\., labels=\.\.\.\)"):
                live.feedback(ids, np.ones(len(ids)))
            break
        assert live.stats().feedback.dropped == 1
        assert live.stats().feedback.reports == 0


def test_losses_beside_embeddings_are_taken():
    with loader(epochs=2) as live:
        for epoch in range(2):
            for _, _, ids in live:
                like = {"embeddings": FIELD.embeddings[ids], "labels": FIELD.labels[ids]}
                live.feedback(ids, FIELD.losses(epoch, ids), **like)
        assert live.stats().feedback.samples == 2 * SAMPLES
        assert len(live.state_dict()["learned"]["losses"]) == 2


def test_a_shuffle_cannot_be_turned_off():
    with pytest.raises(ConfigError, match="shuffle=False: recipe 'spider'"):
        loader(shuffle=False)


def test_as_it_is_the_recipe_runs_without_waiting_for_scores():
    """With little patience some reports may be overtaken: every other law holds all the same."""
    window = 4 * BATCH * WIDTH
    with augury.Loader(
        (X, Y), BATCH, recipe="spider", ram=100 * WIDTH + window, readahead=window, output="numpy", epochs=3
    ) as live:
        train(live, 3)
        told = live.stats().feedback
        assert told.reports == live.stats().total.batches
        assert told.overtaken < told.reports
        assert live.stats().total.counts.requests == 3 * SAMPLES


# -- in the simulator --------------------------------------------------------------------------------------------


class TestReplay:
    MANY = Synthetic(3000)

    @pytest.mark.parametrize("cache", [0.1, 0.3])
    def test_stand_ins_and_importance_together_hit_most(self, cache):
        names = ["lru", "minio", "shade-1", "icache", "spider-imp", "spider"]
        found = {name: replay(name, 3000, 6, cache, 128, losses=self.MANY) for name in names}
        hits = {name: result.hit_ratio + result.substitutes for name, result in found.items()}
        assert max(hits, key=hits.get) == "spider"
        assert hits["spider"] > 1.02 * max(value for name, value in hits.items() if name != "spider")
        spider, alone = found["spider"], found["spider-imp"]
        assert spider.substitutes > 0.02
        assert alone.substitutes == found["lru"].substitutes == 0
        assert spider.coverage < alone.coverage < found["lru"].coverage == 1  # what stands in takes others' places
        assert spider.coverage_per_epoch[0] > max(spider.coverage_per_epoch[1:]) > 0.3
        assert len(spider.substitutes_per_epoch) == 6
        assert spider.substitutes_per_epoch[0] < max(spider.substitutes_per_epoch)
        ratios = [gauges["importance_ratio"] for gauges in spider.gauges_per_epoch]
        assert ratios[:5] == [0.9] * 5
        assert 0.8 < ratios[5] <= 0.9
        used = [gauges["homophily_used"] for gauges in spider.gauges_per_epoch]
        assert used == sorted(used)
        assert 0.01 < used[-1] <= 1 - ratios[-1]
        assert alone.gauges_per_epoch == found["lru"].gauges_per_epoch == []
        assert spider.as_dict()["gauges_per_epoch"] == spider.gauges_per_epoch

    def test_losses_without_embeddings_are_refused(self):
        field = Recorded(np.ones((2, 100)), labels=np.zeros(100, np.int64))
        for name in (*NAMES, "spider-imp", "spider-90"):
            with pytest.raises(ConfigError, match=rf"'{name}' learns from embeddings, and a recorded loss field has"):
                replay(name, 100, 2, 0.2, losses=field)

    def test_nothing_to_learn_from_is_refused(self):
        with pytest.raises(ConfigError, match="learns from losses"):
            replay("spider", 100, 2, 0.2)

    def test_the_same_seed_gives_the_same_numbers(self):
        one, other = (replay("spider", 400, 3, 0.2, 16, 5, losses=Synthetic(400)).as_dict() for _ in range(2))
        del one["us_per_access"], other["us_per_access"]
        assert one == other

    def test_a_tenth_throughout(self):
        result = replay("spider-90", 300, 8, 0.3, 16, losses=Synthetic(300))
        assert {gauges["importance_ratio"] for gauges in result.gauges_per_epoch} == {0.9}


def test_no_warning_is_given_in_a_usual_run():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with loader(epochs=2) as live:
            train(live, 2)
