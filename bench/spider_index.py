"""Who is like whom, of a million samples: the index behind the graph scorer beside an HNSW index.

    python bench/spider_index.py [--quick] [--samples 50000,200000,1280000] [--parts index,peer,crossover] [--json FILE]

Embeddings of 512 numbers in clusters, minibatches of 128: all samples once, then some moved a little. (a) `Graph`
itself; (b) usearch's HNSW (64 dimensions by the same projection, one byte each, connectivity 8, expansion_add 100, an
update removes and adds, the 500 nearest are searched and those within the radius counted). Both run alone in processes
of their own, one thread, and processor time is measured. The first pass only adds. Above `--peer-limit` samples
the peer is left out, or with `--peer-all` built by two threads. What they find is compared with exact search in all 512
dimensions, within the same radius, and within the radius at which half of the samples have 50 neighbours as the index
itself sees distances (`own radius`, as Graph finds it where no decay is given; costs are those at this radius). `all
cells` is our index made to look everywhere: what then is still missing, projection and bytes lost.

Last, what is exact against what is not in `Neighbours`, per minibatch: where the one overtakes the other is where
neighbours.EXACT should be. With --quick that limit is lowered, so that both kinds are seen.
"""

# ruff: noqa: E402
from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import ctypes
import gc
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from time import process_time as clock
from typing import Any, NamedTuple

import numpy as np

from _common import arguments, limit, report, say
from augury.scorers import neighbours
from augury.scorers.graph import ALPHA, MOST, Graph, importance
from augury.scorers.neighbours import Neighbours
from augury.scorers.products import distances
from augury.scorers.projection import Projection

WIDTH, BATCH, PER_CLUSTER, OWN = 512, 128, 1250, 16
STRAYS, OUTSIDE, MOVED = 0.01, 0.1, 0.2
"""Strays among another class; samples twice as far out; how far an update moves, over the size of a cluster."""
SAMPLES, QUICK, QUICK_EXACT = "50000,200000,1280000", "10000,30000", 15_000
CROSSOVER, QUICK_CROSSOVER = (10_000, 20_000, 50_000, 100_000, 200_000), (5_000, 10_000)
QUERIES, DEGREE = 300, 50
"""Of the samples that are asked for the median has so many neighbours."""
MEGABYTES, AT, RECALL = 250.0, 1_280_000, 0.9
"""The limits: so much memory for so many samples; edges found; cost per sample grows as ln N at most."""


class Given(NamedTuple):
    """What a process needs to make the data anew."""

    samples: int
    spectrum: float
    """The variance of direction j is j to the power of minus this: 1 is like a trained network, 0 has no directions."""
    minibatches: int
    """Of moved samples, after the first pass."""
    exact: int
    """neighbours.EXACT."""


