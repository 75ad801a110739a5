"""Loaders whose epochs leave samples out: lengths, resume, ranks, weights, and what is fetched but not handed out."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import augury
from augury.errors import AuguryWarning, ConfigError
from augury.knowledge import Knowledge, pack
from augury.recipes import RECIPES
from augury.samplers.ranks import share_size
from augury.samplers.selective import CIS, IIS
from augury.scorers.loss import LossHistory
from augury.sim.fields import Synthetic
from augury.sim.replay import replay
from augury.sim.verify import verify
from augury.sources import Base
from augury.trace import Trace
from augury.transforms import RandomResizedCrop
from helpers import folder

SAMPLES, BATCH, WIDTH = 200, 8, 24
KEPT = 150
"""Of 200, with the usual beta."""
SOON = {
    name: replace(recipe, sampler=partial(recipe.sampler, warm_up=1))
    for name, recipe in RECIPES.items()
    if recipe.sampler in (IIS, CIS)
}
"""Recipes whose epochs 1, 2, 4 and 5 are partial."""
FULL, PARTIAL = (0, 3, 6), (1, 2, 4, 5)
FIELD = Synthetic(SAMPLES)


def rows(samples=SAMPLES):
    return np.random.default_rng(1).integers(0, 256, (samples, WIDTH), np.uint8), np.arange(samples)


def loader_of(recipe="iis-lru", data=None, batch=BATCH, **options):
    recipe = SOON[recipe] if isinstance(recipe, str) else recipe
    window = 4 * BATCH * WIDTH
    defaults = {"ram": SAMPLES * WIDTH // 5 + window, "readahead": window, "output": "numpy"}
    return augury.Loader(rows() if data is None else data, batch, recipe=recipe, **(defaults | options))


def batches_of(loader, epoch, stop=None):
    """Train an epoch, or as many batches of it; the ids of each batch."""
    x, _ = rows()
    got = []
    for number, batch in enumerate(loader):
        assert np.array_equal(batch.x, x[batch.ids])
        assert np.array_equal(batch.y, batch.ids)
        loader.feedback(batch.ids, FIELD.losses(epoch, batch.ids))
        got.append(batch.ids.tolist())
        if number + 1 == stop:
            break
    return got


def flat(batches):
    return [id for batch in batches for id in batch]


class TestLengths:
    def test_an_epoch_is_as_long_as_the_loader_says_also_while_it_lasts(self):
        """Who compares the step with the length finds the last batch."""
        with loader_of() as loader:
            for epoch in range(7):
                expected = 25 if epoch in FULL else 19
                assert len(loader) == loader.batches(epoch) == expected
                for number, (_, _, ids) in enumerate(loader, 1):
                    assert len(loader) == expected
                    assert len(ids) == (6 if epoch in PARTIAL and number == 19 else 8)
                    loader.feedback(ids, FIELD.losses(epoch, ids))
                assert number == expected
            assert loader.stats().epochs[1].counts.requests == KEPT

    def test_it_is_the_length_of_the_epoch_that_was_set(self):
        with loader_of() as loader:
            for epoch in (2, 3, 1, 0, 5):
                loader.set_epoch(epoch)
                assert len(loader) == (25 if epoch in FULL else 19)
                ids = flat(batches_of(loader, epoch))
                assert len(ids) == len(set(ids)) == (SAMPLES if epoch in FULL else KEPT)

    def test_as_they_come(self):
        """Five epochs of everything, and then every third."""
        with augury.Loader(rows(), BATCH, recipe="iis-lru") as loader:
            assert [loader.batches(epoch) for epoch in range(9)] == [25] * 5 + [19, 19, 25, 19]
        with augury.Loader(rows(), BATCH, recipe="cis-lru") as loader:
            assert [loader.batches(epoch) for epoch in range(9)] == [25] * 9

    def test_without_the_last_batch(self):
        with loader_of(drop_last=True) as loader:
            for epoch in range(4):
                assert len(loader) == (25 if epoch in FULL else 18)
                sizes = [len(ids) for ids in batches_of(loader, epoch)]
                assert sizes == [8] * (25 if epoch in FULL else 18)

    def test_an_epoch_that_is_too_short_for_a_batch_is_said(self):
        short = loader_of(data=rows(10), batch=9, drop_last=True, ram="1MB")
        with short as loader, pytest.raises(ConfigError, match="no batch: 8 samples, batch_size=9"):
            list(loader)  # the first epoch has one; but nobody should find out after it

    def test_in_catalog_order_nobody_is_left_out(self):
        with loader_of(shuffle=False) as loader:
            for epoch in range(3):
                assert flat(batches_of(loader, epoch)) == list(range(SAMPLES))


class TestOrders:
    @pytest.mark.parametrize(("recipe", "lag"), [*((name, 5) for name in SOON), ("iis-lru", 1), ("iis-lru", 40)])
    def test_a_live_run_is_what_replay_says(self, recipe, lag, tmp_path):
        with loader_of(recipe, lag=lag, epochs=5, trace=tmp_path / "trace") as loader:
            live = [flat(batches_of(loader, epoch)) for epoch in range(5)]
            stats = loader.stats()
        said = replay(SOON[recipe], SAMPLES, 5, 0.2, BATCH, 0, losses=FIELD, lag=lag)
        assert [epoch.counts.shares()["hit_ratio"] for epoch in stats.epochs] == said.per_epoch
        assert [epoch.counts.shares()["reads"] for epoch in stats.epochs] == said.reads_per_epoch
        assert [epoch.counts.shares()["substitutes"] for epoch in stats.epochs] == said.substitutes_per_epoch
        assert [epoch.distinct / SAMPLES for epoch in stats.epochs] == said.coverage_per_epoch
        assert [len(set(ids)) / SAMPLES for ids in live] == said.coverage_per_epoch
        calls, difference = verify(Trace.open(tmp_path / "trace"))
        assert calls > 90
        assert difference is None

    def test_an_epoch_visits_what_the_sampler_draws_by_all_that_was_told(self):
        with loader_of(lag=1, seed=4, weights=True) as loader:
            batches_of(loader, 0)
            known = Knowledge.from_state(loader.state_dict()["learned"], SAMPLES)
            sampler = IIS(SAMPLES, 4, warm_up=1)
            got = list(loader)
            assert np.concatenate([batch.ids for batch in got]).tolist() == sampler.draw(1, known).tolist()
            weights = sampler.weights(1, known)
            for batch in got:
                np.testing.assert_array_equal(batch.weights, weights[batch.ids])

    def test_the_important_come_and_others_are_left_out(self):
        """Told the same of every sample in every epoch."""
        often, losses = np.zeros(SAMPLES), np.arange(SAMPLES) / SAMPLES
        with loader_of(replace(SOON["iis-lru"], sampler=partial(IIS, beta=1, warm_up=1, reuse=None))) as loader:
            for epoch in range(13):
                for _, _, ids in loader:
                    loader.feedback(ids, losses[ids])
                    often[ids] += epoch > 0
        assert often.sum() == 12 * SAMPLES / 2
        assert often[150:].mean() > 9 > 3 > often[:50].mean()

    def test_silence_is_told_once_and_any_are_left_out(self):
        with loader_of() as loader, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            visited = [np.concatenate([ids for _, _, ids in loader]) for _ in range(5)]
        assert [len(np.unique(ids)) for ids in visited] == [200, 150, 150, 200, 150]
        assert set(visited[1].tolist()) != set(visited[2].tolist())
        assert sum("without any" in str(one.message) for one in told if one.category is AuguryWarning) == 1

    @pytest.mark.parametrize("options", [{}, {"admit": False}, {"weights": True}, {"weights": True, "admit": False}])
    @pytest.mark.parametrize("recipe", ["iis-lru", "cis-lru"])
    def test_a_subset_is_kept_to(self, recipe, options):
        subset = np.arange(30, 190, 2)
        with loader_of(recipe, subset=subset, **options) as loader:
            for epoch in range(3):
                assert len(loader) == (10 if epoch == 0 or recipe == "cis-lru" else 8)
                ids = flat(batches_of(loader, epoch))
                assert len(ids) == len(set(ids)) == (80 if epoch == 0 else 60)
                assert np.isin(ids, subset).all()


class TestWeights:
    @pytest.mark.parametrize("recipe", ["iis-lru", "cis-lru"])
    def test_the_hardest_weigh_least_and_full_epochs_weigh_all_alike(self, recipe):
        losses = np.arange(SAMPLES) / SAMPLES
        with loader_of(recipe, weights=True, lag=1) as loader:
            for epoch in range(4):
                got = []
                for _, _, ids, weights in loader:
                    assert weights.dtype == np.float32
                    loader.feedback(ids, losses[ids])
                    got.append((ids, weights))
                ids, weights = map(np.concatenate, zip(*got, strict=True))
                if epoch in FULL:
                    assert (weights == 1).all()
                else:
                    assert weights.sum() == pytest.approx(KEPT, rel=0.1)
                    assert (weights > 0).all()
                    assert weights[ids >= 150].max() < weights[ids < 50].min()


class TestResume:
    @pytest.mark.parametrize("recipe", ["iis-lru", "cis-lru"])
    @pytest.mark.parametrize(("stop", "place"), [(1, (0, 1)), (18, (0, 1)), (9, (1, 2))])
    def test_a_run_goes_on_as_if_it_had_not_been_interrupted(self, recipe, stop, place):
        """The rest of the epoch, and all that is drawn by what was told before and after."""
        options = {"rank": place[0], "world_size": place[1], "batch": BATCH // place[1]}
        with loader_of(recipe, **options) as loader:
            whole = [batches_of(loader, epoch) for epoch in range(6)]
        with loader_of(recipe, **options) as loader:
            for epoch in range(2):
                assert batches_of(loader, epoch) == whole[epoch]
            assert batches_of(loader, 2, stop) == whole[2][:stop]
            state = json.loads(json.dumps(loader.state_dict()))
        with loader_of(recipe, **options) as loader:
            loader.load_state_dict(state)
            assert len(loader) == len(whole[2])
            assert loader.state_dict() == state
            assert batches_of(loader, 2) == whole[2][stop:]
            for epoch in range(3, 6):
                assert batches_of(loader, epoch) == whole[epoch]

    def test_an_epoch_of_weights_keeps_them(self):
        with loader_of("cis-lru", weights=True) as loader:
            batches_of(loader, 0)
            batches_of(loader, 1, 7)
            state = loader.state_dict()
            first = next(iter(loader))
            loader.load_state_dict(state)
            rest = list(loader)
        assert len(rest) == 18
        assert min(batch.weights.min() for batch in rest) > 0
        assert len({float(weight) for batch in rest for weight in batch.weights}) > 50
        assert first.ids.tolist() != rest[0].ids.tolist()

    @pytest.mark.parametrize("recipe", ["iis-lru", "cis-lru"])
    @pytest.mark.parametrize(("world", "drop_last"), [(3, True), (120, False)])
    def test_another_number_of_ranks_goes_on_with_equally_many_batches(self, recipe, drop_last, world):
        with loader_of(recipe) as loader:
            batches_of(loader, 0)
            batches_of(loader, 1, 18)
            state = loader.state_dict()
            assert (state["epoch"], state["offset"]) == (1, 144)
        counts = set()
        for rank in range(0, world, max(1, world // 3)):
            with loader_of(recipe, batch=1, rank=rank, world_size=world, drop_last=drop_last) as loader:
                loader.load_state_dict(state)
                counts.add((len(batches_of(loader, 1)), len(batches_of(loader, 2)), loader.state_dict()["epoch"]))
        assert len(counts) == 1
        assert min(min(counts)) > 0

    def test_an_epoch_that_is_shorter_for_other_ranks_and_therefore_over_is_followed_by_the_next(self):
        with loader_of(data=rows(25), batch=1, ram="1MB") as loader:
            batches_of(loader, 0)
            batches_of(loader, 1, 18)
            state = loader.state_dict()
        for drop_last in (False, True):
            options = {"rank": 0, "world_size": 13, "drop_last": drop_last, "ram": "1MB"}
            with loader_of(data=rows(25), batch=1, **options) as loader:
                loader.load_state_dict(state)
                assert len(batches_of(loader, 2)) == 1
                assert loader.state_dict()["epoch"] == 3

    @pytest.mark.parametrize("damage", [{"window": "?"}, {"before": "?"}, {"before": pack(np.ones(5, np.float32))}])
    def test_a_damaged_state_is_refused_and_changes_nothing(self, damage):
        with loader_of() as loader:
            batches_of(loader, 0)
            later = loader.state_dict()
        with loader_of() as loader:
            batches_of(loader, 0, 5)
            state = loader.state_dict()
            learned = later["learned"] | {"scorer": later["learned"]["scorer"] | damage}
            with pytest.raises(ConfigError, match="damaged"):
                loader.load_state_dict(later | {"learned": learned})
            assert loader.state_dict() == state


class TestRanks:
    @pytest.mark.parametrize("recipe", ["iis-lru", "cis-lru"])
    @pytest.mark.parametrize("world", [3, 7])
    def test_they_have_equally_many_batches_and_nobody_in_common(self, recipe, world):
        visited, counts = [], []
        for rank in range(world):
            with loader_of(recipe, rank=rank, world_size=world, epochs=4) as loader:
                lengths = [loader.batches(epoch) for epoch in range(4)]
                got = [batches_of(loader, epoch) for epoch in range(4)]
                assert [len(batches) for batches in got] == lengths
                counts.append(lengths)
                visited.append([flat(batches) for batches in got])
        assert counts == [counts[0]] * world
        for epoch in range(4):
            together = [id for each in visited for id in each[epoch]]
            assert len(together) - len(set(together)) < world
            if epoch in PARTIAL:
                assert len(together) == len(set(together))
                assert len(together) == pytest.approx(KEPT, abs=3 * world)


class TestSkipped:
    """Everything is fetched, and not all of it handed to training."""

    def test_everything_is_requested_and_what_iis_chooses_is_handed_out(self):
        """Told the same of every sample, whoever reports it."""
        sets = {}
        for recipe in ("cis-lru", "iis-lru"):
            with loader_of(recipe, lag=1) as loader:
                batches_of(loader, 0)
                sets[recipe] = batches_of(loader, 1)
                stats = loader.stats().epochs[1]
                assert stats.counts.requests == (SAMPLES if recipe == "cis-lru" else KEPT)
                assert stats.distinct == KEPT
        assert sorted(flat(sets["cis-lru"])) == sorted(flat(sets["iis-lru"]))
        sizes = [len(batch) for batch in sets["cis-lru"]]
        assert len(sizes) == 25
        assert min(sizes) >= 1
        assert max(sizes) <= BATCH
        assert len(set(sizes)) > 2

    def test_no_batch_is_empty(self):
        with loader_of("cis-lru", batch=1, lag=1) as loader:
            batches_of(loader, 0)
            assert [len(batch) for batch in batches_of(loader, 1)] == [1] * SAMPLES

    @pytest.mark.parametrize("place", [(0, 1), (1, 2)])
    def test_each_visit_is_transformed_by_its_own_chance(self, place):
        """That of the same visit in a run that skips nobody; a subset that names samples twice has them twice."""
        images = np.random.default_rng(3).integers(0, 256, (40, 24, 24, 3), np.uint8)
        subset = np.repeat(np.arange(40), 2)
        crops = []
        for recipe in (SOON["cis-lru"], replace(SOON["cis-lru"], sampler=partial(CIS, warm_up=9))):
            memory, where = {"ram": "1MB", "readahead": "100kB"}, {"rank": place[0], "world_size": place[1]}
            options = {"subset": subset, "lag": 1, "transform": RandomResizedCrop(6)}
            with loader_of(recipe, (images, None), **memory, **where, **options) as loader:
                for _, _, ids in loader:
                    loader.feedback(ids, FIELD.losses(0, ids))
                got = [(int(id), x.tobytes()) for batch in loader for id, x in zip(batch.ids, batch.x, strict=True)]
            crops.append(got)
        some, every = crops
        assert 20 < len(some) < len(every) == 80 // place[1]
        assert len(set(every)) == len(every)
        assert [one for one in every if one in set(some)] == some

    def test_samples_that_cannot_be_read_are_named_right(self):
        x, y = rows()
        with loader_of("cis-lru", _Torn(augury.ArraySource(x, y)), on_error="skip", retries=0) as loader:
            with pytest.warns(AuguryWarning, match="cannot be read"):
                for epoch in range(4):
                    ids = flat(batches_of(loader, epoch))
                    assert not np.isin(_Torn.BAD, ids).any()
                    assert len(ids) == SAMPLES - len(_Torn.BAD) or epoch in PARTIAL
            assert {bad.id for bad in loader.quarantine} == set(_Torn.BAD)

    def test_files_of_any_size(self, tmp_path):
        contents = folder(tmp_path, 60)
        with loader_of("cis-lru", tmp_path, collate=list, ram="2kB", readahead="1kB") as loader:
            for epoch in range(3):
                count = 0
                for x, _, ids in loader:
                    assert [bytes(one) for one in x] == [contents[id] for id in ids]
                    loader.feedback(ids, FIELD.losses(epoch, ids))
                    count += len(ids)
                assert count == (60 if epoch == 0 else 45)


class _Torn(Base):
    """A source that lacks some samples."""

    BAD = (17, 93, 150)

    def __init__(self, inner) -> None:
        self.inner, self.catalog = inner, inner.catalog
        self.form, self.self_labelled = inner.form, inner.self_labelled

    def read(self, ids):
        missing = [
            augury.Unreadable(int(id), self.catalog.location(int(id)), "lost") if id in self.BAD else None for id in ids
        ]
        return [error or data for error, data in zip(missing, self.inner.read(ids), strict=True)]

    def requests(self, ids):
        return [ids[at : at + 1] for at in range(len(ids))]

    def decode(self, data):
        return self.inner.decode(data)


RANK = """
import contextlib, os, sys
from functools import partial
import numpy as np, torch
import augury
from augury.policies.classic import LRU
from augury.recipes import Recipe
from augury.samplers.selective import CIS, IIS
from augury.scorers.loss import LossHistory
from augury.sim.fields import Synthetic

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
field, samples = Synthetic(301), 301
x = np.zeros((samples, 8), np.uint8)
saved = {}
for name, make, lag in (("iis", IIS, 1), ("cis", CIS, 4), ("far", IIS, 60)):
    recipe = Recipe(name, LRU, "", partial(make, warm_up=1), LossHistory)
    counts, batches = [], []
    with augury.Loader((x, None), 8, recipe=recipe, ram=0.5, output="numpy", lag=lag, seed=5) as loader:
        for epoch in range(6):
            count = len(loader)
            ids = []
            for batch in loader:
                loader.feedback(batch.ids, field.losses(epoch, batch.ids))
                ids.append(batch.ids)
                torch.distributed.all_reduce(torch.ones(1))  # training has collectives of its own
            assert len(ids) == count
            batches.append(count)
            saved[f"{name}{epoch}"] = np.concatenate(ids)
    saved[f"{name}-batches"] = batches
