"""What each strategy visits, holds and waits for before training."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.ids import frequency
from augury.knowledge import Knowledge
from augury.samplers.shuffle import Shuffle
from augury.sim.model import Throughput
from augury.sim.scenario import divide
from augury.sim.strategies import NEVER, PUBLISHED, RAM, SSD, STRATEGIES, Access, DoesNotFit, access_strings
from clusters import scenario

SCHEMES = ("uniform", "whole", "imbalanced")


def plan(policy, world, seed=0):
    strategy, options = STRATEGIES[policy]
    return strategy(world, access_strings(world, seed), seed, **options)


def batches(access):
    return np.split(access.ids, access.ends[:-1])


def test_the_ten_of_the_thesis_in_its_order():
    assert PUBLISHED == (
        "lower-bound",
        "naive",
        "hdmlp",
        "staging",
        "deepio-ordered",
        "deepio-opportunistic",
        "parallel-staging",
        "lbann-dynamic",
        "lbann-preload",
        "locality-aware",
    )


# -- access strings


@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 4),
    st.sampled_from(SCHEMES),
    st.booleans(),
    st.integers(0, 9),
)
def test_access_strings_are_batches_cut_from_the_shuffles_of_a_live_run(samples, batch, nodes, scheme, drop, seed):
    if drop and samples < batch:
        return
    world = scenario([1.0] * samples, batch, epochs=3, nodes=nodes, distribution=scheme, drop_last=drop)
    strings = access_strings(world, seed)
    found = [batches(string) for string in strings]
    cut = []
    for epoch in range(3):
        order = Shuffle(samples, seed).draw(epoch, Knowledge.none(samples))
        cut += [order[at : at + batch] for at in range(0, samples, batch) if not drop or at + batch <= samples]
    assert len(cut) == world.batches * 3
    for node in range(nodes):
        assert len(found[node]) == len(cut)
        for mine, whole in zip(found[node], cut, strict=True):
            assert mine.tolist() == whole[divide(len(whole), nodes, scheme)[node]].tolist()


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 5), st.sampled_from(["uniform", "imbalanced"]))
def test_every_sample_once_per_epoch(samples, batch, nodes, scheme):
    world = scenario([1.0] * samples, batch, epochs=4, nodes=nodes, distribution=scheme, drop_last=False)
    counts = sum(frequency(access.ids, samples) for access in access_strings(world, 3))
    assert (counts == 4).all()


def test_other_seeds_give_other_strings():
    world = scenario([1.0] * 50, 10, nodes=2)
    one, same, other = (access_strings(world, seed)[0].ids.tolist() for seed in (1, 1, 2))
    assert one == same != other


# -- HDMLP


def capacities(memory, ssd):
    return {"capacities": (4.0, memory, ssd)}


@given(st.lists(st.floats(0.5, 2), min_size=4, max_size=30), st.integers(1, 3), st.floats(0, 12), st.floats(0, 12))
def test_hdmlp_holds_the_most_often_used_in_the_fastest_class(sizes, nodes, memory, ssd):
    world = scenario(sizes, 2, epochs=5, nodes=nodes, **capacities(memory, ssd))
    found = plan("hdmlp", world)
    by_frequency, cleanup = plan("hdmlp-by-frequency", world), plan("hdmlp-cleanup", world)
    for node, access in enumerate(found.accesses):
        ids, times = found.held[node].ids, frequency(access.ids, len(sizes))
        used = np.flatnonzero(times)
        placed = np.concatenate(ids)
        assert len(set(placed)) == len(placed)
        assert set(placed) <= set(used)
        assert len(ids[0]) == 0
        first = {id: at for at, id in reversed(list(enumerate(access.ids.tolist())))}
        for storage, room in ((RAM, memory), (SSD, ssd)):
            assert world.sizes[ids[storage]].sum() <= room + 1e-4
            assert sorted(ids[storage], key=first.__getitem__) == ids[storage].tolist()
            assert (found.held[node].since[storage] == NEVER).all()
            other = by_frequency.held[node].ids[storage]
            assert set(other) == set(ids[storage])
            assert sorted(times[other], reverse=True) == times[other].tolist()
            left = room - world.sizes[ids[storage]].sum()
            lower = np.setdiff1d(used, np.concatenate(ids[: storage + 1]))
            for id in lower:  # whoever is below a class did not fit into it, or is used no more often than all in it
                if world.sizes[id] <= left - 1e-4:
                    pytest.fail("there was room")
                if len(ids[storage]) and (world.sizes[ids[storage]] == world.sizes[id]).all():
                    assert times[id] <= times[ids[storage]].min()
        assert len(found.held[node].refill) == 0
        rest = cleanup.held[node].refill
        assert set(rest) == set(used) - set(placed)
        assert sorted(times[rest], reverse=True) == times[rest].tolist()
    assert (found.fills, found.cleans, cleanup.cleans, found.from_peers) == (True, False, True, True)
    assert found.setup == found.setup_reads == 0


def test_capacities_are_whole_bytes_too():
    world = scenario([2.01] * 4, 2, **capacities(2.01, 0))  # 2.01 * 1,000,000 is a little less than 2,010,000
    assert len(plan("hdmlp", world).held[0].ids[RAM]) == 1


def test_equal_sizes_are_placed_by_frequency_alone():
    world = scenario([1.0] * 40, 4, epochs=6, nodes=3, **capacities(5, 7))
    for access, held in zip(access_strings(world, 0), plan("hdmlp", world).held, strict=True):
        times = frequency(access.ids, 40)
        assert [len(ids) for ids in held.ids] == [0, 5, 7]
        rest = np.setdiff1d(np.arange(40), np.concatenate(held.ids))
        assert times[held.ids[RAM]].min() >= times[held.ids[SSD]].max()
        assert times[held.ids[SSD]].min() >= times[rest].max()


def test_the_papers_figures_know_no_clean_up():
    world = scenario([1.0] * 4, 2, paper=True, **capacities(1, 1))
    with pytest.raises(ConfigError, match="hdmlp-cleanup has no published figures: simulate it with the default model"):
        plan("hdmlp-cleanup", world)


def test_for_the_paper_classes_fill_from_the_source_from_the_start_on():
    world = scenario([1.0] * 8, 2, epochs=2, threads=2, paper=True, **capacities(4, 3))
    found = plan("hdmlp", world)
    seconds = 1 / 10 + 1 / 20
    assert found.held[0].since[RAM].tolist() == pytest.approx([seconds, seconds, 2 * seconds, 2 * seconds])
    assert found.held[0].since[SSD].tolist() == pytest.approx([seconds, seconds, 2 * seconds])
    assert found.setup_reads == 7
    assert not found.from_peers
    # Used equally often, so by id; then by first access in pieces: what fits into the staging buffer and one, the rest.
    first = {id: at for at, id in reversed(list(enumerate(found.accesses[0].ids.tolist())))}
    pieces = [sorted(piece, key=first.__getitem__) for piece in ([0, 1, 2, 3, 4], [5, 6, 7])]
    assert np.concatenate(found.held[0].ids).tolist() == [*pieces[0], *pieces[1]][:7]


# -- the others


def test_for_the_paper_deepio_stages_only_what_is_held():
    assert not plan("deepio-ordered", scenario([1.0] * 8, 2, paper=True, **capacities(4, 4))).from_source


def test_those_that_hold_nothing():
    world = scenario([1.0] * 8, 2, nodes=2)
    for policy, stages in (("lower-bound", False), ("naive", False), ("staging", True)):
        found = plan(policy, world)
        assert found.stages is stages
        assert found.instant is (policy == "lower-bound")
        assert found.setup == found.setup_reads == 0
        assert all(len(ids) == 0 for held in found.held for ids in held.ids)
        assert not found.fills
        assert not found.from_peers


@pytest.mark.parametrize(
    ("policy", "storage"),
    [("deepio-ordered", RAM), ("lbann-preload", RAM), ("locality-aware", SSD), ("parallel-staging", SSD)],
)
def test_those_that_load_a_part_of_the_dataset_first(policy, storage):
    world = scenario([1.0] * 13, 2, nodes=3, threads=2, **capacities(5, 5))
    found = plan(policy, world)
    parts = [held.ids[storage].tolist() for held in found.held]
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11, 12]]  # all of it
    assert found.setup_reads == 13
    assert found.from_source is (policy in ("deepio-ordered", "locality-aware"))
    assert found.from_peers is (policy != "parallel-staging")
    assert all((held.since[storage] == 0).all() for held in found.held)
    # The slowest node reads five samples with two threads; six threads read from the source, and write what they got.
    write = {RAM: 1 / 100, SSD: 1 / 10}[storage]
    expected = 3 * (6 / 10 + write)
    if policy == "parallel-staging":  # there is room for one more, on the first two
        expected += 1 / 2 * (1 / 10 + write)
    assert found.setup == pytest.approx(expected)


@pytest.mark.parametrize("policy", ["deepio-ordered", "locality-aware", "parallel-staging"])
def test_parts_that_do_not_fit_are_held_as_far_as_they_do(policy):
    world = scenario([1.0] * 12, 2, nodes=2, **capacities(4.5, 4.5))
    storage = RAM if policy == "deepio-ordered" else SSD
    assert [held.ids[storage].tolist() for held in plan(policy, world).held] == [[0, 1, 2, 3], [6, 7, 8, 9]]


def test_copies_need_a_network():
    one = scenario([1.0] * 8, 2, nodes=1, **capacities(100, 100))
    none = scenario([1.0] * 8, 2, nodes=2, network=0.0, **capacities(100, 100))
    some = scenario([1.0] * 8, 2, nodes=2, **capacities(100, 100))
    assert plan("parallel-staging", one).setup == pytest.approx(8 * (1 / 10 + 1 / 10))
    assert plan("parallel-staging", none).setup == pytest.approx(4 * (2 / 10 + 1 / 10))
    assert plan("parallel-staging", some).setup == pytest.approx(4 * (2 / 10 + 1 / 10) + 4 * (1 / 10 + 1 / 10))


@given(
    st.sampled_from(["deepio-opportunistic", "parallel-staging"]),
    st.integers(1, 4),
    st.floats(1, 12),
    st.integers(0, 5),
)
def test_opportunistic_ones_visit_what_is_held_and_all_of_it_equally_often(policy, nodes, room, seed):
    world = scenario([1.0] * 24, 6, epochs=3, nodes=nodes, **capacities(room, room))
    found = plan(policy, world, seed)
    storage = RAM if policy == "deepio-opportunistic" else SSD
    held = [each.ids[storage] for each in found.held]
    for node, (access, before) in enumerate(zip(found.accesses, access_strings(world, seed), strict=True)):
        assert access.ends.tolist() == before.ends.tolist()
        assert len(access.ids) == len(before.ids)
        allowed = np.concatenate(held) if storage == RAM else held[node]
        assert set(access.ids) <= set(allowed)
        counts = frequency(access.ids, 24)[allowed]
        assert counts.max() - counts.min() <= 1
    assert not found.from_source
    assert found.from_peers is (storage == RAM)


def test_ordered_ones_visit_as_drawn():
    world = scenario([1.0] * 24, 6, epochs=3, nodes=2, **capacities(50, 50))
    drawn = [access.ids.tolist() for access in access_strings(world, 0)]
    for policy in ("naive", "hdmlp", "staging", "deepio-ordered", "lbann-dynamic", "lbann-preload"):
        assert [access.ids.tolist() for access in plan(policy, world).accesses] == drawn


def test_lbann_holds_what_a_node_read_first():
    world = scenario([1.0] * 24, 6, epochs=3, nodes=2, **capacities(12, 0))
    found = plan("lbann-dynamic", world)
    for access, held in zip(found.accesses, found.held, strict=True):
        assert held.ids[RAM].tolist() == access.ids[:12].tolist()
        assert (held.since[RAM] == NEVER).all()
    assert found.setup == found.setup_reads == 0
    assert found.from_peers
    assert found.from_source


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("policy", ["lbann-dynamic", "lbann-preload", "deepio-ordered", "locality-aware"])
def test_nobody_holds_more_than_fits(policy, scheme):
    world = scenario(np.linspace(0.5, 1.5, 25), 6, epochs=3, nodes=2, distribution=scheme, **capacities(13, 13))
    for held in plan(policy, world).held:
        for storage in (RAM, SSD):
            assert world.sizes[held.ids[storage]].sum() <= 13
            assert len(set(held.ids[storage])) == len(held.ids[storage])


@pytest.mark.parametrize("policy", ["lbann-dynamic", "lbann-preload"])
def test_lbann_needs_memory_for_all(policy):
    plan(policy, scenario([1.0] * 24, 6, nodes=2, **capacities(12, 0)))
    with pytest.raises(DoesNotFit):
        plan(policy, scenario([1.0] * 24, 6, nodes=2, **capacities(11.9, 1000)))


@pytest.mark.parametrize(
    "policy", [name for name in PUBLISHED if name not in ("lower-bound", "naive", "hdmlp", "staging")]
)
def test_storage_that_is_not_there(policy):
    with pytest.raises(DoesNotFit):
        plan(policy, scenario([1.0] * 8, 2, nodes=2, capacities=(5.0,)))


@pytest.mark.parametrize("policy", ["deepio-opportunistic", "parallel-staging"])
def test_nothing_held_is_nothing_to_visit(policy):
    with pytest.raises(DoesNotFit):
        plan(policy, scenario([1.0] * 8, 2, nodes=2, **capacities(0.5, 0.5)))
    idle = plan(policy, scenario([1.0] * 8, 2, nodes=5, **capacities(8, 8)))
    assert [len(access.ids) for access in idle.accesses] == [0, 0, 0, 0, 8]


# -- the exchange of locality-aware loading


@given(
    st.integers(4, 40),
    st.integers(2, 12),
    st.integers(1, 4),
    st.floats(0, 12),
    st.sampled_from(["uniform", "imbalanced"]),
)
def test_the_exchange_keeps_batches_and_lengths_and_prefers_own_samples(samples, batch, nodes, room, scheme):
    world = scenario(
        [1.0] * samples, batch, epochs=2, nodes=nodes, distribution=scheme, drop_last=False, **capacities(0, room)
    )
    before, found = access_strings(world, 0), plan("locality-aware", world)
    owner = np.full(samples, -1)
    for node, held in enumerate(found.held):
        owner[held.ids[SSD]] = node
    for node, access in enumerate(found.accesses):
        assert access.ends.tolist() == before[node].ends.tolist()
    for number in range(len(before[0].ends)):
        old = [batches(access)[number] for access in before]
        new = [batches(access)[number] for access in found.accesses]
        assert [len(each) for each in new] == [len(each) for each in old]
        assert sorted(np.concatenate(new)) == sorted(np.concatenate(old))
        for node, mine in enumerate(new):
            there = np.count_nonzero(owner[np.concatenate(old)] == node)
            assert np.count_nonzero(owner[mine] == node) == min(there, len(mine))
    assert found.from_peers
    assert found.from_source


def test_where_every_node_visits_the_whole_batch_nothing_is_exchanged():
    world = scenario([1.0] * 12, 4, nodes=3, distribution="whole", **capacities(0, 50))
    for access in plan("locality-aware", world).accesses:
        assert all(len(set(batch)) == 4 for batch in batches(access))


def test_a_plan_can_be_made_of_given_strings():
    from augury.sim.nodes import run

    world = scenario([1.0, 2.0, 4.0], 1, source=Throughput({1: 1.0}), preprocess=1e9, compute=1e9)
    found = run("naive", world, accesses=[Access(np.array([2, 2, 0]), np.array([1, 2, 3]))])
    assert found.ends.tolist() == pytest.approx([4, 8, 9], abs=0.1)