class Data:
    """Embeddings that are made when asked for. Samples of consecutive ids lie in clusters at random."""

    def __init__(self, given: Given) -> None:
        self.given, samples = given, given.samples
        rng = np.random.default_rng(0)
        self.weight = np.arange(1, WIDTH + 1, dtype=np.float32) ** (-given.spectrum / 2)
        self.weight *= 10 / np.linalg.norm(self.weight)
        clusters = max(8, samples // PER_CLUSTER)
        of_class = np.arange(clusters) // 4
        self.centres = self._normal(rng, int(of_class[-1]) + 1)[of_class] + 0.5 * self._normal(rng, clusters)
        self.directions = 0.35 * OWN**-0.5 * self._normal(rng, clusters * OWN).reshape(clusters, OWN, WIDTH)
        self.cluster = rng.integers(0, clusters, samples).astype(np.int32)
        self.labels = of_class[self.cluster].astype(np.int64)
        strays = rng.random(samples) < STRAYS
        self.cluster[strays] = rng.integers(0, clusters, np.count_nonzero(strays))
        self.blocks = math.ceil(samples / BATCH)
        self.moved = rng.permutation(self.blocks)[: given.minibatches]
        self.queries = np.sort(rng.choice(samples, min(QUERIES, samples // 4), replace=False))

    def _normal(self, rng: np.random.Generator, rows: int) -> Any:
        return rng.standard_normal((rows, WIDTH), np.float32) * self.weight

    def block(self, block: int, moved: bool = False) -> tuple[Any, Any, Any]:
        """Ids, embeddings and labels of a minibatch."""
        ids = np.arange(block * BATCH, min((block + 1) * BATCH, self.given.samples))
        rng = np.random.default_rng([1, block])
        along = rng.standard_normal((len(ids), OWN), np.float32)
        along[rng.random(len(ids)) < OUTSIDE] *= 2
        noise = rng.standard_normal((len(ids), WIDTH), np.float32)
        if moved:
            along += MOVED * np.random.default_rng([2, block]).standard_normal((len(ids), OWN), np.float32)
        cluster = self.cluster[ids]
        made = np.matmul(along[:, None, :], self.directions[cluster])[:, 0]
        made += self.centres[cluster]
        made += np.float32(0.05 * 10 * WIDTH**-0.5) * noise
        return ids, made, self.labels[ids]

    def now(self, only: Any = None, blocks: int = 64) -> Iterator[tuple[Any, Any]]:
        """Ids and embeddings as they are in the end, in pieces; of all blocks, or of these."""
        moved = np.zeros(self.blocks, np.bool_)
        moved[self.moved] = True
        these = list(range(self.blocks)) if only is None else only
        for start in range(0, len(these), blocks):
            made = [self.block(block, bool(moved[block])) for block in these[start : start + blocks]]
            yield np.concatenate([ids for ids, _, _ in made]), np.concatenate([rows for _, rows, _ in made])

    def asked(self) -> Any:
        """Embeddings of the queries."""
        pieces = list(self.now(only=np.unique(self.queries // BATCH).tolist()))
        ids, rows = (np.concatenate(part) for part in zip(*pieces, strict=True))
        return rows[np.searchsorted(ids, self.queries)]


class Truth(NamedTuple):
    """The nearest of each query in all dimensions, nearest first, oneself left out."""

    ids: Any
    gaps: Any

    def within(self, radius: float) -> list[Any]:
        return [ids[gaps <= radius] for ids, gaps in zip(self.ids, self.gaps, strict=True)]


def truth(given: Given) -> Truth:
    data = Data(given)
    asked = data.asked()
    squared = np.square(asked).sum(axis=1)[:, None]
    best, who = np.full((len(asked), MOST), np.inf, np.float32), np.full((len(asked), MOST), -1, np.int64)
    for ids, rows in data.now():
        gaps = squared + np.square(rows).sum(axis=1) - 2 * asked @ rows.T
        gaps[data.queries[:, None] == ids] = np.inf
        gaps, ids = np.hstack([best, gaps]), np.hstack([who, np.broadcast_to(ids, (len(asked), len(ids)))])
        nearest = gaps.argpartition(MOST - 1, axis=1)[:, :MOST]
        best, who = np.take_along_axis(gaps, nearest, axis=1), np.take_along_axis(ids, nearest, axis=1)
    order = best.argsort(axis=1)
    gaps = np.sqrt(np.maximum(np.take_along_axis(best, order, axis=1), 0))
    return Truth(np.take_along_axis(who, order, axis=1), gaps)


def agreement(data: Data, right: Truth, radius: float, edges: list[Any], nearest: list[Any]) -> dict[str, float]:
    """What was found over what there is, and how far scores are from right."""
    true = right.within(radius)
    hits = [len(np.intersect1d(found, there)) for found, there in zip(edges, true, strict=True)]
    near = [len(np.intersect1d(found, there)) for found, there in zip(nearest, right.ids, strict=True)]

    def scores(lists: list[Any]) -> Any:
        mine = data.labels[data.queries]
        like = np.array([np.count_nonzero(data.labels[ids] == label) for ids, label in zip(lists, mine, strict=True)])
        return importance(like, np.array([len(ids) for ids in lists]) - like)

    wrong, score = np.abs(scores(edges) - scores(true)), scores(true)
    return {
        "edges there": float(np.mean([len(ids) for ids in true])),
        "recall of edges": sum(hits) / max(1, sum(len(ids) for ids in true)),
        "precision of edges": sum(hits) / max(1, sum(len(ids) for ids in edges)),
        "recall of 500 nearest": float(np.mean(near)) / MOST,
        "mean error of score": float(wrong.mean()),
        "mean score": float(score.mean()),
        "scores wrong by 10 %": float((wrong > 0.1 * score).mean()),
    }


def resident(peak: bool = False) -> int:
    """Memory of this process in bytes; the highest since settle()."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmHWM" if peak else "VmRSS"].split()[0]) << 10


def settle() -> int:
    """What was freed goes back, and the peak is forgotten; the memory that is left."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return resident()


class Timed:
    """A method of one object, its processor time noted."""

    def __init__(self, owner: Any, name: str) -> None:
        self.inner, self.took = getattr(owner, name), 0.0
        setattr(owner, name, self)

    def __call__(self, *given: Any) -> Any:
        began = clock()
        try:
            return self.inner(*given)
        finally:
            self.took += clock() - began

    def take(self) -> float:
        took, self.took = self.took, 0.0
        return took


def ours(given: Given, right: Truth, radius: float) -> dict[str, Any]:
    """Graph: memory, cost and what it finds."""
    neighbours.EXACT = given.exact
    data, far = Data(given), 2 * float(right.gaps.max())
    decay = -math.log(ALPHA) / radius
    small = Graph(BATCH, decay=decay)
    for moved in (False, True):
        small.score(*data.block(0, moved))  # what is loaded once is not counted
    before = settle()
    graph = Graph(given.samples, decay=decay, patience=None)
    first = 0.0
    for block in range(data.blocks):
        minibatch = data.block(block)
        began = clock()
        graph._update(*minibatch)
        first += clock() - began
    gc.collect()
    grown = resident() - before
    index = graph._index
    assert index is not None
    began = clock()
    index.arrange()
    arranging = (clock() - began) / given.samples
    peak = resident(peak=True) - before
    graph.radius = as_seen(index, data.queries[:64], far)
    update, search = Timed(graph, "_update"), Timed(index, "within")
    took: list[tuple[float, float, float]] = []
    for block in data.moved.tolist():
        minibatch = data.block(block, moved=True)
        update.take(), search.take()
        began = clock()
        graph.score(*minibatch)
        took.append((clock() - began, update.take(), search.take()))
    whole, updating, searching = np.median(np.array(took), axis=0) / BATCH

    own = as_seen(index, data.queries, far)
    looked = index._cells_to_look_at(index._get(data.queries), own)
    sizes = np.array([cell.count for cell in index._cells])
    edges, near = ask(index, data.queries, radius), ask(index, data.queries, far)
    found = {
        "ours": agreement(data, right, radius, edges, near),
        "own radius": agreement(data, right, radius, ask(index, data.queries, own), near),
    }
    kind, neighbours.LOOKS = index.exact, len(index._cells)
    edges, near = ask(index, data.queries, own), ask(index, data.queries, far)
    found["own, all cells"] = agreement(data, right, radius, edges, near)
    return {
        "exact": kind,
        "MB": grown / 1e6,
        "MB, at its peak": peak / 1e6,
        "bytes per sample": grown / given.samples,
        "bytes per sample, arrays": graph.nbytes / given.samples,
        "updates/s": 1 / (updating + arranging),
        "searches/s": 1 / searching,
        "us of score": 1e6 * (whole + arranging),
        "us of updating": 1e6 * updating,
        "us of searching": 1e6 * searching,
        "us of arranging": 1e6 * arranging,
        "us of adding, first pass": 1e6 * first / given.samples,
        "cells": len(index._cells),
        "largest cell": int(sizes.max()),
        "distances": float((looked @ sizes).mean()) + 2 * len(index._cells),
        "own radius / radius": own / radius,
        "found": found,
    }


def ask(index: Neighbours, queries: Any, radius: float) -> list[Any]:
    """The neighbours of each query, in pieces."""
    lists: list[Any] = []
    for start in range(0, len(queries), 16):
        part = queries[start : start + 16]
        found = index.within(part, radius, MOST)
        lists.extend(found.ids[found.rows == row] for row in range(len(part)))
    return lists


def as_seen(index: Neighbours, queries: Any, far: float) -> float:
    """The radius at which half of the queries have so many neighbours as the index sees distances."""
    radii = []
    for query, near in zip(queries, ask(index, queries, far), strict=True):
        vectors = index._get(np.append(near, query))
        gaps = distances(vectors[-1:], vectors[:-1])[0]
        radii.append(np.sort(gaps)[DEGREE - 1] if len(near) >= DEGREE else np.inf)
    return float(np.median(radii))


def peer(given: Given, right: Truth, radius: float, threads: int) -> dict[str, Any]:
    """The same of usearch."""
    from usearch.index import Index

    data = Data(given)
    projection = Projection(WIDTH)
    some = [projection.project(data.block(block)[1]) for block in range(min(8, data.blocks))]
    unit = np.float32(2 * np.quantile(np.abs(np.concatenate(some)), 0.999) / 127)

    def make() -> Any:
        return Index(ndim=projection.dimensions, metric="l2sq", dtype="i8", connectivity=8, expansion_add=100)

    small = make()
    small.add(np.arange(len(some[0])), np.zeros(some[0].shape, np.int8), threads=threads)
    small.search(np.zeros(some[0].shape, np.int8), MOST, threads=1)
    before = settle()
    index = make()
    labels = np.full(given.samples, -1, np.int32)
    first = 0.0

    def vectors_of(ids: Any, embeddings: Any) -> Any:
        vectors = projection.project(embeddings)
        return np.clip(np.rint(vectors / unit), -127, 127).astype(np.int8)

    def search(ids: Any, vectors: Any) -> tuple[Any, Any, Any]:
        """Who is found, how far away (squared), and what that took."""
        found = index.search(vectors, MOST + 1, threads=1)
        keys, there = found.keys.astype(np.int64), np.arange(MOST + 1) < np.reshape(found.counts, (-1, 1))
        keys = np.where(there, keys, 0)
        there &= keys != ids[:, None]
        squared = found.distances * unit**2
        return keys, np.where(there, squared, np.inf), found.computed_distances

    for block in range(data.blocks):
        ids, embeddings, of_class = data.block(block)
        began = clock()
        index.add(ids, vectors_of(ids, embeddings), threads=threads)
        labels[ids] = of_class
        first += clock() - began
    gc.collect()
    grown, peak = resident() - before, resident(peak=True) - before
    held = vectors_of(data.queries, data.asked())
    own = math.sqrt(np.median(np.sort(search(data.queries, held)[1], axis=1)[:, DEGREE - 1]))
    took, computed = [], 0
    for block in data.moved.tolist():
        ids, embeddings, of_class = data.block(block, moved=True)
        began = clock()
        vectors = vectors_of(ids, embeddings)
        index.remove(ids, threads=1)
        index.add(ids, vectors, threads=1)
        labels[ids] = of_class
        between = clock()
        keys, squared, count = search(ids, vectors)
        searched = clock()
        near = squared <= own**2
        same = labels[keys] == of_class[:, None]
        like = np.count_nonzero(near & same, axis=1)
        importance(like, np.count_nonzero(near, axis=1) - like)
        took.append((clock() - began, between - began, searched - between))
        computed += count
    whole, updating, searching = np.median(np.array(took), axis=0) / BATCH
    keys, squared, _ = search(data.queries, held)
    nearest = [row[np.isfinite(gaps)][:MOST] for row, gaps in zip(keys, squared, strict=True)]
    found = {}
    for name, far in (("usearch", radius), ("usearch, own", own)):
        edges = [row[gaps <= far**2] for row, gaps in zip(keys, squared, strict=True)]
        found[name] = agreement(data, right, radius, edges, nearest)
    return {
        "threads of building": threads,
        "MB": grown / 1e6,
        "MB, at its peak": peak / 1e6,
        "bytes per sample": grown / given.samples,
        "bytes per sample, arrays": index.memory_usage / given.samples,
        "updates/s": 1 / updating,
        "searches/s": 1 / searching,
        "us of score": 1e6 * whole,
        "us of updating": 1e6 * updating,
        "us of searching": 1e6 * searching,
        "us of adding, first pass": 1e6 * first / given.samples,
        "distances of a search": computed / (len(data.moved) * BATCH),
        "own radius / radius": own / radius,
        "found": found,
    }


def crossover(samples: int, clustered: bool, minibatches: int) -> dict[str, float]:
    """Milliseconds per minibatch of what is exact, and of what is not."""
    rng = np.random.default_rng(1)
    if clustered:
        data, projection = Data(Given(samples, 1.0, 0, 0)), Projection(WIDTH)
        vectors = np.concatenate([projection.project(data.block(block)[1]) for block in range(data.blocks)])
    else:
        turn = np.linalg.qr(rng.standard_normal((64, 64)))[0] * np.arange(1, 65)[:, None] ** -0.5
        vectors = rng.standard_normal((samples, 64), np.float32) @ turn.astype(np.float32)
    some = rng.choice(samples, 64, replace=False)
    gaps = distances(vectors[some], vectors)
    radius = float(np.median(np.partition(gaps, DEGREE, axis=1)[:, DEGREE]))
    parts = [rng.choice(samples, BATCH, replace=False) for _ in range(minibatches)]
    result: dict[str, float] = {}
    edges: dict[bool, int] = {}
    for exact in (True, False):
        index = Neighbours(samples, 64, exact=exact)
        for start in range(0, samples, 1024):
            part = np.arange(start, min(start + 1024, samples))
            index.update(part, vectors[part])
        index.arrange()
        took, edges[exact] = [], 0
        for part in parts:
            began = clock()
            index.update(part, vectors[part])
            found = index.within(part, radius, MOST)
            took.append(clock() - began)
            edges[exact] += len(found.rows)
        result["ms, exact" if exact else "ms, not exact"] = 1e3 * float(np.median(took))
        result["MB, exact" if exact else "MB, not exact"] = index.nbytes / 1e6
    return result | {
        "exact / not exact": result["ms, exact"] / result["ms, not exact"],
        "edges found, not exact / exact": edges[False] / max(1, edges[True]),
    }


def apart(act: Callable[..., Any], *given: Any) -> Any:
    """In a process of its own: nobody else's memory is counted."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(act, *given).result()


def main() -> None:
    options = arguments(
        (__doc__ or "").replace("%", "%%"),
        samples={"help": "how many, with commas"},
        parts={"default": "index,peer,crossover", "help": "which of the measurements, with commas"},
        spectrum={"type": float, "default": 1.0, "help": "variance of direction j: 1 / j to this power (0: none)"},
        minibatches={"type": int, "help": "of moved samples, to measure"},
        peer_limit={"type": int, "default": 200_000, "help": "above, the peer is left out"},
        peer_all={"action": "store_true", "help": "above, the peer is built by two threads instead"},
    )
    sizes = [int(size) for size in (options.samples or (QUICK if options.quick else SAMPLES)).split(",")]
    minibatches = options.minibatches or (10 if options.quick else 100)
    edge = QUICK_EXACT if options.quick else neighbours.EXACT
    parts = options.parts.split(",")
    if "peer" in parts and find_spec("usearch") is None:
        parts.remove("peer")
        say("usearch is not installed: no peer")
    found: dict[str, Any] = {}
    radius = 0.0
    for samples in sizes if {"index", "peer"} & set(parts) else []:
        given = Given(samples, options.spectrum, min(minibatches, samples // BATCH), edge)
        began = time.perf_counter()
        right = apart(truth, given)
        # Clusters are alike whatever their number, so that one radius does for all.
        radius = radius or float(np.median(right.gaps[:, DEGREE - 1]))
        say(f"{samples:,} samples: searched exactly, {time.perf_counter() - began:.0f} s; radius {radius:.3f}")
        entry = found.setdefault(f"{samples}", {})
        if "index" in parts:
            entry["ours"] = apart(ours, given, right, radius)
        if "peer" in parts and (samples <= options.peer_limit or options.peer_all):
            entry["usearch"] = apart(peer, given, right, radius, 1 if samples <= options.peer_limit else 2)
        elif "peer" in parts:
            say(f"usearch: left out above {options.peer_limit:,} samples; --peer-all builds it by two threads")
        table(f"{samples:,} samples", entry)
        table("what is found", {name: figures for one in entry.values() for name, figures in one["found"].items()})
        say(f"{samples:,} samples: {time.perf_counter() - began:.0f} s in all")
    result: dict[str, Any] = {
        "benchmark": "spider_index",
        "spectrum": options.spectrum,
        "exact up to": edge,
        "cell": neighbours.CELL,
        "large cell": neighbours.LARGE_CELL,
        "looks": neighbours.LOOKS,
        **verdict(found),
        "sizes": found,
    }
    if "crossover" in parts:
        result["crossover"] = {}
        for kind in ("clustered", "not clustered"):
            rows = result["crossover"][kind] = {}
            for samples in QUICK_CROSSOVER if options.quick else CROSSOVER:
                rows[f"{samples}"] = apart(crossover, samples, kind == "clustered", 10 if options.quick else 40)
            table(f"exact or not, {kind}", rows)
    report(rounded(result), options.json)


def verdict(found: dict[str, Any]) -> dict[str, Any]:
    """Ratios: to the peer, to the limits, and to the smallest size."""
    result: dict[str, Any] = {}
    entries = {int(size): entry for size, entry in found.items() if "ours" in entry}
    if not entries:
        return result
    least, most = min(entries), max(entries)
    base, last = entries[least]["ours"], entries[most]["ours"]
    result["MB of 1.28 M samples"] = limit(last["bytes per sample"] * AT / 1e6, at_most=MEGABYTES)
    result["recall of edges"] = limit(last["found"]["ours"]["recall of edges"], at_least=RECALL)
    result["recall of edges, own radius"] = limit(last["found"]["own radius"]["recall of edges"], at_least=RECALL)
    for size, entry in entries.items():
        mine, other = entry["ours"], entry.get("usearch")
        logarithm = math.log(size) / math.log(least)
        growth = {
            key: mine[key] / base[key] for key in ("us of score", "us of updating", "us of searching", "distances")
        }
        result[f"{size}: growth from {least}"] = growth | {"ln N": logarithm}
        if other is not None:
            keys = (
                "MB, at its peak",
                "bytes per sample",
                "us of score",
                "us of updating",
                "us of searching",
            )
            result[f"{size}: ours / usearch"] = {key: mine[key] / (other[key] or math.nan) for key in keys}
    for key, ratio in result.items():
        if isinstance(ratio, dict) and "reached" not in ratio:
            table(key, {"ratio": ratio})
    if most > least:
        growth = (last["us of score"] / base["us of score"]) / (math.log(most) / math.log(least))
        result["growth of cost / growth of ln N"] = limit(growth, at_most=1.0)
    return result


def table(title: str, columns: dict[str, dict[str, Any]]) -> None:
    """The figures of each column, side by side."""
    names = [key for figures in columns.values() for key, value in figures.items() if isinstance(value, int | float)]
    say(f"{title:42}" + "".join(f"{column:>16}" for column in columns))
    for name in dict.fromkeys(names):
        shown = [f"{figures[name]:,.4g}" if name in figures else "" for figures in columns.values()]
        say(f"  {name:40}" + "".join(f"{figure:>16}" for figure in shown))


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