np.savez(f"{folder}/{rank}.npz", **saved)
with contextlib.suppress(RuntimeError):
    torch.distributed.barrier()  # who leaves first must not fail the other
os._exit(0)  # taking a process group down aborts now and then: that is torch's affair
"""


def slow_ranks(samples, seed, epochs):
    """What two ranks visit that draw each epoch by all that both were told."""
    field, known, scorers = Synthetic(samples), Knowledge.none(samples), [LossHistory(samples) for _ in range(2)]
    for epoch in range(epochs):
        told = []
        for rank, scorer in enumerate(scorers):
            sampler = IIS(samples, seed, rank, 2, share_size(samples, BATCH, rank, 2), warm_up=1)
            ids = sampler.draw(epoch, known)
            batches = [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]
            told += [(batch, scorer.score(batch, field.losses(epoch, batch))) for batch in batches]
            yield epoch, rank, ids
        for batch, scores in told:
            known.learn(batch, scores)


def test_ranks_that_exchange_what_they_learned_have_equally_many_batches(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    runs = [
        subprocess.Popen([sys.executable, tmp_path / "rank.py", str(rank), tmp_path], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for run in runs:
        _, said = run.communicate(timeout=120)
        assert run.returncode == 0, said.decode()
    one, other = (np.load(tmp_path / f"{rank}.npz") for rank in range(2))
    for name in ("iis", "cis", "far"):
        assert one[f"{name}-batches"].tolist() == other[f"{name}-batches"].tolist()
        for epoch in range(6):
            together = np.concatenate([one[f"{name}{epoch}"], other[f"{name}{epoch}"]])
            full = epoch in FULL
            assert len(np.unique(together)) == (301 if full else 226)
            assert len(together) == len(np.unique(together))
    assert one["iis-batches"].tolist() == [19, 15, 15, 19, 15, 15]
    assert one["cis-batches"].tolist() == [19] * 6
    for epoch, rank, ids in slow_ranks(301, 5, 6):
        assert (one, other)[rank][f"iis{epoch}"].tolist() == ids.tolist()
