"""Oracles: the same visits as the recipe that they are measured against, and no policy that reads less of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache, lru_cache, partial

import numpy as np
import pytest

from augury.cli import main
from augury.errors import ConfigError, UnknownName
from augury.recipes import RECIPES
from augury.samplers.bounded import Bounded
from augury.samplers.foresight import Frugal
from augury.sim.fields import Synthetic
from augury.sim.oracles import ORACLES, find
from augury.sim.replay import replay
from augury.trace import Recorder

PADS_MIN = ORACLES["pads-min"]
WORLD = {"samples": 300, "epochs": 5, "cache": 0.2, "batch": 8, "seed": 3, "losses": Synthetic(300, 1), "lag": 2}


@cache
def result(recipe, share):
    return replay(recipe, 5000, 6, share, 32, losses=Synthetic(5000))


def visited(**world):
    """What `augury` visits, epoch by epoch."""
    orders = {}

    class Watched(Frugal):
        def arrange(self, epoch, drawn, known, cache):
            orders[epoch] = super().arrange(epoch, drawn, known, cache)
            return orders[epoch]

    replay(replace(RECIPES["augury"], sampler=partial(Watched, base=Bounded)), **world)
    return [orders[epoch] for epoch in range(len(orders))]


class TestPadsMin:
    def test_it_visits_what_augury_visits_in_the_order_of_the_draw(self):
        draws = PADS_MIN.draws(partial(replay, **WORLD))
        orders = visited(**WORLD)
        assert len(draws) == len(orders) == 5
        for drawn, order in zip(draws, orders, strict=True):
            assert np.array_equal(np.sort(drawn), np.sort(order))
        assert not np.array_equal(draws[-1], orders[-1]), "but not as it is arranged"
        ours, theirs = replay("augury", **WORLD), replay("pads-min", **WORLD)
        assert ours.coverage_per_epoch == theirs.coverage_per_epoch
        assert ours.ever_seen == theirs.ever_seen
        assert theirs.recipe == "pads-min"

    def test_it_is_min_that_knows_all_epochs(self):
        draws = PADS_MIN.draws(partial(replay, **WORLD))
        ours, theirs = replay("pads-min", **WORLD), replay("min", 300, 5, 0.2, 8, 3, orders=draws)
        assert ours.per_epoch == theirs.per_epoch
        assert ours.reads_per_epoch == theirs.reads_per_epoch

    @pytest.mark.parametrize("seed", range(6))
    def test_nothing_reads_less_of_six_samples(self, seed):
        """Against all that could be held after each request."""
        world = {"samples": 6, "epochs": 4, "cache": 0.34, "batch": 1, "seed": seed, "losses": Synthetic(6, seed)}
        order = np.concatenate(PADS_MIN.draws(partial(replay, **world))).tolist()

        @lru_cache(None)
        def fewest(at, held):
            if at == len(order):
                return 0
            id = order[at]
            if id in held:
                return fewest(at + 1, held)
            there = held | {id}
            after = [held] + ([there] if len(there) <= 2 else [there - {one} for one in held])
            return 1 + min(fewest(at + 1, each) for each in after)

        assert len(order) == 24
        assert replay("pads-min", **world).reads * 24 == pytest.approx(fewest(0, frozenset()))

    def test_without_losses_it_says_what_is_missing(self):
        with pytest.raises(ConfigError, match="'augury' learns from losses"):
            replay("pads-min", 50, 2, 0.5)

    def test_it_follows_no_recorded_order(self):
        with pytest.raises(ConfigError, match="'pads-min' chooses what to visit"):
            replay("pads-min", 10, 1, 0.5, orders=[np.arange(10)])


class TestAuguryBesideIt:
    """An order that is chosen with the cache in view beats the best policy for one that is not, or nearly so."""

    @pytest.mark.parametrize("share", [0.1, 0.2])
    def test_where_the_cache_is_small_it_reads_less(self, share):
        assert result("augury", share).reads <= result("pads-min", share).reads

    @pytest.mark.parametrize("share", [0.5, 0.75])
    def test_where_it_is_large_hardly_more(self, share):
        assert result("augury", share).reads <= result("pads-min", share).reads + 0.02

    def test_both_visit_as_much(self):
        assert result("augury", 0.2).coverage_per_epoch == result("pads-min", 0.2).coverage_per_epoch


class TestNames:
    def test_recipes_and_oracles_are_found(self):
        assert find("pads-min") is PADS_MIN
        assert find("augury") is RECIPES["augury"]
        assert find(RECIPES["lru"]) is RECIPES["lru"]

    @pytest.mark.parametrize(("wrong", "right"), [("pad-min", "pads-min"), ("agury", "augury"), ("mnio", "minio")])
    def test_unknown_names_are_suggested_from_both_tables(self, wrong, right):
        with pytest.raises(UnknownName, match=f"did you mean '{right}'") as said:
            find(wrong)
        assert all(name in str(said.value) for name in ("pads-min", "shade", "augury-exact"))

    def test_no_loader_follows_one(self):
        assert not set(ORACLES) & set(RECIPES)
        for name, oracle in ORACLES.items():
            assert oracle.name == name
            assert oracle.of in RECIPES


class TestCommand:
    def command(self, monkeypatch, *arguments):
        monkeypatch.setattr(sys, "argv", ["augury", "replay", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    def test_it_is_replayed_by_name(self, monkeypatch, capsys):
        given = "--recipe augury,pads-min --losses synthetic --samples 200 --epochs 3 --cache 0.2 --batch 8 --json"
        assert not self.command(monkeypatch, *given.split())
        ours, theirs = json.loads(capsys.readouterr().out)
        assert (ours["recipe"], theirs["recipe"]) == ("augury", "pads-min")
        assert ours["coverage_per_epoch"] == theirs["coverage_per_epoch"]

    def test_a_recorded_order_is_refused_in_one_line(self, monkeypatch, capsys, tmp_path):
        with Recorder(tmp_path / "run", {"recipe": "lru", "seed": 0, "batch": 4}, np.ones(8, np.int64)) as recorder:
            policy = recorder.wrap(RECIPES["lru"].policy(np.ones(8, np.int64), 4, np.random.default_rng(0)))
            recorder.mark_epoch(0)
            policy.serve(np.arange(8))
        assert self.command(monkeypatch, "--trace", tmp_path / "run", "--recipe", "pads-min") == 2
        said = capsys.readouterr()
        assert said.err.startswith("error: recipe 'pads-min' chooses what to visit")
        assert said.err.count("\n") == 1
