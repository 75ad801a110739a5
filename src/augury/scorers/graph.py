"""Importance from whom a sample is like: SpiderCache's graph over embeddings.

Wang et al., "SpiderCache: Semantic-Aware Caching Strategy for DNN Training", ICPP 2025, section 4.1. Samples are nodes;
those whose embeddings lie near each other are joined by an edge. Who has no neighbours of his class, or many of others,
is important. The graph is not kept: only the index in which neighbours are found (neighbours.py), and of each minibatch
the list of the one that has most of them. docs/recipes/spider.md lists where this differs from the paper and why.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.errors import BadFeedback, ConfigError
from augury.ids import Ids, Scores
from augury.knowledge import pack, unpack
from augury.scorers import Embeddings, Labels, Needs
from augury.scorers.neighbours import FEW, Neighbours
from augury.scorers.products import Matrix as Vectors
from augury.scorers.products import distances
from augury.scorers.projection import Projection

DECAY, ALPHA = 0.01, 0.98
"""lambda of Eq. 2 and alpha of Eq. 3: there is an edge where the distance is below 2.02."""
MOST = 500
"""neighbormax of Eq. 4."""
JOINED = 0.5, 0.9
"""The share of the samples that has a neighbour of its class, at least and at most, where the decay is found."""
PROBES, SEEN, STEP = 16, 0.1, 0.04
"""To know that share, so many random samples are looked at with each minibatch; the weight of the last look; and how
far a decay that does not fit is moved by it."""
PATIENCE = 4
"""Minibatches that may wait for their scores; with a fifth the oldest is dropped."""


class Graph:
    """Eq. 4: ln(1 / x_same + x_other / 500 + 1), of neighbours of one's own class and of others.

    Who has no neighbour of his own class counts as if there were one: the paper's 1 / 0 is not defined.

    How near is near depends on the network: the paper's decay gives many networks no edge at all, and others nothing
    else. With `decay=None` it begins with the paper's, and is moved as long as fewer than half of the samples, or more
    than nine tenths (`joined`), have a neighbour of their class.
    """

    needs: Needs = "embeddings"

    def __init__(
        self,
        samples: int,
        *,
        decay: float | None = None,
        alpha: float = ALPHA,
        most: int = MOST,
        joined: tuple[float, float] = JOINED,
        patience: int | None = PATIENCE,
    ) -> None:
        if not 0 < alpha < 1 or (decay is not None and not decay > 0):
            raise ConfigError(f"decay={decay}, alpha={alpha}: give a decay above 0 (None: found) and 0 < alpha < 1")
        if not 0 < joined[0] <= joined[1] < 1:
            raise ConfigError(f"joined={joined}: give the least and the greatest share of samples, between 0 and 1")
        if most < 1 or (patience is not None and patience < 1):
            raise ConfigError(f"most={most}, patience={patience}: give at least 1")
        self.most, self.joined, self.patience = most, joined, patience
        self.radius = -math.log(alpha) / (DECAY if decay is None else decay)
        """Who is nearer than this is a neighbour: the distance at which Eq. 2 gives alpha."""
        self._share: float | None = None
        """Of the samples that have a neighbour of their class."""
        self.kin: Ids | None = None
        self._finds = decay is None
        self._labels: Labels = np.full(samples, -1, np.int64)
        self._known = np.empty(samples, np.int32)
        """Whose embeddings came, in the order of coming; the first `_count` of them."""
        self._count = 0
        self._projection: Projection | None = None
        self._index: Neighbours | None = None
        self._rng = np.random.default_rng(0)

    def score(self, ids: Ids, evidence: Embeddings, labels: Labels | None = None, /) -> Scores:
        if labels is None:
            raise BadFeedback("embeddings go with labels: feedback(ids, embeddings=..., labels=...)")
        self.kin = None
        if len(ids) == 0:
            return np.empty(0, np.float32)
        index, vectors = self._update(ids, evidence, labels)
        if self._finds and self._share is None:
            self._begin(vectors)
        probes = self._known[self._rng.integers(0, self._count, PROBES if self._finds else 0)]
        edges = index.within(np.concatenate([ids, probes]), self.radius, self.most)
        asked = np.concatenate([labels, self._labels[probes]])
        same = self._labels[edges.ids] == asked[edges.rows]
        like = np.bincount(edges.rows[same], minlength=len(asked))
        other = np.bincount(edges.rows[~same], minlength=len(asked))
        if self._finds:
            self._follow(float((like[len(ids) :] > 0).mean()), vectors)
        like, other = like[: len(ids)], other[: len(ids)]
        hub = int(like.argmax())
        if like[hub]:
            self.kin = np.concatenate([ids[hub : hub + 1], edges.ids[same & (edges.rows == hub)]])
        return importance(like, other, self.most)

    def state_dict(self) -> dict[str, Any]:
        if self._index is None or self._projection is None:
            return {}
        known = self._known[: self._count].astype(np.int64)
        vectors = self._index.get(known)
        scale = max(float(np.abs(vectors).max()), 1e-30)
        return {
            "width": self._projection.width,
            "radius": self.radius,
            "share": self._share,
            "known": pack(known),
            "labels": pack(self._labels[known]),
            "scale": scale,
            "vectors": pack((vectors / np.float32(scale)).astype(np.float16)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not state:
            self._index = self._projection = None
            self._count = 0
            return
        try:
            projection = Projection(max(1, int(state["width"])))
            radius, scale = float(state["radius"]), float(state["scale"])
            share = None if state["share"] is None else float(state["share"])
            known, labels = unpack(state["known"], np.int64), unpack(state["labels"], np.int64)
            vectors = unpack(state["vectors"], np.float16).reshape(len(known), projection.dimensions)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"this state is damaged: of the scorer's embeddings {error!r}") from None
        samples, count = len(self._labels), len(known)
        if (
            len(labels) != count
            or not len(np.unique(known)) == count <= samples
            or (count and not 0 <= known.min() <= known.max() < samples)
            or not np.isfinite(vectors).all()
            or not (math.isfinite(scale) and math.isfinite(radius) and radius > 0)
        ):
            raise ConfigError("this state is damaged: the scorer's embeddings are not whole, or of another dataset")
        index = Neighbours(samples, projection.dimensions)
        for start in range(0, count, FEW):
            part = slice(start, start + FEW)
            index.update(known[part], vectors[part].astype(np.float32) * np.float32(scale))
        self._projection, self._index, self.radius, self._share = projection, index, radius, share
        self._labels[:] = -1
        self._labels[known] = labels
        self._known[:count], self._count = known, count

    @property
    def nbytes(self) -> int:
        """Memory of the index, in bytes."""
        return 0 if self._index is None else self._index.nbytes

    def _begin(self, vectors: Vectors) -> None:
        """Where the paper's radius finds nobody in the first minibatch, or everybody: begin with a usual distance."""
        centred = vectors - vectors.mean(axis=0)
        gaps = distances(centred, centred)
        np.fill_diagonal(gaps, np.inf)
        nearest = gaps.min(axis=1)
        near = float((nearest <= self.radius).mean())
        some = nearest[np.isfinite(nearest) & (nearest > 0)]
        if near in (0, 1) and len(some):
            self.radius = float(np.median(some))
        self._share = float(np.mean(self.joined))

    def _follow(self, joined: float, vectors: Vectors) -> None:
        """Move the radius where too few or too many have neighbours; never beyond the usual distance of two samples."""
        assert self._share is not None
        self._share += SEEN * (joined - self._share)
        wished = min(max(self._share, self.joined[0]), self.joined[1])
        usual = float(np.median(distances(vectors[:PROBES], vectors[-PROBES:])))
        moved = self.radius * math.exp(STEP * (wished - self._share))
        if moved > self.radius:
            self.radius = max(self.radius, min(moved, usual))
        else:
            self.radius = min(self.radius, max(moved, 1e-3 * usual))

    def _update(self, ids: Ids, embeddings: Embeddings, labels: Labels) -> tuple[Neighbours, Vectors]:
        """Note where samples are now. Of one that comes twice the last place holds."""
        if self._index is None or self._projection is None:
            self._projection = Projection(embeddings.shape[1])
            self._index = Neighbours(len(self._labels), self._projection.dimensions)
        projection, index = self._projection, self._index
        if embeddings.shape[1] != projection.width:
            raise BadFeedback(
                f"embeddings have {embeddings.shape[1]} numbers, and earlier ones had {projection.width}: capture the "
                "same layer in every minibatch"
            )
        vectors = projection.project(embeddings)
        last = len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]
        different = ids[last]
        fresh = different[~index.known(different)]
        index.update(different, vectors[last])
        self._known[self._count : self._count + len(fresh)] = fresh
        self._count += len(fresh)
        self._labels[ids] = labels
        return index, vectors


def importance(like: NDArray[np.int64], other: NDArray[np.int64], most: int = MOST) -> Scores:
    """Eq. 4, of the numbers of neighbours of one's own class and of others."""
    scores: Scores = np.log(1 / np.maximum(like, 1) + other / most + 1).astype(np.float32)
    return scores
